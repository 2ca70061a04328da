"""What is kept of deliveries to members that pull, how it is bounded, and that replaying it twice changes nothing."""

from __future__ import annotations

from evenq_broker.core.delivery.counts import COUNTS_MAX, FINISHED, PRESUMED_MAX, apply, count, dump, known, presume
from evenq_broker.core.delivery.progress import Progress, QueueProgress
from evenq_broker.core.state.records import Counted

PLACE = (1, 2, 3)


def started(offset: int = 10) -> tuple[Progress, QueueProgress]:
    progress = Progress()
    progress.start(*PLACE, offset)
    queue = progress.queue(*PLACE)
    assert queue is not None
    queue.handed = offset
    return progress, queue


def test_what_a_vanished_holder_had_in_hand_may_have_been_delivered() -> None:
    _, queue = started()
    queue.handed = 50
    assert presume(queue, 100) == Counted(*PLACE, 50)
    assert known(queue) == (50, [])
    assert presume(queue, 100) is None, "the next holder has nothing in hand yet"


def test_a_holder_that_had_nothing_in_hand_leaves_nothing() -> None:
    _, queue = started()
    assert presume(queue, 100) is None


def test_where_the_broker_cannot_know_a_bounded_part_of_the_queue_is_meant() -> None:
    _, queue = started()
    queue.handed = -1  # it restarted while the holder lived
    assert presume(queue, 40) == Counted(*PLACE, 40)
    _, queue = started()
    queue.handed = -1
    assert presume(queue, 1 << 40) == Counted(*PLACE, 10 + PRESUMED_MAX)


def test_numbers_grow_and_what_is_finished_stays_so() -> None:
    _, queue = started()
    assert count(queue, {12: 2, 11: 1}) == Counted(*PLACE, 0, (11, 12), (1, 2))
    assert count(queue, {12: 2, 11: 1}) is None
    assert count(queue, {12: 1}) is None
    assert count(queue, {12: FINISHED}) == Counted(*PLACE, 0, (12,), (FINISHED,))
    assert count(queue, {12: 3}) is None
    assert known(queue) == (0, [(11, 1), (12, FINISHED)])


def test_what_is_committed_is_forgotten() -> None:
    progress, queue = started()
    count(queue, {9: 5, 11: 1, 15: 2}, given_until=14)
    assert known(queue) == (14, [(11, 1), (15, 2)]), "9 was committed before"
    progress.commit(*PLACE, 12)
    assert known(queue) == (14, [(15, 2)])
    progress.commit(*PLACE, 15)
    assert known(queue) == (0, [(15, 2)])
    progress.commit(*PLACE, 16)
    assert known(queue) == (0, [])


def test_an_operators_reset_begins_anew() -> None:
    progress, queue = started()
    queue.handed = 90
    count(queue, {20: 4}, given_until=30)
    progress.commit(*PLACE, 0, allow_backward=True)
    assert known(queue) == (0, [])
    assert presume(queue, 100) is None


def test_what_is_kept_is_bounded_and_the_smallest_offsets_stay() -> None:
    _, queue = started(0)
    for at in range(0, 3 * COUNTS_MAX, 1_000):
        count(queue, dict.fromkeys(range(at, at + 1_000), 2))
    _, counts = known(queue)
    assert [offset for offset, _ in counts] == list(range(COUNTS_MAX))
    count(queue, {COUNTS_MAX + 7: 3})
    assert len(queue.counts) == COUNTS_MAX


def test_records_and_snapshots_restore_it_also_twice() -> None:
    progress, queue = started()
    ops = [count(queue, {12: 2}), count(queue, {13: FINISHED}, given_until=40), count(queue, {12: 3})]
    for written in (ops, [*ops, *ops], list(dump(progress)), [*dump(progress), *ops]):
        again, restored = started()
        for op in written:
            assert op is not None
            apply(again, op)
        assert known(restored) == known(queue) == (40, [(12, 3), (13, FINISHED)])
    apply(Progress(), Counted(9, 9, 9, 4))  # of a topic that is gone
