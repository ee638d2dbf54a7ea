"""Which rows leave together, and when: pure decisions, no clock and no event loop of their own."""
