"""Lite subscriptions and receives over all brokers."""
