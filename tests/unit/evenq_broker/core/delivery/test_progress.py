"""Progress of groups: every step keeps the invariants, and a replayed journal ends in the same state."""

from __future__ import annotations

import random

from evenq_broker.core.delivery.progress import Progress, QueueProgress, SettleStatus
from evenq_broker.core.state.records import Acked, Committed, Op, decode, encode

KEY = (1, 2, 0)


def begun(progress: Progress, offset: int = 0) -> QueueProgress:
    progress.start(*KEY, offset)
    queue = progress.queue(*KEY)
    assert queue is not None
    return queue


def give(progress: Progress, queue: QueueProgress, count: int, *, deadline_ms: int = 1_000, client: str = "") -> None:
    offsets = list(range(queue.next, queue.next + count))
    progress.deliver(queue, offsets, queue.next + count, deadline_ms=deadline_ms, client_id=client)


def ack(
    progress: Progress, queue: QueueProgress, offset: int, number: int = 1, now_ms: int = 0, end: int = 1_000
) -> SettleStatus:
    return progress.ack(queue, offset, number, expires_ms=end, now_ms=now_ms)


def test_committed_is_the_smallest_unfinished_offset() -> None:
    progress = Progress()
    queue = begun(progress, 10)
    give(progress, queue, 5)
    assert ack(progress, queue, 11) is SettleStatus.DONE
    assert queue.committed == 10
    assert ack(progress, queue, 10) is SettleStatus.DONE
    assert queue.committed == 12
    for offset in (12, 13, 14):
        ack(progress, queue, offset)
    assert queue.committed == 15
    progress.check()


def test_what_a_filter_left_out_is_finished_also_across_a_wide_gap() -> None:
    progress = Progress()
    queue = begun(progress)
    progress.deliver(queue, [3, 90_000], 100_000, deadline_ms=10, client_id="")
    assert queue.committed == 3
    ack(progress, queue, 3)
    assert queue.committed == 90_000
    ack(progress, queue, 90_000)
    assert queue.committed == 100_000
    progress.check()


def test_a_delivery_ends_at_its_millisecond() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 2)
    assert progress.next_deadline() == 1_000
    assert progress.expire(999) == []
    assert progress.expire(1_000) == [queue]
    again, dead = progress.take_ready(queue, 9, deadline_ms=5_000, client_id="", max_attempts=3)
    assert (again, dead) == ([0, 1], [])
    assert queue.pending[0].attempt == queue.pending[0].number == 2
    progress.check()


def test_an_earlier_delivery_may_finish_but_not_give_back() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 1)
    assert progress.change_invisible(queue, 0, 1, now_ms=10, deadline_ms=10) is SettleStatus.DONE
    progress.take_ready(queue, 1, deadline_ms=2_000, client_id="", max_attempts=9)
    assert progress.change_invisible(queue, 0, 1, now_ms=20, deadline_ms=20) is SettleStatus.INVALID
    assert ack(progress, queue, 0, number=1, now_ms=1_500) is SettleStatus.INVALID  # its own time is over
    assert ack(progress, queue, 0, number=1, now_ms=20) is SettleStatus.DONE
    assert ack(progress, queue, 0, number=2, now_ms=20, end=2_000) is SettleStatus.ALREADY


def test_an_offset_that_was_never_delivered_cannot_be_acknowledged() -> None:
    progress = Progress()
    queue = begun(progress)
    assert ack(progress, queue, 0) is SettleStatus.INVALID
    assert ack(progress, queue, 0, number=5) is SettleStatus.INVALID
    assert progress.ack(None, 0, 1, expires_ms=9, now_ms=0) is SettleStatus.INVALID


def test_the_last_attempt_is_followed_by_the_dead_letter_topic() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 1)
    progress.expire(1_000)
    again, dead = progress.take_ready(queue, 9, deadline_ms=2_000, client_id="", max_attempts=1)
    assert (again, dead) == ([], [0])
    progress.expire(2_000)  # the move failed: it comes up again
    assert progress.take_ready(queue, 9, deadline_ms=3_000, client_id="", max_attempts=1) == ([], [0])
    assert progress.finish(queue, 0)
    assert not progress.finish(queue, 0)
    assert queue.committed == 1
    progress.check()


def test_what_nobody_saw_goes_back_without_counting() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 1)
    assert progress.give_back(queue, 0, 1) is not None
    assert progress.give_back(queue, 0, 1) is None
    again, _ = progress.take_ready(queue, 1, deadline_ms=2_000, client_id="", max_attempts=9)
    assert again == [0]
    assert (queue.pending[0].attempt, queue.pending[0].number) == (1, 2)
    progress.check()


def test_the_end_of_a_client_ends_what_only_its_life_held() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 2, deadline_ms=99_000, client="a")
    give(progress, queue, 1, deadline_ms=99_000, client="b")
    assert progress.clients() == {"a", "b"}
    assert [offset for _, offset in progress.release("a", 500)] == [0, 1]
    assert progress.expire(500) == [queue]
    assert sorted(queue.ready) == [0, 1]
    progress.check()


def test_a_commit_finishes_everything_below_and_never_goes_back_by_itself() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 5)
    assert progress.commit(*KEY, 3)
    assert (queue.committed, sorted(queue.pending)) == (3, [3, 4])
    assert not progress.commit(*KEY, 1)
    assert progress.commit(*KEY, 1, allow_backward=True)
    moved = progress.queue(*KEY)
    assert moved is not None
    assert (moved.committed, moved.next, moved.pending) == (1, 1, {})
    progress.check()


def test_the_bound_of_unfinished_messages_is_told() -> None:
    progress = Progress(inflight_max=3)
    queue = begun(progress)
    give(progress, queue, 3)
    assert progress.room(queue) == 0
    ack(progress, queue, 1)
    assert progress.room(queue) == 1


def test_timers_of_finished_deliveries_are_thrown_out() -> None:
    progress = Progress()
    queue = begun(progress)
    for number in range(20_000):
        give(progress, queue, 1, deadline_ms=1_000_000 + number)
        ack(progress, queue, number)
    assert len(progress._deadlines.timers) <= 4_200
    progress.check()


def test_random_histories_keep_the_invariants_and_replay_to_the_same_state() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        progress, ops = Progress(), list[Op]()
        queue = begun(progress)
        ops.append(Committed(*KEY, 0))
        now = snapshot_at = 0
        snapshot = b""
        for step in range(200):
            now += rng.randrange(50)
            progress.expire(now)
            _step(progress, queue, ops, rng, now)
            progress.check()
            if step == 100:
                snapshot, snapshot_at = encode(progress.dump()), len(ops)
        for copy in (
            _replayed(encode(ops)),
            _replayed(snapshot, encode(ops[snapshot_at:])),
            _replayed(snapshot, encode(ops[max(0, snapshot_at - 20) :])),
        ):
            twin = copy.queue(*KEY)
            assert twin is not None
            copy.expire(now)
            copy.check()
            assert (twin.committed, twin.next, set(twin.pending)) == (
                queue.committed,
                queue.next,
                set(queue.pending),
            ), seed
            for offset, entry in queue.pending.items():
                other = twin.pending[offset]
                assert (other.number, other.attempt, other.deadline_ms) == (
                    entry.number,
                    entry.attempt,
                    entry.deadline_ms,
                )


def _step(progress: Progress, queue: QueueProgress, ops: list[Op], rng: random.Random, now: int) -> None:
    deadline = now + rng.choice((10, 100, 1_000))
    match rng.randrange(5):
        case 0:
            fresh = [offset for offset in range(queue.next, queue.next + 6) if rng.random() < 0.8]
            progress.deliver(queue, fresh, queue.next + 6, deadline_ms=deadline, client_id="")
            ops.append(progress.delivered_op(queue, fresh, deadline_ms=deadline, client_id=""))
        case 1:
            again, _ = progress.take_ready(queue, 3, deadline_ms=deadline, client_id="", max_attempts=10_000)
            ops.append(progress.delivered_op(queue, again, deadline_ms=deadline, client_id=""))
        case 2 | 3:
            for offset in rng.sample(sorted(queue.pending), min(3, len(queue.pending))):
                entry = queue.pending[offset]
                if ack(progress, queue, offset, entry.number, now, now + 1) is SettleStatus.DONE:
                    ops.append(Acked(*KEY, offset))
        case 4:
            for offset in rng.sample(sorted(queue.pending), min(2, len(queue.pending))):
                entry = queue.pending[offset]
                change = progress.change_invisible(
                    queue, offset, entry.number, now_ms=now, deadline_ms=now + rng.choice((0, 70))
                )
                if change is SettleStatus.DONE:
                    ops.append(queue.op(offset, entry))


def _replayed(*records: bytes) -> Progress:
    progress = Progress()
    for record in records:
        for op in decode(record):
            progress.apply(op)  # type: ignore[arg-type]  # only progress is in these records
    return progress


def test_what_retention_deleted_while_it_was_in_flight_is_in_no_number() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 10)
    assert (progress.lag(*KEY, 0, 12), progress.inflight(*KEY, 0, 12)) == (12, 10)
    assert (progress.lag(*KEY, 8, 12), progress.inflight(*KEY, 8, 12)) == (4, 2)
    assert (progress.lag(*KEY, 12, 12), progress.inflight(*KEY, 12, 12)) == (0, 0)
    assert progress.inflight(*KEY, 8, 9) == 1


def test_what_was_given_back_is_lag_and_not_in_flight() -> None:
    progress = Progress()
    queue = begun(progress)
    give(progress, queue, 4)
    for offset, until_ms in ((0, 10), (1, 500)):  # now, and later
        change = progress.change_invisible(queue, offset, 1, now_ms=10, deadline_ms=until_ms, given_back=True)
        assert change is SettleStatus.DONE
    assert progress.change_invisible(queue, 2, 1, now_ms=10, deadline_ms=500) is SettleStatus.DONE  # needs more time
    figures = progress.lag(*KEY, 0, 4), progress.inflight(*KEY, 0, 4), progress.delivered(*KEY, 0, 4)
    assert figures == (4, 2, 4)
    again, _ = progress.take_ready(queue, 1, deadline_ms=2_000, client_id="", max_attempts=9)
    assert again == [0]
    assert progress.inflight(*KEY, 0, 4) == 3


def test_a_message_whose_ack_is_being_stored_is_out_of_reach_and_a_snapshot_lacks_it_unless_that_is_refused() -> None:
    progress, refused = Progress(), False
    queue = begun(progress)
    give(progress, queue, 3)
    assert progress.status_of(queue, 1, 1, now_ms=0) is SettleStatus.DONE
    entry = progress.fence.begin(queue, 1, lambda: refused)
    assert progress.status_of(queue, 1, 1, now_ms=0) is SettleStatus.INVALID
    assert progress.change_invisible(queue, 1, 1, now_ms=0, deadline_ms=5) is SettleStatus.INVALID
    progress.expire(10_000)
    progress.check()
    assert sorted(queue.ready) == [0, 2]
    assert sorted(_replayed(encode(progress.dump())).queue(*KEY).pending) == [0, 2]  # type: ignore[union-attr]
    refused = True
    assert sorted(_replayed(encode(progress.dump())).queue(*KEY).pending) == [0, 1, 2]  # type: ignore[union-attr]
    assert progress.fence.end(queue, 1, entry, stored=False) == 1_000
    progress.expire(10_000)
    progress.check()
    assert sorted(queue.ready) == [0, 1, 2]
    again, _ = progress.take_ready(queue, 3, deadline_ms=20_000, client_id="", max_attempts=9)
    assert again == [0, 1, 2]
    for offset in again:
        held = progress.fence.begin(queue, offset, lambda: False)
        assert progress.fence.end(queue, offset, held, stored=True) == 0
        assert progress.status_of(queue, offset, 2, now_ms=0) is SettleStatus.ALREADY
    assert (queue.committed, queue.pending) == (3, {})
    progress.check()
