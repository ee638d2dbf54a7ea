"""Requests and answers: messages to rows and back, and a request on its way."""
