"""Clients of the public protocol: their streams and their end."""
