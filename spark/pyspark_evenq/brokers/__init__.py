"""Connections to brokers: routes, offsets and growth of topics."""
