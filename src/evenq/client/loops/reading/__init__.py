"""The reading of one queue: start offset, pulls, listener calls, settlement, and committed progress."""
