"""One queue from its start offset to its committed progress: pulls, listener calls, settlement."""
