"""Heartbeats, telemetry, and the list of clients."""
