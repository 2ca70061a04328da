"""The log-structured store: one commit log for everything, consume queues derived from it, snapshots of the owner's
state.

It knows nothing of gRPC or protobuf. `MessageStore` is its one way in; `disk` is the only file of the project that
opens files. Its names load at their first use, because `evenq.local` stands on `disk` and little more.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenq.store.log.messages import (
        Append,
        AppendBlock,
        Dispatched,
        ReadResult,
        StoredMessage,
        StoredTimer,
        TimerAppend,
    )
    from evenq.store.log.options import FlushMode, StoreOptions, StoreStats
    from evenq.store.message_store import MessageStore
    from evenq.store.queues.record_blocks import Kept, RecordBlock

_HOMES = {
    "Append": "evenq.store.log.messages",
    "AppendBlock": "evenq.store.log.messages",
    "Dispatched": "evenq.store.log.messages",
    "FlushMode": "evenq.store.log.options",
    "Kept": "evenq.store.queues.record_blocks",
    "MessageStore": "evenq.store.message_store",
    "ReadResult": "evenq.store.log.messages",
    "RecordBlock": "evenq.store.queues.record_blocks",
    "StoreOptions": "evenq.store.log.options",
    "StoreStats": "evenq.store.log.options",
    "StoredMessage": "evenq.store.log.messages",
    "StoredTimer": "evenq.store.log.messages",
    "TimerAppend": "evenq.store.log.messages",
}

__all__ = [
    "Append",
    "AppendBlock",
    "Dispatched",
    "FlushMode",
    "Kept",
    "MessageStore",
    "ReadResult",
    "RecordBlock",
    "StoreOptions",
    "StoreStats",
    "StoredMessage",
    "StoredTimer",
    "TimerAppend",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'evenq.store' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
