"""The log-structured store: one commit log for everything, consume queues derived from it, snapshots of the owner's
state.

It does not depend on gRPC or protobuf. `MessageStore` is its entry point; `io.disk` is the only module of the project
that opens files. Names load at their first use, because `evenq.local` needs little more than `io.disk`.
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
