"""The two kinds of offset, kept apart by type so that the checker stops a mix-up."""

from typing import NewType

QueueOffset = NewType("QueueOffset", int)
"""A place in one message queue: 0 for its first message, dense, assigned once."""

LogOffset = NewType("LogOffset", int)
"""A byte in a broker's commit log."""

__all__ = ["LogOffset", "QueueOffset"]
