"""Resizing of topics, draining and leaving of brokers."""
