"""Options of local queues. Plain values; every limit has a test that reaches it.

Where the documents leave a value open the default is the published one (XO-10) unless the text gives a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["EngineName", "Flush", "LocalOptions"]


class EngineName(StrEnum):
    """Three engines of growing power (LQ-1)."""

    MEMORY = "memory"
    """Nothing outlives the process; nothing touches a disk."""
    EMBEDDED = "embedded"
    """A file of its own for each queue: producers never wait for each other."""
    LOCAL = "local"
    """One message store for all queues: one fsync serves all producers, old messages can go."""


class Flush(StrEnum):
    """When `send` returns."""

    ASYNC = "async"
    """Written to the operating system: survives kill -9; a power loss costs at most `flush_interval_ms`."""
    SYNC = "sync"
    """Confirmed by fdatasync, one for all who wait: survives a power loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Limits and habits. Raises ValueError when made with a value out of range."""

    flush: Flush = Flush.ASYNC
    file_bytes: int = 1 << 30
    """Size of one file of messages (LQ-44). Fixed when the folder is made."""
    entries_per_file: int = 300_000
    """Entries in one consume queue file (XO-10)."""
    message_bytes_max: int = 4 << 20
    """Largest record, with its fixed part."""
    flush_interval_ms: int = 500
    """How often written messages are synced (ASYNC) and progress is saved (XO-10)."""
    index_interval_ms: int = 5_000
    """How often consume queues are synced (XO-10): messages of this time are read again at a start after a
    crash."""
    window_ms: int = 30_000
    """How long a queue stays reserved for a consumer that shows no life (LQ-6). Polling and acknowledging are life."""
    queues_max: int = 1_024
    """Queues of one name. A producer's own number, modulo this, is its queue id (LQ-5)."""
    unfinished_max: int = 1_024
    """Messages that one consumer may hold unfinished."""
    cache_bytes_max: int = 64 << 20
    """Memory for the newest messages of all queues; older ones are read from files. Memory engine: not used."""
    bucket_bytes_max: int = 64 << 20
    """Memory engine: what one queue may hold before `send` waits (LQ-14)."""
    store_bytes_max: int = 0
    """Local engine: over this many bytes of messages the oldest whole files go, read or not; 0 keeps all."""
    files_open_max: int = 256
    batch_messages_memory: int = 32
    batch_bytes_memory: int = 300 << 10
    """Most messages and bytes that one poll reads from memory (LQ-66, XO-10); always at least one."""
    batch_messages_disk: int = 32
    """From files. Upstream says 8 because a page fault stops its store; ours stops no thread."""
    batch_bytes_disk: int = 64 << 10
    overflow_to_zero: bool = True
    """Reading beyond the end of a queue whose minimum is 0 starts over (LQ-62); False goes to the end."""
    memory_ratio: int = 40
    """Percent of the machine's memory behind the newest message from where on a replica is suggested (LQ-69)."""
    machine_bytes: int = 16 << 30
    """The machine's memory that `memory_ratio` is of."""

    def __post_init__(self) -> None:
        low = {
            "file_bytes": 64,
            "entries_per_file": 1,
            "message_bytes_max": 64,
            "store_bytes_max": 0,
            "memory_ratio": 0,
        }
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is int and value < low.get(name, 1):
                raise ValueError(f"{name} is {value}; it must be at least {low.get(name, 1)}")
