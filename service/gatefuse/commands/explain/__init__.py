"""`gatefuse explain`: what fusion buys, in passes, bytes, launches and time, before anything runs."""
