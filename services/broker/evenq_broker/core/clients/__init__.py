"""Clients that this broker knows."""
