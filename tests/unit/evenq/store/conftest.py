"""One way to open a store for these tests: what it reported to its owner lies beside it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evenq.runtime.clock import FakeClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions, TimerAppend
from evenq.store.io.disk import Disk
from evenq.store.log.record import FLAG_MORE, HEADER_BYTES, PADDING, frame_at
from evenq.store.opening.cleaner import TableEnds


@dataclass
class Opened:
    """A store with what it reported to its owner."""

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
    topic_retention_ms: Callable[[int], int | None] | None = None, tables: TableEnds | None = None,
    keys_of: Callable[[bytes, bytes], list[bytes]] | None = None, epoch: int = 1, replicated: bool = False,
    **options: object,
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
        snapshot_of=snapshot_of, topic_retention_ms=topic_retention_ms, tables=tables, keys_of=keys_of, epoch=epoch,
        replicated=replicated,
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


# -- logs to copy -----------------------------------------------------------------------------------------------------


async def _write_mixed(store: MessageStore, *, seed: int = 1, rounds: int = 30) -> None:
    """Groups of messages, timers, their ends and state, of many sizes, so that paddings of many sizes come between."""
    rng = random.Random(seed)
    for number in range(rounds):
        entries = [
            Append(1, rng.randrange(3), number, 5, b"%d." % number + bytes(rng.choice([0, 1, 90, 700, 2_000])), b"sys")
            for _ in range(rng.choice([1, 1, 2, 4]))
        ]
        timers = [
            TimerAppend(1, 0, 3, due_ms=1 << 50, kind=1, born_ms=1, head=bytes(rng.choice([0, 300])), system=b"")
            for _ in range(rng.choice([0, 0, 2]))
        ]
        state = rng.choice([b"", b"state %d" % number + bytes(rng.randrange(60))])
        await store.append(entries, state=state, timers=timers, ended=[rng.randrange(1 << 40)] if state else ())


@pytest.fixture
def write_mixed() -> Callable[..., Awaitable[None]]:
    return _write_mixed


@dataclass
class RawLog:
    """All bytes of a log, and the places between its groups as the frames themselves tell."""

    data: bytes
    boundaries: list[int]
    frames: list[tuple[int, int]]
    """Log offset and size of each, padding too."""


def _raw_log(disk: Disk, end: int, segment_bytes: int = 4096) -> RawLog:
    """Up to `end`, by means that the code under test does not use."""
    parts = []
    for name in disk.list("commitlog"):
        file = disk.open(f"commitlog/{name}")
        parts.append(file.pread(segment_bytes, 0))
        file.close()
    data = b"".join(parts)[:end]
    boundaries, frames, position = [0], [], 0
    more = False
    while position < end:
        rest = segment_bytes - position % segment_bytes
        frame = frame_at(data, position, position) if rest >= HEADER_BYTES else None
        size = rest if frame is None or frame.kind == PADDING else frame.size
        if frame is not None and frame.kind != PADDING:
            more = bool(frame.flags & FLAG_MORE)
        assert frame is not None or (rest < HEADER_BYTES and not any(data[position : position + rest]))
        frames.append((position, size))
        position += size
        if not more:
            boundaries.append(position)
    assert position == end
    return RawLog(data, boundaries, frames)


@pytest.fixture
def raw_log() -> Callable[..., RawLog]:
    return _raw_log
