"""Admin tasks that need several calls: copies, leaders, queues, scale-in."""
