"""Retries, dead letters, and sending them once more."""
