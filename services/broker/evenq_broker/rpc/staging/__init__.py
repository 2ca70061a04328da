"""Staged rows of exactly-once sinks."""
