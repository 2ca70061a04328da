"""Interfaces of a replica's driver (links, log) and of the log's writer (files, the broker of a term)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from evenq.store import MessageStore
from evenq_broker.core.replication.actions import AppendEpochStart, AppendRecords, PersistEpoch, Reset, Truncate
from evenq_broker.core.replication.messages import Envelope, LastRecord


class PeerSender(Protocol):
    """The links to the other brokers of the group."""

    def send(self, to: int, envelope: Envelope) -> object:
        """Sends or drops a message. Never waits. False: it is certainly lost."""
        ...

    def close_peer(self, broker_id: int, reason: str) -> None:
        """Ends the links with a broker."""
        ...

    @property
    def connected(self) -> set[int]:
        """Ids of the brokers that accept messages now."""
        ...

    @property
    def unreached(self) -> set[int]:
        """Ids of the brokers without a link to which a try has failed: at a silent machine that takes seconds."""
        ...


class LogActions(Protocol):
    """The single writer of the log."""

    def do(self, action: PersistEpoch | AppendEpochStart | AppendRecords | Truncate | Reset) -> None:
        """Executes the action after earlier ones, then reports it to the core."""
        ...

    def remember(self) -> None:
        """Notes changed copies and addresses of the group record for the next start, after earlier actions."""
        ...

    def serve(self, epoch: int) -> None:
        """Opens the broker as leader of the epoch, after earlier actions."""
        ...

    def stop_serving(self, reason: str) -> None:
        """Fails everything that waits for a commit, immediately; then closes the broker."""
        ...

    def committed(self, end: int) -> None:
        """Notes that all below `end` is committed."""
        ...

    async def settle(self, within_ms: int) -> None:
        """As a leader, accepts nothing until `settled`; waits `within_ms` at most for outcomes of earlier records."""
        ...

    def settled(self) -> None:
        """Accepts records again if the core allows it."""
        ...

    def at_hand(self, start: int, end: int) -> bytes | None:
        """Returns all records between two places if they were written recently and are still in memory, or None."""
        ...

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """Returns whole groups of records from `start`. Raises StoreError, OSError."""
        ...

    async def last_record(self, end: int) -> LastRecord | None:
        """Returns the record that ends at `end`; None: it is damaged, over 1 MiB, or unreadable. Raises StoreError."""
        ...


class LeaderTerm(Protocol):
    """The broker while it leads one epoch."""

    async def begin(self, epoch: int, attach: Callable[[MessageStore], None]) -> None:
        """Opens store and servers, with `attach` before any append. Leaves nothing behind if cancelled."""
        ...

    async def end(self) -> None:
        """Closes all of it; the store was abandoned. Idempotent."""
        ...


class Pieces(Protocol):
    """Reads the log's files while the store writes them."""

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """Returns whole groups of records. Raises StoreError, OSError."""
        ...

    async def record_before(self, end: int) -> tuple[int, int] | None:
        """Returns log offset and CRC32C of the record that ends at `end`; None: not known. Raises StoreError."""
        ...

    def renew(self) -> None:
        """Opens the files anew: a log that was cut may have other files by the same names."""
        ...
