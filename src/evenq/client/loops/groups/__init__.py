"""A member of a group: its sessions, its assignment, the locks of its queues, and what it does with both."""
