"""Transport-neutral handlers of the calls: bytes in, bytes out."""
