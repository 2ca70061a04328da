"""Consumers of lite topics: subscriptions, receives, the work of a push consumer."""
