"""Calls for backups."""
