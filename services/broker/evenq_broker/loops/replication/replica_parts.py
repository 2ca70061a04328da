"""What a replica's driver, and the one writer of its log, need of others.

The driver: links, and the log. The writer: the log's files, and the broker of a term. Tests give their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from evenq.store import MessageStore
from evenq_broker.core.replication.actions import AppendEpochStart, AppendRecords, PersistEpoch, Reset, Truncate
from evenq_broker.core.replication.messages import Envelope, LastRecord

__all__ = ["LeaderTerm", "LogActions", "PeerSender", "Pieces"]


class PeerSender(Protocol):
    """The links to the other brokers of the group."""

    def send(self, to: int, envelope: Envelope) -> object:
        """Send, or drop. Never waits. False: it is known already that it is lost."""
        ...

    def close_peer(self, broker_id: int, reason: str) -> None:
        """End the links with a broker."""
        ...

    @property
    def connected(self) -> set[int]:
        """Who takes messages now."""
        ...

    @property
    def unreached(self) -> set[int]:
        """Whom no link stands to, and a try has failed already: the first one to a process that is gone does at once,
        the first one to a machine that is silent after seconds.
        """
        ...


class LogActions(Protocol):
    """The log's one writer."""

    def do(self, action: PersistEpoch | AppendEpochStart | AppendRecords | Truncate | Reset) -> None:
        """Do it behind what was asked for before, then tell the core."""
        ...

    def remember(self) -> None:
        """Copies or addresses in the group record are others, or it is the first one: note what a start must know of
        it, behind what was asked for before.
        """
        ...

    def serve(self, epoch: int) -> None:
        """Open the broker as leader of the epoch, behind what was asked for before."""
        ...

    def stop_serving(self, reason: str) -> None:
        """Fail what waits for a commit, now; then close the broker."""
        ...

    def committed(self, end: int) -> None:
        """All below is committed."""
        ...

    async def settle(self, within_ms: int) -> None:
        """As a leader, take nothing more until `settled`, and wait until what was taken has its outcome, `within_ms`
        at most.
        """
        ...

    def settled(self) -> None:
        """Take records again if the core says so."""
        ...

    def at_hand(self, start: int, end: int) -> bytes | None:
        """All records between two places, if they were written just now and are in memory yet; else None."""
        ...

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """Whole groups of records from `start`. Raises StoreError, OSError."""
        ...

    async def last_record(self, end: int) -> LastRecord | None:
        """The record that ends at `end`; None: it is damaged, over 1 MiB, or cannot be read. Raises StoreError."""
        ...


class LeaderTerm(Protocol):
    """The broker while it leads one epoch."""

    async def begin(self, epoch: int, attach: Callable[[MessageStore], None]) -> None:
        """Open store and servers; `attach` is called once the store is open, before anything is appended. May be
        cancelled, and then leaves nothing behind. Raises what a start of the broker raises.
        """
        ...

    async def end(self) -> None:
        """Close all of it; the store was abandoned. Idempotent."""
        ...


class Pieces(Protocol):
    """Reads the log's files while the store writes them."""

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """Whole groups of records. Raises StoreError, OSError."""
        ...

    async def record_before(self, end: int) -> tuple[int, int] | None:
        """Log offset and CRC32C of the record that ends at `end`; None: none is known. Raises StoreError."""
        ...

    def renew(self) -> None:
        """Read from files opened anew: a log that was cut may have others by these names."""
        ...
