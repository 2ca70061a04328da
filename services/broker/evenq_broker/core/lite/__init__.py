"""Lite topics and their subscriptions."""
