"""The rows of a read: requested columns, and the garbage collection of workers."""
