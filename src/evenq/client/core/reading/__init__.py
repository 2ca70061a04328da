"""Decisions about one queue: where to read from, what is in hand, when to stop pulling, what a listener finished."""
