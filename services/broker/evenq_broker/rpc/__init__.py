"""Handlers of calls, independent of the transport: bytes in, bytes out."""
