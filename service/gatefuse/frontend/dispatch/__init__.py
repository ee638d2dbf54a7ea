"""Batches on their way: from the queue over a link to a worker, and back."""
