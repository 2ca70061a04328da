"""Lite topics at work."""
