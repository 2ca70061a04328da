"""Decisions about one queue: start offset, messages held, flow control, and results of the listener."""
