"""Decisions of a member of a group: its share of the queues, its process queue table, and how long its locks hold."""
