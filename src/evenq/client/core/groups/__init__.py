"""Decisions of a group member: its share of the queues, their states, and whether its locks still hold."""
