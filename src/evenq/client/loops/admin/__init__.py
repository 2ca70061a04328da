"""Admin tasks that take more than one call: copies, leaders, queues, scale-in."""
