"""Measures which plan is the fastest on a device that no shipped table knows, and writes its table."""
