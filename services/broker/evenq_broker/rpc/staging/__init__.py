"""Staged rows of sinks that are exactly once."""
