"""Promises about a consumer's share: semantics sections 8 (CS), 9 (RB), 12 (PQ), 14 (CC), 16 (OF)."""

from __future__ import annotations

import asyncio

import pytest
from evenq_proofs.received import received_message

from evenq.client.core.groups.rebalance import FindStart, Lock, RebalanceTable, RetrySoon, Start, Stop, Unlock
from evenq.client.core.reading.offsets import KeptOffset, OffsetTable, decode_offsets, encode_offsets
from evenq.client.core.reading.process_queue import ProcessQueue, Thresholds
from evenq.client.core.reading.start_offset import StoredOffset, policy_start, stored_start
from evenq.client.loops.clients.wakeup import Wakeup
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage, StartFrom
from evenq.runtime.clock import FakeClock

Q1, Q2, Q3, Q4 = (MessageQueue("t", "b", number) for number in range(1, 5))


def message(offset: int, body: bytes = b"x") -> ReceivedMessage:
    return received_message(offset, body=body, queue=Q1)


def active(*queues: MessageQueue) -> RebalanceTable:
    table = RebalanceTable()
    table.assign("t", queues)
    for queue in queues:
        table.locked(queue, granted=True, committed=10)
    return table


def pulled(first: int, last: int) -> ProcessQueue:
    process = ProcessQueue(Q1, QueueOffset(first), now_ms=0)
    process.put([message(offset) for offset in range(first, last + 1)], last + 1, now_ms=0)
    return process


# --- CS: triggers


async def test_cs_3_the_service_waits_for_the_time_or_a_wake_up() -> None:
    clock = FakeClock()
    wakeup = Wakeup(clock)
    waiting = asyncio.ensure_future(wakeup.wait(20_000))
    await clock.advance(19_999)
    assert not waiting.done()
    await clock.advance(1)
    assert waiting.done()

    waiting = asyncio.ensure_future(wakeup.wait(20_000))
    await clock.advance(5)
    wakeup.wake()
    await clock.advance(0)
    assert waiting.done()


async def test_cs_3_a_wake_up_given_before_the_wait_makes_it_return_at_once_and_is_used_up() -> None:
    clock = FakeClock()
    wakeup = Wakeup(clock)
    wakeup.wake()
    await wakeup.wait(20_000)
    waiting = asyncio.ensure_future(wakeup.wait(20_000))
    await clock.advance(10)
    assert not waiting.done()
    waiting.cancel()


# --- RB: the table


def test_rb_35_q1_leaves_q2_and_q3_stay_untouched_q4_is_taken() -> None:
    table = active(Q1, Q2, Q3)
    assert table.assign("t", [Q2, Q3, Q4]) == [Stop(Q1), Lock(Q4)]
    assert table.working("t") == {Q2, Q3}
    assert table.locked(Q4, granted=True, committed=7) == [Start(Q4, QueueOffset(7), first=False)]
    assert table.working("t") == {Q2, Q3, Q4}


def test_rb_19_a_queue_that_is_not_assigned_stops_at_once_and_is_tried_no_second_time() -> None:
    table = active(Q1)
    assert table.assign("t", []) == [Stop(Q1)]
    assert table.working() == set()
    assert table.assign("t", []) == []
    assert table.left(Q1) == []
    assert table.empty


def test_rb_23_rb_36_the_same_assignment_again_changes_nothing() -> None:
    table = active(Q1, Q2)
    assert table.assign("t", [Q2, Q1]) == []


def test_rb_20_rb_21_a_stalled_queue_is_dropped_and_taken_anew() -> None:
    table = active(Q1, Q2)
    assert table.assign("t", [Q1, Q2], stalled=lambda queue: queue == Q1) == [Stop(Q1, stalled=True)]
    assert table.left(Q1) == [Lock(Q1)]


def test_rb_20_strictly_more_than_120_seconds() -> None:
    process = ProcessQueue(Q1, QueueOffset(0), now_ms=0)
    assert not process.stalled(now_ms=120_000, idle_ms=120_000)
    assert process.stalled(now_ms=120_001, idle_ms=120_000)


def test_rb_5_rb_7_queues_of_a_topic_that_is_not_subscribed_any_more_leave_through_the_same_door() -> None:
    table = active(Q1, Q2)
    assert table.keep_topics(["other"]) == [Stop(Q1), Stop(Q2)]
    table.left(Q1)
    table.left(Q2)
    assert table.empty


def test_rb_27_rb_33_a_refused_lock_skips_the_queue_and_asks_for_another_round_soon() -> None:
    table = RebalanceTable()
    assert table.assign("t", [Q1]) == [Lock(Q1)]
    assert table.locked(Q1, granted=False) == [RetrySoon()]
    assert table.working() == set()
    assert table.assign("t", [Q1]) == [Lock(Q1)]


def test_rb_31_a_queue_that_was_locked_and_got_no_start_offset_is_unlocked() -> None:
    table = RebalanceTable()
    table.assign("t", [Q1])
    assert table.locked(Q1, granted=True, committed=-1) == [FindStart(Q1)]
    assert table.start_found(Q1, None) == [Unlock(Q1), RetrySoon()]
    assert table.empty


def test_rb_41_another_negative_stored_offset_adds_nothing_in_this_round() -> None:
    table = RebalanceTable()
    table.assign("t", [Q1])
    assert table.locked(Q1, granted=True, committed=-2) == [Unlock(Q1), RetrySoon()]


def test_rb_37_better_a_queue_that_comes_back_while_it_leaves_is_locked_anew_only_after_it_has_left() -> None:
    table = active(Q1)
    table.assign("t", [])
    assert table.assign("t", [Q1]) == []
    assert table.left(Q1) == [Lock(Q1)]


def test_a_lock_that_is_granted_too_late_is_given_back() -> None:
    table = RebalanceTable()
    table.assign("t", [Q1])
    table.assign("t", [])
    assert table.locked(Q1, granted=True, committed=5) == [Unlock(Q1)]


def test_rb_4_rb_15_balanced_means_all_topics_work_on_what_is_assigned() -> None:
    table = active(Q1)
    assert table.balanced()
    other = MessageQueue("u", "b", 0)
    table.assign("u", [other])
    assert not table.balanced()
    table.locked(other, granted=True, committed=0)
    assert table.balanced()


def test_rb_17_broadcasting_takes_queues_without_locks() -> None:
    table = RebalanceTable(locks=False)
    assert table.assign("t", [Q1]) == [FindStart(Q1)]
    assert table.start_found(Q1, QueueOffset(0), first=False) == [Start(Q1, QueueOffset(0), first=False)]


@pytest.mark.parametrize(("topic_limit", "queues", "result"), [(1000, 3, 333), (100, 8, 12), (2, 3, 1)])
def test_rb_39_a_topic_limit_is_divided_by_the_queues(topic_limit: int, queues: int, result: int) -> None:
    spread = Thresholds().spread(messages_topic=topic_limit, bytes_topic=topic_limit, queues=queues)
    assert (spread.messages, spread.bytes) == (result, result)


def test_rb_39_minus_one_is_no_limit_and_an_empty_table_changes_nothing() -> None:
    base = Thresholds(messages=7, bytes=9)
    assert base.spread(messages_topic=-1, bytes_topic=-1, queues=3) == base
    assert base.spread(messages_topic=100, bytes_topic=100, queues=0) == base


RETRY = "%RETRY%g"


@pytest.mark.parametrize(
    ("policy", "topic", "result"),
    [
        (StartFrom.LAST, "t", 500),
        (StartFrom.LAST, RETRY, 0),
        (StartFrom.FIRST, "t", 0),
        (StartFrom.FIRST, RETRY, 0),
        (StartFrom.TIMESTAMP, "t", 120),
        (StartFrom.TIMESTAMP, RETRY, 0),
    ],
)
def test_rb_42_rb_43_the_start_table(policy: StartFrom, topic: str, result: int) -> None:
    """RB-47's better way for retry topics: no policy skips a retry."""
    assert policy_start(topic, policy, maximum=500, at_timestamp=120) == result


@pytest.mark.parametrize(
    ("stored", "means"),
    [(77, StoredOffset.KNOWN), (0, StoredOffset.KNOWN), (-1, StoredOffset.NEVER), (-2, StoredOffset.UNUSABLE)],
)
def test_rb_41_what_a_stored_offset_says(stored: int, means: StoredOffset) -> None:
    assert stored_start(stored) is means


# --- CC: the offset to commit


@pytest.mark.spec("CC-8")
def test_cc_9_all_done_commits_1011() -> None:
    process = pulled(1001, 1010)
    for taken in process.take(10, now_ms=0):
        process.finish(taken.queue_offset)
    assert process.committable == 1011


@pytest.mark.spec("CC-8")
def test_cc_9_1001_to_1008_done_commits_1009() -> None:
    process = pulled(1001, 1010)
    for taken in process.take(10, now_ms=0)[:8]:
        process.finish(taken.queue_offset)
    assert process.committable == 1009


@pytest.mark.spec("CC-8")
def test_cc_9_1001_still_running_commits_1001_and_jumps_to_1011_when_it_ends() -> None:
    process = pulled(1001, 1010)
    for taken in reversed(process.take(10, now_ms=0)):
        if taken.queue_offset != 1001:
            process.finish(taken.queue_offset)
    assert process.committable == 1001
    process.finish(QueueOffset(1001))
    assert process.committable == 1011


def test_cc_8_messages_left_out_by_a_filter_do_not_hold_the_offset_back() -> None:
    process = ProcessQueue(Q1, QueueOffset(5), now_ms=0)
    process.put([], 40, now_ms=0)
    assert process.committable == 40


# --- PQ: flow control


def test_pq_7_a_span_of_2000_is_pulled_2001_waits() -> None:
    process = ProcessQueue(Q1, QueueOffset(1001), now_ms=0)
    process.put([message(1001), message(3001)], 3002, now_ms=0)
    assert not process.full(Thresholds())
    process.put([message(3002)], 3003, now_ms=0)
    assert process.full(Thresholds())


def test_pq_8_count_and_size_put_pulls_off() -> None:
    process = pulled(0, 9)
    assert process.full(Thresholds(messages=10))
    assert not process.full(Thresholds(messages=11))
    assert process.full(Thresholds(bytes=10))


def test_pq_6_a_dropped_queue_takes_no_messages() -> None:
    process = pulled(0, 1)
    process.drop()
    process.put([message(2)], 3, now_ms=0)
    assert process.count == 2
    assert process.committable == 0


def test_rb_37_better_a_dropped_queue_finishes_only_what_lies_below_the_highest_seen_message() -> None:
    process = pulled(0, 9)
    first = process.take(2, now_ms=0)
    process.drop()
    assert process.take(10, now_ms=0) == []
    for taken in first:
        process.finish(taken.queue_offset)
    assert not process.busy
    assert process.committable == 2


# --- OF: offsets


def test_of_8_nothing_found_is_minus_one() -> None:
    assert OffsetTable().memory(Q1) == -1


def test_of_10_rb_28_a_removed_queue_is_forgotten_and_a_new_one_starts_without_a_leftover() -> None:
    table = OffsetTable()
    table.begin(Q1, QueueOffset(5), stored=True)
    table.advance(Q1, QueueOffset(9))
    assert table.due() == {Q1: 9}
    table.begin(Q1, QueueOffset(7), stored=True)
    assert table.due() == {}
    table.forget(Q1)
    assert table.memory(Q1) == -1


def test_of_9_an_offset_never_goes_back_in_memory() -> None:
    table = OffsetTable()
    table.begin(Q1, QueueOffset(5), stored=False)
    table.advance(Q1, QueueOffset(4))
    assert table.due() == {Q1: 5}
    table.stored(Q1, QueueOffset(5))
    assert table.due() == {}


def test_of_5_the_offsets_file_is_read_back() -> None:
    offsets = {Q1: KeptOffset(QueueOffset(3), "uid"), Q2: KeptOffset(QueueOffset(0))}
    assert decode_offsets(encode_offsets(offsets), name="offsets.json") == offsets
