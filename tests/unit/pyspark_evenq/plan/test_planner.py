"""Planning: random histories of growth, new queues, trims, limits and restarts."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_evenq.plan.offsets import StreamOffset
from pyspark_evenq.plan.planner import Bounds, OffsetRange, advance, batch_ranges, share, tasks, trimmed

from evenq.model.queue import MessageQueue


def queue(number: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue("flights", broker, number)


def logged(offset: StreamOffset) -> StreamOffset:
    """As it comes back from the checkpoint."""
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


@given(st.integers(0, 1 << 32), st.integers(0, 50))
def test_ranges_tile_each_queue_and_a_replay_reads_the_same(seed: int, limit: int) -> None:
    """Spec: spark.md test 10."""
    chance = random.Random(seed)
    ends = {queue(number): chance.randint(0, 20) for number in range(chance.randint(1, 3))}
    start = initial = StreamOffset(ends={key: chance.randint(0, high) for key, high in ends.items()})
    read: dict[MessageQueue, list[int]] = {}
    begun = dict(initial.ends)
    for _ in range(20):
        for key in ends:
            ends[key] += chance.choice((0, 0, 1, 30))
        if chance.random() < 0.2:
            ends[queue(len(ends))] = chance.randint(0, 5)
        hidden = chance.random() < 0.2  # a broker that does not answer
        bounds = {key: Bounds(low=0, high=high) for key, high in ends.items() if not (hidden and chance.random() < 0.5)}
        end = advance(start, bounds, first_batch=start is initial, limit=limit)
        if end is None:
            continue
        # A crash before the first batch was finished brings another initial offset; the logged batch does not care.
        replayed = StreamOffset(ends=dict.fromkeys(initial.ends, 0)) if start is initial else logged(start)
        ranges = batch_ranges(start, end)
        assert batch_ranges(replayed, logged(end)) == ranges
        assert limit == 0 or sum(part.count for part in ranges) <= limit
        for part in ranges:
            read.setdefault(part.queue, []).extend(range(part.start, part.end))
        start = logged(end)
    for key, offsets in read.items():
        assert offsets == list(range(begun.get(key, 0), begun.get(key, 0) + len(offsets)))
        assert offsets[-1] + 1 == start.ends[key]


def test_nothing_new_gives_no_batch_and_a_new_empty_queue_is_remembered_once() -> None:
    start = StreamOffset(ends={queue(0): 5})
    bounds = {queue(0): Bounds(low=0, high=5)}
    assert advance(start, bounds, first_batch=False, limit=0) is None
    bounds[queue(1)] = Bounds(low=3, high=3)
    end = advance(start, bounds, first_batch=False, limit=0)
    assert end == StreamOffset(ends={queue(0): 5, queue(1): 3}, starts={queue(1): 3})
    assert batch_ranges(start, end) == []
    assert advance(end, bounds, first_batch=False, limit=0) is None


def test_a_queue_that_lost_its_beginning_goes_on_at_what_is_left() -> None:
    start = StreamOffset(ends={queue(0): 5})
    bounds = {queue(0): Bounds(low=8, high=12)}
    assert [entry.position for entry in trimmed(start.ends, bounds)] == [5]
    end = advance(start, bounds, first_batch=False, limit=0)
    assert end is not None
    assert batch_ranges(start, end) == [OffsetRange(queue=queue(0), start=8, end=12)]


def test_the_same_offsets_under_another_uid_are_other_messages_and_read_from_the_first() -> None:
    """Grown past the old offset, so that no position is outside."""
    before = {("flights", "broker-a"): "old"}
    start = StreamOffset(ends={queue(0): 5, queue(1): 6, queue(2): 7, queue(0, "broker-b"): 8}, uids=before)
    bounds = {queue(0): Bounds(low=0, high=9, uid="new"), queue(1): Bounds(low=0, high=6, uid="new")}
    bounds[queue(0, "broker-b")] = Bounds(low=0, high=8, uid="b")
    gone = trimmed(start.ends, bounds, start.uids)
    assert [(entry.queue, entry.anew, entry.ahead) for entry in gone] == [
        (queue(0), True, False),
        (queue(1), True, False),
    ]
    assert [entry.lost(seen) for entry, seen in zip(gone, (12, 0), strict=True)] == [7, 0]
    end = advance(start, bounds, first_batch=False, limit=0)
    assert end is not None
    assert [(part.start, part.end) for part in batch_ranges(start, end)] == [(0, 9), (0, 6)]
    assert end.uids == {("flights", "broker-a"): "new", ("flights", "broker-b"): "b"}
    assert queue(2) not in end.ends, "the new topic has no such queue; if it gets one, it begins at its first message"
    assert advance(end, bounds, first_batch=False, limit=0) is None


def test_an_empty_topic_made_anew_is_remembered_once() -> None:
    start = StreamOffset(ends={queue(0): 0}, uids={("flights", "broker-a"): "old"})
    bounds = {queue(0): Bounds(low=0, high=0, uid="new")}
    end = advance(start, bounds, first_batch=False, limit=0)
    assert end == StreamOffset(ends={queue(0): 0}, starts={queue(0): 0}, uids={("flights", "broker-a"): "new"})
    assert advance(end, bounds, first_batch=False, limit=0) is None


def test_unknown_uids_are_no_other_uids_and_make_no_batch() -> None:
    start = StreamOffset(ends={queue(0): 5})
    bounds = {queue(0): Bounds(low=0, high=5, uid="new")}
    assert trimmed(start.ends, bounds, start.uids) == []
    assert advance(start, bounds, first_batch=False, limit=0) is None
    known = StreamOffset(ends={queue(0): 5}, uids={("flights", "broker-a"): "old"})
    assert trimmed(known.ends, {queue(0): Bounds(low=0, high=5)}, known.uids) == [], "an older broker"


def test_a_queue_that_comes_later_begins_where_it_is_told_to() -> None:
    start = StreamOffset(ends={queue(0): 5})
    bounds = {queue(0): Bounds(low=0, high=5), queue(1): Bounds(low=2, high=9), queue(2): Bounds(low=3, high=4)}
    end = advance(start, bounds, first_batch=False, limit=0, begins_at={queue(1): 7})
    assert end is not None
    assert end.starts == {queue(1): 7, queue(2): 3}


@given(st.dictionaries(st.integers(0, 30).map(queue), st.integers(0, 10_000), min_size=1), st.integers(1, 5_000))
def test_a_limit_is_used_up_and_starves_nobody(backlog: dict[MessageQueue, int], limit: int) -> None:
    taken = share(backlog, limit)
    assert sum(taken.values()) == min(limit, sum(backlog.values()))
    assert all(0 <= taken[key] <= backlog[key] for key in backlog)
    waiting = [key for key in backlog if backlog[key]]
    if limit >= len(waiting):
        assert all(taken[key] for key in waiting)


def test_a_limit_is_split_in_proportion_to_the_backlog() -> None:
    assert share({queue(0): 900, queue(1): 100}, 100) == {queue(0): 90, queue(1): 10}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50), st.integers(1, 400)), max_size=8),
    st.integers(0, 20),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_tasks_hold_every_message_once(
    shapes: list[tuple[str, int, int]], min_partitions: int, max_records: int, min_records: int
) -> None:
    ranges = [
        OffsetRange(queue=queue(number, broker), start=start, end=start + count)
        for number, (broker, start, count) in enumerate(shapes)
    ]
    planned = tasks(ranges, min_partitions=min_partitions, max_records=max_records, min_records=min_records)
    pieces = [piece for task in planned for piece in task]
    held = sorted((piece.queue, offset) for piece in pieces for offset in range(piece.start, piece.end))
    assert held == sorted((whole.queue, offset) for whole in ranges for offset in range(whole.start, whole.end))
    assert all(len({piece.queue.broker_name for piece in task}) == 1 for task in planned)
    assert not max_records or all(piece.count <= max_records for piece in pieces)
    if not min_records:
        assert len(planned) >= min(min_partitions, len(held))


@pytest.mark.parametrize(("min_records", "expected"), [(0, 4), (2_000, 1), (20, 2)])
def test_short_ranges_of_one_broker_share_a_task(min_records: int, expected: int) -> None:
    ranges = [OffsetRange(queue=queue(number), start=0, end=10) for number in range(4)]
    assert len(tasks(ranges, min_partitions=0, max_records=0, min_records=min_records)) == expected


@pytest.mark.parametrize(("place", "first", "rows"), [(2, False, 8), (10, False, 0), (2, True, 8), (10, True, 0)])
def test_a_queue_that_was_moved_begins_there_and_the_batch_says_so(place: int, first: bool, rows: int) -> None:
    start = StreamOffset(ends={queue(0): place, queue(1): 5})
    bounds = {queue(0): Bounds(low=0, high=10), queue(1): Bounds(low=0, high=5)}
    end = advance(start, bounds, first_batch=first, limit=0, moved=[queue(0)])
    assert end is not None
    assert end.starts[queue(0)] == place
    before = StreamOffset(ends={queue(0): 7, queue(1): 5})
    assert sum(part.count for part in batch_ranges(before, logged(end))) == rows
    assert advance(logged(end), bounds, first_batch=False, limit=0) is None


def test_going_back_to_where_a_batch_began_is_another_offset_than_its_end() -> None:
    bounds = {queue(0): Bounds(low=0, high=10)}
    end = advance(StreamOffset(ends={queue(0): 0}), bounds, first_batch=True, limit=0)
    assert end is not None
    for _ in range(2):
        again = advance(logged(StreamOffset(ends={queue(0): 0}, generation=end.generation)), bounds, first_batch=False,
                        limit=0, moved=[queue(0)])  # fmt: skip
        assert again is not None
        assert json.dumps(again.to_json()) != json.dumps(end.to_json())
        assert logged(again) == again
        end = again


def test_more_tasks_than_allowed_share_evenly_and_lose_nothing() -> None:
    ranges = [
        OffsetRange(queue=MessageQueue("flights", f"broker-{broker}", number), start=0, end=10 * number + 10)
        for broker in "ab"
        for number in range(4)
    ]
    planned = tasks(ranges, min_partitions=0, max_records=0, min_records=0, max_partitions=2)
    assert [sum(piece.count for piece in task) for task in planned] == [100, 100]
    assert sorted((piece for task in planned for piece in task), key=lambda piece: piece.queue) == ranges
    assert len(tasks(ranges, min_partitions=0, max_records=0, min_records=0, max_partitions=9)) == 8


def test_a_queue_of_an_ordered_topic_is_never_split() -> None:
    orders, other = MessageQueue("orders", "a", 0), MessageQueue("other", "a", 0)
    ranges = [OffsetRange(queue=queue, start=0, end=1_000) for queue in (orders, other)]
    for options in ({"min_partitions": 8, "max_records": 0}, {"min_partitions": 0, "max_records": 100}):
        planned = tasks(ranges, **options, min_records=0, ordered={"orders"})
        assert [ranges[0]] in planned
        assert len(planned) > 4
        assert sum(piece.count for task in planned for piece in task) == 2_000
