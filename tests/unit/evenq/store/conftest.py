"""One way to open a store for these tests: what it told its owner lies beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.disk import Disk


@dataclass
class Opened:
    """A store with what it told its owner."""

    store: MessageStore
    clock: FakeClock
    states: list[bytes] = field(default_factory=list)
    snapshots: list[bytes] = field(default_factory=list)
    dispatched: list[list[tuple[int, int, int]]] = field(default_factory=list)

    async def contents(self, topic_id: int = 1, queue_id: int = 0) -> list[bytes]:
        """All messages of a queue, in order, with dense offsets."""
        low, high = self.store.queue_range(topic_id, queue_id)
        found: list[bytes] = []
        start = low
        while start < high:
            result = await self.store.read(topic_id, queue_id, start, count_max=100, bytes_max=1 << 20)
            assert [message.queue_offset for message in result.messages] == list(range(start, result.next_offset))
            assert result.next_offset > start
            found += [message.head for message in result.messages]
            start = result.next_offset
        return found


OpenStore = Callable[..., Awaitable[Opened]]


async def _open(
    where: Path | Disk | None, *, name: str = "broker-a", clock: FakeClock | None = None,
    snapshot_of: Callable[[], bytes] | None = None,
    topic_retention_ms: Callable[[int], int | None] | None = None, **options: object,
) -> Opened:  # fmt: skip
    values: dict[str, object] = {"segment_bytes": 4096, "flush": FlushMode.SYNC, **options}
    clock = clock or FakeClock()
    states: list[bytes] = []
    snapshots: list[bytes] = []
    path = where if isinstance(where, Path) or where is None else Path("unused")
    disk = where if not isinstance(where, Path) else None
    store = await MessageStore.open(
        path, StoreOptions(**values), clock=clock, disk=disk, broker_name=name,  # type: ignore[arg-type]  # options by name
        on_state=lambda _, payload: states.append(payload), on_snapshot=snapshots.append,
        snapshot_of=snapshot_of, topic_retention_ms=topic_retention_ms,
    )  # fmt: skip
    opened = Opened(store, clock, states, snapshots)
    store.on_dispatched = opened.dispatched.append
    return opened


@pytest.fixture
def open_store() -> OpenStore:
    return _open


@pytest.fixture
def message() -> Callable[..., Append]:
    def make(
        head: bytes = b"head", *, topic_id: int = 1, queue_id: int = 0, tag: int = 7, system: bytes = b"sys"
    ) -> Append:
        return Append(topic_id, queue_id, tag, 1_000, head, system)

    return make
