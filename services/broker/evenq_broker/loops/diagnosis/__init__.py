"""Periodic observation of groups."""
