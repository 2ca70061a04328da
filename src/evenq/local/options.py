"""Options of local queues. Defaults that the reference leaves open are its published values (XO-10), unless stated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineName(StrEnum):
    """Three engines of growing capability (LQ-1)."""

    MEMORY = "memory"
    """Nothing outlives the process, and nothing is written to disk."""
    EMBEDDED = "embedded"
    """Files for each queue: producers never wait for each other."""
    LOCAL = "local"
    """One message store for all queues: one fsync serves all producers, and old messages can be removed."""


class Flush(StrEnum):
    """The moment at which `send` returns."""

    ASYNC = "async"
    """After the write to the operating system: survives kill -9; a power loss costs at most `flush_interval_ms`."""
    SYNC = "sync"
    """After fdatasync, one for all waiting producers: survives a power loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Limits and intervals of local queues. Raises ValueError for a value out of range."""

    flush: Flush = Flush.ASYNC
    file_bytes: int = 1 << 30
    """Size of one file of messages (LQ-44). Fixed when the folder is created."""
    entries_per_file: int = 300_000
    """Entries in one consume queue file (XO-10)."""
    message_bytes_max: int = 4 << 20
    """Largest record, with its fixed part."""
    flush_interval_ms: int = 500
    """Period in which written messages are synced (ASYNC) and progress is saved (XO-10)."""
    index_interval_ms: int = 5_000
    """Period in which consume queues are synced (XO-10). A start after a crash reads messages of this time again."""
    window_ms: int = 30_000
    """Time for which a queue stays reserved for a consumer that neither polls nor finishes messages (LQ-6)."""
    queues_max: int = 1_024
    """Queues of one name. A producer's number modulo this is its queue id (LQ-5)."""
    unfinished_max: int = 1_024
    """Messages that one consumer may hold unfinished."""
    cache_bytes_max: int = 64 << 20
    """Memory for the newest messages of all queues; older ones are read from files. Memory engine: not used."""
    bucket_bytes_max: int = 64 << 20
    """Memory engine: bytes of one queue above which `send` waits (LQ-14)."""
    store_bytes_max: int = 0
    """Local engine: above this many bytes the oldest whole files are removed, read or not; 0 keeps all."""
    files_open_max: int = 256
    batch_messages_memory: int = 32
    batch_bytes_memory: int = 300 << 10
    """Most messages and bytes that one poll reads from memory (LQ-66, XO-10); always at least one."""
    batch_messages_disk: int = 32
    """As `batch_messages_memory`, from files. The reference has 8, because a page fault stops its store."""
    batch_bytes_disk: int = 64 << 10
    overflow_to_zero: bool = True
    """True: a read beyond the end of a queue whose minimum is 0 starts over (LQ-62). False: it goes to the end."""
    memory_ratio: int = 40
    """Lag, in percent of the machine's memory, from which on a replica is suggested (LQ-69)."""
    machine_bytes: int = 16 << 30
    """The machine's memory, for `memory_ratio`."""

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
