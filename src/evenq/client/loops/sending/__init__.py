"""The producer's loop, its unacknowledged messages, and their limits."""
