"""Reads of a story's store compared with lists: by offset, chosen offsets, time, key, with tags, with any limits.

What the story has done is in `history` (its append calls) and `fired` (what timers became, in order); what retention
took is read from the store, and judged by the story.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenq.errors import StoreError
from evenq.runtime.clock import FakeClock
from evenq.store import FlushMode, StoredMessage, StoreOptions
from evenq_proofs.storage.history import History, Queue
from evenq_proofs.storage.session import OPTIONS, READ_MAX, TIMER_QUEUE, Session, Violation, keys_of
from evenq_proofs.storage.trace_disk import TraceDisk

USUAL_MS = 20_000
STORY_OPTIONS = replace(
    OPTIONS, retention_ms=USUAL_MS, snapshot_log_bytes=24_000, snapshot_interval_ms=1_000, disk_used_max_ratio=1e-6,
    disk_clean_ratio=1.0, disk_force_ratio=1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """For how long topics keep their messages, ms; 0 for ever."""

    by_topic: tuple[tuple[int, int], ...] = ((2, 5_000), (7, 60_000), (9, 60_000))
    automatic: bool = True
    """Whether the store takes snapshots by itself."""

    def of(self, topic_id: int) -> int | None:
        """None: as the store says."""
        return dict(self.by_topic).get(topic_id)


class StorySession(Session):
    """A session whose messages expire by topic. `clean_ms`: the latest wall time seen."""

    kept = Kept()
    clean_ms = 0

    def expired_before(self, queue: Queue, at: int) -> int:
        del at
        kept_ms = self.kept.of(queue[0])
        kept_ms = USUAL_MS if kept_ms is None else kept_ms
        return self.clean_ms - kept_ms if kept_ms else 0


class ReadStory:
    """The store, its disk, its clock and the lists."""

    def __init__(self, flush: FlushMode, kept: Kept, cache_bytes: int) -> None:
        self.options: StoreOptions = replace(STORY_OPTIONS, flush=flush, cache_bytes=cache_bytes)
        self.kept = kept
        self.clock = FakeClock()
        self.wall_ms = self.clock.now_ms()
        """The latest that the wall clock ever showed."""
        self.disk = TraceDisk()
        self.history = History()
        self.full = False
        self.fired: list[StoredMessage] = []
        """Messages that timers became."""
        self.session: StorySession

    # -- reading ------------------------------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """All that anything was stored in."""
        found = {(m.topic_id, m.queue_id) for group in self.history.groups for m in group.messages}
        return sorted(found | ({TIMER_QUEUE} if self.fired else set()))

    def all_of(self, queue: Queue) -> Sequence[StoredMessage]:
        """What was ever stored in a queue."""
        if queue == TIMER_QUEUE:
            return self.fired
        return [m for group in self.history.groups for m in group.messages if (m.topic_id, m.queue_id) == queue]

    def stored(self, queue: Queue) -> Sequence[StoredMessage]:
        """What is there of it."""
        return self.all_of(queue)[self.session.store.queue_range(*queue)[0] :]

    async def read(self, queue: Queue, start: int, count_max: int, bytes_max: int, tags: frozenset[int] | None) -> None:
        """One read against the list; `start` may be anywhere."""
        store, everything = self.session.store, self.all_of(queue)
        low, high = store.queue_range(*queue)
        if high != len(everything):
            raise Violation(f"{queue} ends at {high}, {len(everything)} messages were stored")
        result = await store.read(*queue, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tags)
        begin = max(start, low)
        matching = [n for n in range(begin, high) if tags is None or everything[n].tag_hash in tags]
        found = [stored.queue_offset for stored in result.messages]
        assert found == matching[: len(found)], f"found {found} of {matching} from {start}"
        for stored in result.messages:
            same(stored, everything[stored.queue_offset])
        assert len(found) <= count_max
        size = sum(len(stored.head) + len(stored.system) for stored in result.messages)
        assert size <= bytes_max or len(found) == 1, f"{size} bytes are over {bytes_max}"
        assert all(n in found for n in matching if n < result.next_offset), "a message was skipped"
        assert result.next_offset > begin or begin >= high or not count_max, f"no way on from {begin}"
        assert (result.min_offset, result.max_offset) == (low, high)

    async def read_at(self, queue: Queue, offsets: Sequence[int]) -> None:
        """Chosen offsets, some outside."""
        low, high = self.session.store.queue_range(*queue)
        found = await self.session.store.read_at(*queue, offsets)
        wanted = [offset for offset in offsets if low <= offset < high]
        assert [stored.queue_offset for stored in found] == wanted
        for stored in found:
            same(stored, self.all_of(queue)[stored.queue_offset])

    async def offset_at(self, queue: Queue, index: int, delta_ms: int) -> None:
        """By the time of some message, or near it."""
        everything = self.all_of(queue)
        low, high = self.session.store.queue_range(*queue)
        at_ms = (everything[index % len(everything)].store_ms if everything else self.wall_ms) + delta_ms
        wanted = next((n for n in range(low, high) if everything[n].store_ms >= at_ms), high)
        found = await self.session.store.offset_at(*queue, at_ms)
        assert found == wanted, f"{queue} at {at_ms} is {found}, it should be {wanted}"

    async def find(self, topic_id: int, number: int, begin: int, end: int, count_max: int) -> None:
        """By key, between the times of two messages."""
        key = b"k%d" % number if number < 7 else b"sys%d" % number
        queues = [queue for queue in self.queues() if queue[0] == topic_id]
        times = [m.store_ms for queue in queues for m in self.all_of(queue)] or [self.wall_ms]
        begin_ms, end_ms = times[begin % len(times)], times[end % len(times)]
        matching = [
            stored
            for queue in queues
            for stored in self.stored(queue)
            if key in keys_of(stored.head, stored.system) and begin_ms <= stored.store_ms <= end_ms
        ]
        matching.sort(key=lambda stored: -stored.log_offset)
        try:
            found = await self.session.store.find(
                topic_id, key, begin_ms=begin_ms, end_ms=end_ms, count_max=count_max, bytes_max=READ_MAX
            )
        except StoreError:
            if not self.full:
                raise
            return
        places = [stored.log_offset for stored in found]
        wanted = [stored.log_offset for stored in matching[:count_max]]
        assert places == wanted, f"{key!r} of {topic_id} in {begin_ms}..{end_ms} finds {places}, not {wanted}"


def same(stored: StoredMessage, due: StoredMessage) -> None:
    for name in StoredMessage.__slots__:
        if getattr(stored, name) != getattr(due, name):
            raise Violation(f"{stored!r} has {name} {getattr(stored, name)!r}, {getattr(due, name)!r} was stored")
