"""Findings about a group, and the history of a message."""
