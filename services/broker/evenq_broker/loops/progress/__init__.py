"""A group's progress in a queue: its start, and the number of deliveries of its messages."""
