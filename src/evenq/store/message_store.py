"""The store as its owner sees it: append, read, snapshot, close. Called from one asyncio loop thread only.

Behind it are one writer thread, one flush thread and a small read pool; with a disk that does not block (memory, tests) all run inline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.store.messages import Append, OnDispatched, OnSnapshot, OnState, ReadResult, StoredMessage
from evenq.store.options import StoreOptions, StoreStats

__all__ = ["MessageStore"]


class MessageStore:
    """Single owner of a data folder, or of memory."""

    on_dispatched: OnDispatched | None = None
    failure: Error | None = None

    @classmethod
    async def open(
        cls, path: Path | None, options: StoreOptions, *, clock: Clock, broker_name: str, on_state: OnState,
        on_snapshot: OnSnapshot,
    ) -> MessageStore:  # fmt: skip
        raise NotImplementedError

    def append(self, entries: Sequence[Append]) -> asyncio.Future[None]:
        raise NotImplementedError

    def append_state(self, payload: bytes) -> asyncio.Future[None]:
        raise NotImplementedError

    def queue_range(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        raise NotImplementedError

    def read_hot(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult | None:  # fmt: skip
        raise NotImplementedError

    async def read(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int,
        tag_hashes: frozenset[int] | None = None,
    ) -> ReadResult:  # fmt: skip
        raise NotImplementedError

    async def read_at(self, topic_id: int, queue_id: int, offsets: Sequence[int]) -> list[StoredMessage]:
        raise NotImplementedError

    async def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        raise NotImplementedError

    async def save_snapshot(self, payload: bytes) -> None:
        raise NotImplementedError

    @property
    def stats(self) -> StoreStats:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
