"""Whatever happens between two batches: the batches tile each queue, and any logged batch is the same when it is run
again, by whomever, with whatever the brokers say by then. Random histories, without a Spark.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark_evenq.plan.offsets import StreamOffset
from pyspark_evenq.plan.planner import Bounds, OffsetRange, advance, batch_ranges, tasks

from evenq.model.queue import MessageQueue


def text(offset: StreamOffset) -> str:
    """As Spark keeps it."""
    return json.dumps(offset.to_json())


def read(logged: str) -> StreamOffset:
    return StreamOffset.from_json(json.loads(logged))


@dataclass
class History:
    """A topic with two brokers, a query, and what happens to both."""

    chance: random.Random
    limit: int
    queues: dict[MessageQueue, Bounds] = field(default_factory=dict)
    expected: dict[MessageQueue, int] = field(default_factory=dict)
    """Where the next batch must go on."""
    batches: list[tuple[str, str]] = field(default_factory=list)
    """Start and end of each, as logged."""
    planned: list[list[OffsetRange]] = field(default_factory=list)

    def run(self, steps: int) -> None:
        for _ in range(self.chance.randint(1, 3)):
            self.add()
        initial = StreamOffset(ends={queue: bound.low for queue, bound in self.queues.items()})
        self.expected = dict(initial.ends)
        start, first = text(initial), True
        for _ in range(steps):
            self.happen()
            reported = {queue: bound for queue, bound in self.queues.items() if self.chance.random() > 0.1}
            before = read(start)
            moved = self.move(before, reported)
            before = StreamOffset(ends={**before.ends, **moved}, uids=before.uids, generation=before.generation)
            end = advance(before, reported, first_batch=first, limit=self.limit, moved=moved)
            if end is None:
                continue
            for queue, bound in reported.items():  # trimmed meanwhile, or new: it begins at what is there
                at = moved.get(queue, self.expected.get(queue, bound.low))
                self.expected[queue] = min(max(at, bound.low), bound.high)
            self.log(start, text(end))
            start, first = text(end), False

    def add(self) -> None:
        queue = MessageQueue("flights", self.chance.choice(["broker-a", "broker-b"]), len(self.queues))
        low = self.chance.randint(0, 5)
        self.queues[queue] = Bounds(low=low, high=low + self.chance.randint(0, 20))

    def happen(self) -> None:
        for queue, bound in self.queues.items():
            high = bound.high + self.chance.choice((0, 0, 1, 30))
            low = self.chance.randint(bound.low, high) if self.chance.random() < 0.1 else bound.low
            self.queues[queue] = Bounds(low=low, high=high)
        if self.chance.random() < 0.2:
            self.add()

    def move(self, start: StreamOffset, value: dict[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
        """An operator moves the group now and then."""
        known = [queue for queue in start.ends if queue in value]
        if not known or not self.batches or self.chance.random() > 0.15:
            return {}
        queue = self.chance.choice(known)
        return {queue: self.chance.randint(value[queue].low, value[queue].high)}

    def log(self, start: str, end: str) -> None:
        assert not self.batches or end != self.batches[-1][1], "Spark would not see a new batch"
        ranges = batch_ranges(read(start), read(end))
        assert self.limit == 0 or sum(one.count for one in ranges) <= self.limit
        for one in ranges:
            assert one.start == self.expected[one.queue], "a gap or an overlap"
            self.expected[one.queue] = one.end
        for queue, place in read(end).ends.items():
            assert place == self.expected[queue]
        self.batches.append((start, end))
        self.planned.append(ranges)


@given(st.integers(0, 1 << 32), st.integers(0, 50))
@settings(max_examples=300, deadline=None)
def test_batches_tile_each_queue_and_replay_the_same(seed: int, limit: int) -> None:
    history = History(random.Random(seed), limit)
    history.run(25)
    chance = random.Random(seed)
    for number, (start, end) in enumerate(history.batches):
        # The first batch is replayed with another initial offset: it comes from no log.
        again = text(StreamOffset(ends=dict.fromkeys(read(start).ends, 0))) if number == 0 else start
        assert batch_ranges(read(again), read(end)) == history.planned[number]
        split = tasks(
            history.planned[number], min_partitions=chance.randint(0, 5), max_records=chance.randint(0, 10),
            min_records=chance.randint(0, 30), max_partitions=chance.randint(0, 3),
        )  # fmt: skip
        covered = sorted((one.queue, at) for task in split for one in task for at in range(one.start, one.end))
        assert covered == sorted((one.queue, at) for one in history.planned[number] for at in range(one.start, one.end))
