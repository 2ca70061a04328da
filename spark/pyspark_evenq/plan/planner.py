"""Plans of batches: the messages that a batch reads, and their division into tasks.

Called on the driver by both readers, with offsets as plain numbers. The ranges of a batch continue each queue from the
end of the last batch, without gap or overlap. They depend only on the two logged offsets, so a replay plans the same.
Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from evenq.model.queue import MessageQueue
from pyspark_evenq.plan.offsets import Positions, StreamOffset, Uids, place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Offsets `[low, high)` of a queue that its broker holds."""

    low: int
    high: int
    uid: str = ""
    """Id of the queue's content (`offsets.Uids`); empty: not known."""


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
    """The topic was created again, or its broker lost its store: all offsets are other messages now."""
    regrown: bool = False
    """The queue lost its end and grew past it again: some offsets before this one are other messages, never read."""

    @property
    def ahead(self) -> bool:
        """True if the messages are the same, but fewer than reported before."""
        return not self.anew and self.position > self.bounds.high

    def lost(self, seen: int) -> int:
        """Returns the known number of lost messages. `seen`: the highest end reported before."""
        if self.regrown:  # the size of the loss is not known
            return 0
        if self.anew or self.ahead:
            return max(seen - self.position, 0)
        return self.bounds.low - self.position


def batch_ranges(start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
    """Returns the ranges of the batch between two offsets, in queue order, without empty ones."""
    ranges = []
    for queue in sorted(end.ends):
        begin = end.starts.get(queue, start.ends.get(queue))
        if begin is not None and begin < end.ends[queue]:
            ranges.append(OffsetRange(queue=queue, start=begin, end=end.ends[queue]))
    return ranges


def trimmed(positions: Positions, bounds: Mapping[MessageQueue, Bounds], uids: Uids | None = None) -> list[Trimmed]:
    """Returns the positions that brokers do not have: out of known bounds, or with other `uids`."""
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
    """Returns the end of the next batch, or None if there is nothing to read and nothing new to record.

    Queues that are not in `start` begin at `begins_at`, otherwise at their earliest offset. Queues that were created
    again begin at their earliest offset. Positions outside of the bounds move to the nearest bound (the caller has
    already raised if that is not allowed). For `moved` queues, `start` differs from the end of the previous batch: the
    new offset contains their starts, even with nothing to read. `limit`: messages of the batch; 0 = no limit.
    """
    anew = {place_of(queue) for queue, bound in bounds.items() if _anew(queue, bound, start.uids)}
    begins = {queue: end for queue, end in start.ends.items() if place_of(queue) not in anew}
    # The first batch contains all its starts: there is no previous batch whose ends they could be.
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
    """Divides `limit` messages among the queues in proportion to their backlog. The sum is exactly `limit` if there are
    that many messages. Each queue with a backlog gets at least one while the limit lasts, so that small queues never
    starve.
    """
    total = sum(backlog.values())
    if limit <= 0 or total <= limit:
        return dict(backlog)
    waiting = [queue for queue in sorted(backlog) if backlog[queue] > 0]
    # Smallest first: the surplus of a small queue reduces the shares of the large ones.
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
    """Returns one list of ranges per Spark task; 0 disables a rule. Ranges of more than `max_records` are split, and
    more are split to reach `min_partitions` tasks. Ranges of topics in `ordered` are never split. Short ranges of one
    broker share a task until it has `min_records`. If more than `max_partitions` tasks remain, they are merged, also
    across brokers.
    """
    pieces = [piece for whole in ranges for piece in _split(whole, 0 if whole.queue.topic in ordered else max_records)]
    if 0 < len(pieces) < min_partitions:
        size = max(1, sum(piece.count for piece in pieces) // min_partitions)
        pieces = [part for piece in pieces for part in _split(piece, 0 if piece.queue.topic in ordered else size)]
        min_records = 0  # more tasks are required, so none are merged
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
    heap: list[tuple[int, int]] = [(0, number) for number in range(count)]
    merged: list[list[OffsetRange]] = [[] for _ in range(count)]
    rows = {number: sum(piece.count for piece in task) for number, task in enumerate(packed)}
    # Largest first, each to the smallest task (LPT): close to the optimum, and deterministic.
    for number in sorted(rows, key=lambda number: (-rows[number], number)):
        size, smallest = heapq.heappop(heap)
        merged[smallest] += packed[number]
        heapq.heappush(heap, (size + rows[number], smallest))
    return merged


def _split(whole: OffsetRange, size_max: int) -> list[OffsetRange]:
    if size_max <= 0 or whole.count <= size_max:
        return [whole]
    parts = -(-whole.count // size_max)
    # By multiplication, so that parts differ by at most one message and a replay splits at the same offsets.
    edges = [whole.start + whole.count * number // parts for number in range(parts + 1)]
    return [OffsetRange(queue=whole.queue, start=low, end=high) for low, high in pairwise(edges) if low < high]
