"""The log-structured store: one commit log for everything, consume queues derived from it, snapshots of the owner's
state.

It knows nothing of gRPC or protobuf. `MessageStore` is its one door; `disk` is the only file of the project that
opens files.
"""

from evenq.store.message_store import MessageStore
from evenq.store.messages import Append, Dispatched, ReadResult, StoredMessage, StoredTimer, TimerAppend
from evenq.store.options import FlushMode, StoreOptions, StoreStats

__all__ = [
    "Append",
    "Dispatched",
    "FlushMode",
    "MessageStore",
    "ReadResult",
    "StoreOptions",
    "StoreStats",
    "StoredMessage",
    "StoredTimer",
    "TimerAppend",
]
