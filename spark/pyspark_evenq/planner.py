"""Which messages a batch reads, and which task reads which of them.

Called on the driver by both readers, with offsets as plain numbers. Always true: the ranges of a batch tile each
queue from where the last batch ended, without gap or overlap, and depend on nothing but the two logged offsets, so
that a replay plans the same. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from evenq.model.queue import MessageQueue
from pyspark_evenq.offsets import Positions, StreamOffset, Uids, place_of

__all__ = ["Bounds", "OffsetRange", "Trimmed", "advance", "batch_ranges", "share", "tasks", "trimmed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a broker holds of a queue: offsets in `[low, high)`."""

    low: int
    high: int
    uid: str = ""
    """What the offsets count (`offsets.Uids`); empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Messages `[start, end)` of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """A position that the broker no longer has."""

    queue: MessageQueue
    position: int
    bounds: Bounds
    anew: bool = False
    """The topic was made anew, or its broker lost its store: all offsets are other messages now."""
    regrown: bool = False
    """The queue lost its end and grew past it again: some offsets before this one are other messages, never read."""

    @property
    def ahead(self) -> bool:
        """The same messages, but fewer of them than were reported before."""
        return not self.anew and self.position > self.bounds.high

    def lost(self, seen: int) -> int:
        """Messages from the position on that are known to have been there and are gone. `seen`: the highest end that
        was ever known of the queue, before.
        """
        if self.regrown:  # how far it had shrunk is not known
            return 0
        if self.anew or self.ahead:
            return max(seen - self.position, 0)
        return self.bounds.low - self.position


def batch_ranges(start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    """What the batch between two offsets reads, in queue order; empty ranges are left out."""
    ranges = []
    for queue in sorted(end.ends):
        begin = end.starts.get(queue, start.ends.get(queue))
        if begin is not None and begin < end.ends[queue]:
            ranges.append(OffsetRange(queue=queue, start=begin, end=end.ends[queue]))
    return ranges


def trimmed(positions: Positions, bounds: Mapping[MessageQueue, Bounds], uids: Uids | None = None) -> list[Trimmed]:
    """The positions that are no places in what the brokers hold: outside of it, or with other `uids` than the brokers
    tell. Queues without known bounds are left out.
    """
    outside = []
    for queue in sorted(positions.keys() & bounds.keys()):
        position, bound = positions[queue], bounds[queue]
        anew = _anew(queue, bound, uids or {})
        if anew or not bound.low <= position <= bound.high:
            outside.append(Trimmed(queue=queue, position=position, bounds=bound, anew=anew))
    return outside


def _anew(queue: MessageQueue, bound: Bounds, uids: Uids) -> bool:
    known = uids.get(place_of(queue), "")
    return bool(known and bound.uid and known != bound.uid)


def advance(
    start: StreamOffset,
    bounds: Mapping[MessageQueue, Bounds],
    *,
    first_batch: bool,
    limit: int,
    begins_at: Positions | None = None,
    moved: Collection[MessageQueue] = (),
) -> StreamOffset | None:
    """The end of the next batch, or None if there is nothing to read and nothing new to remember.

    Queues that `start` does not know begin where `begins_at` says, or at their earliest offset; so do those that were
    made anew. Positions outside of the bounds move to the nearest end of them (the caller has raised already if that
    must not be). The positions in `start` of queues that were `moved` are not where the batch before ended: the new one
    says where they begin, also if there is nothing to read. `limit` is the number of messages in all; 0 = no limit.
    """
    anew = {place_of(queue) for queue, bound in bounds.items() if _anew(queue, bound, start.uids)}
    begins = {queue: end for queue, end in start.ends.items() if place_of(queue) not in anew}
    # The first batch names all its starts: there is no batch before it whose ends could say them.
    changed: dict[MessageQueue, int] = dict(begins) if first_batch else {}
    for queue, bound in bounds.items():
        begin = begins.get(queue, -1)
        if begin < 0:
            begin = bound.low if place_of(queue) in anew else (begins_at or {}).get(queue, bound.low)
        clamped = min(max(begin, bound.low), bound.high)
        if begins.get(queue, -1) != clamped:
            changed[queue] = clamped
        begins[queue] = clamped
    backlog = {queue: bounds[queue].high - begin if queue in bounds else 0 for queue, begin in begins.items()}
    set_anew = {queue: begins[queue] for queue in moved if queue in bounds}
    changed |= set_anew
    if not any(backlog.values()) and (first_batch or not changed) and not set_anew:
        return None
    taken = share(backlog, limit)
    ends = {queue: begin + taken.get(queue, 0) for queue, begin in begins.items()}
    uids = {**start.uids, **{place_of(queue): bound.uid for queue, bound in bounds.items() if bound.uid}}
    generation = start.generation + bool(set_anew)
    return StreamOffset(ends=ends, starts=changed, uids=uids, generation=generation)


def share(backlog: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """Split `limit` messages over the queues in proportion to their backlog. The sum is `limit` exactly, if there are
    that number; each queue with a backlog gets at least one while the limit lasts, so that small queues never starve
    behind big ones.
    """
    total = sum(backlog.values())
    if limit <= 0 or total <= limit:
        return dict(backlog)
    waiting = [queue for queue in sorted(backlog) if backlog[queue] > 0]
    # Smallest first: what a small queue gets above its proportion comes out of the big ones'.
    waiting.sort(key=lambda queue: backlog[queue])
    taken = dict.fromkeys(backlog, 0)
    left = limit
    for queue in waiting:
        taken[queue] = min(backlog[queue], max(1, left * backlog[queue] // total), left)
        left -= taken[queue]
        total -= backlog[queue]
    return taken


def tasks(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int,
    max_records: int,
    min_records: int,
    max_partitions: int = 0,
    ordered: Collection[str] = (),
) -> list[list[OffsetRange]]:
    """One list of ranges per Spark task. Long ranges are split (more than `max_records`, or to reach `min_partitions`
    tasks), but not those of the topics in `ordered`: one task reads such a queue, in order. Short ones of the same
    broker share a task until it has `min_records`; and if there are more than `max_partitions` then, the smallest
    share one, of whatever brokers. 0 switches a rule off.
    """
    pieces = [piece for whole in ranges for piece in _split(whole, 0 if whole.queue.topic in ordered else max_records)]
    if 0 < len(pieces) < min_partitions:
        size = max(1, sum(piece.count for piece in pieces) // min_partitions)
        pieces = [part for piece in pieces for part in _split(piece, 0 if piece.queue.topic in ordered else size)]
        min_records = 0  # asked for more tasks, so none are merged
    packed: list[list[OffsetRange]] = []
    room: dict[str, list[OffsetRange]] = {}
    for piece in pieces:
        broker = piece.queue.broker_name
        task = room.get(broker)
        if task is None:
            task = room[broker] = []
            packed.append(task)
        task.append(piece)
        if sum(part.count for part in task) >= min_records:
            del room[broker]
    return _merged(packed, max_partitions) if 0 < max_partitions < len(packed) else packed


def _merged(packed: list[list[OffsetRange]], count: int) -> list[list[OffsetRange]]:
    """The same ranges in `count` tasks of about the same size."""
    heap: list[tuple[int, int]] = [(0, number) for number in range(count)]
    merged: list[list[OffsetRange]] = [[] for _ in range(count)]
    rows = {number: sum(piece.count for piece in task) for number, task in enumerate(packed)}
    # The largest first, each to the smallest task (LPT): near the best split, and the same for the same ranges.
    for number in sorted(rows, key=lambda number: (-rows[number], number)):
        size, smallest = heapq.heappop(heap)
        merged[smallest] += packed[number]
        heapq.heappush(heap, (size + rows[number], smallest))
    return merged


def _split(whole: OffsetRange, size_max: int) -> list[OffsetRange]:
    if size_max <= 0 or whole.count <= size_max:
        return [whole]
    parts = -(-whole.count // size_max)
    # By multiplication, so that parts differ by one message at most and a replay cuts in the same places.
    edges = [whole.start + whole.count * number // parts for number in range(parts + 1)]
    return [OffsetRange(queue=whole.queue, start=low, end=high) for low, high in pairwise(edges) if low < high]
