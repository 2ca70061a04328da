"""Lite topics: places, subscriptions, expiry."""
