"""Delivery as wire-contract.md section 8 (statement numbers) and replication.md 2.2 (D-ids) want it, on the pure cores."""

from __future__ import annotations

from evenq_broker.core.delivery.progress import Progress, QueueProgress, SettleStatus
from evenq_broker.core.state.records import Acked, Op, decode, encode

KEY = (1, 1, 0)
MINUTE = 60_000


def delivered(count: int, *, deadline_ms: int, client: str = "") -> tuple[Progress, QueueProgress]:
    progress = Progress()
    progress.start(*KEY, 0)
    queue = progress.queue(*KEY)
    assert queue is not None
    progress.deliver(queue, list(range(count)), count, deadline_ms=deadline_ms, client_id=client)
    return progress, queue


def retry(
    progress: Progress, queue: QueueProgress, deadline_ms: int, max_attempts: int = 17
) -> tuple[list[int], list[int]]:
    return progress.take_ready(queue, 32, deadline_ms=deadline_ms, client_id="", max_attempts=max_attempts)


def test_35_a_push_delivery_has_no_timer_while_its_client_lives() -> None:
    progress, queue = delivered(1, deadline_ms=24 * 60 * MINUTE, client="push")
    assert progress.expire(10 * MINUTE) == []
    assert progress.ack(queue, 0, 1, expires_ms=24 * 60 * MINUTE, now_ms=10 * MINUTE) is SettleStatus.DONE


def test_36_a_killed_push_consumers_messages_come_again() -> None:
    progress, queue = delivered(3, deadline_ms=24 * 60 * MINUTE, client="push")
    progress.release("push", 2 * MINUTE)
    progress.expire(2 * MINUTE)
    assert retry(progress, queue, 3 * MINUTE)[0] == [0, 1, 2]
    progress.check()


def test_37_a_second_ack_and_an_ack_with_a_handle_from_before_a_change_are_fine() -> None:
    progress, queue = delivered(1, deadline_ms=1_000)
    assert progress.change_invisible(queue, 0, 1, now_ms=500, deadline_ms=9_000) is SettleStatus.DONE
    assert progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=5_000) is SettleStatus.DONE
    assert progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=5_000) is SettleStatus.ALREADY


def test_38_an_ack_after_the_time_is_over_is_invalid() -> None:
    progress, queue = delivered(1, deadline_ms=1_000)
    assert progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=1_000) is SettleStatus.INVALID
    progress.expire(1_000)
    assert progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=1_001) is SettleStatus.INVALID


def test_40_an_invisible_time_of_0_and_of_1_ms_is_taken() -> None:
    for wait_ms in (0, 1):
        progress, queue = delivered(1, deadline_ms=1_000)
        assert progress.change_invisible(queue, 0, 1, now_ms=10, deadline_ms=10 + wait_ms) is SettleStatus.DONE
        progress.expire(10 + wait_ms)
        assert retry(progress, queue, 2_000)[0] == [0]


def test_41_a_message_that_always_fails_is_delivered_max_attempts_times() -> None:
    progress, queue = delivered(1, deadline_ms=10)
    deliveries, now = 1, 10
    while True:
        progress.expire(now)
        again, dead = retry(progress, queue, now + 10, max_attempts=17)
        if dead:
            break
        deliveries += len(again)
        now += 10
    assert deliveries == 17


def test_d3_conservation_each_message_is_acked_in_flight_or_on_its_way_to_the_dead_letters() -> None:
    progress, queue = delivered(100, deadline_ms=10)
    acked = {
        offset
        for offset in range(0, 100, 3)
        if progress.ack(queue, offset, 1, expires_ms=10, now_ms=1) is SettleStatus.DONE
    }
    progress.expire(10)
    again, dead = [], list[int]()
    while queue.ready:
        more, gone = retry(progress, queue, 20)
        again += more
        dead += gone
    assert acked | set(again) | set(dead) == set(range(100))
    assert acked.isdisjoint(again)


def test_d4_an_ack_in_the_journal_is_final_over_any_older_snapshot() -> None:
    progress, _ = delivered(4, deadline_ms=1_000)
    snapshot = encode(progress.dump())
    ops: list[Op] = [Acked(*KEY, offset) for offset in (0, 2)]
    copy = Progress()
    for record in (snapshot, encode(ops), encode(ops)):
        for op in decode(record):
            copy.apply(op)  # type: ignore[arg-type]  # only progress is in these records
    twin = copy.queue(*KEY)
    assert twin is not None
    copy.expire(2_000)
    assert retry(copy, twin, 3_000)[0] == [1, 3]
    assert twin.committed == 1


def test_d6_the_committed_offset_never_goes_back_but_for_a_reset() -> None:
    progress, queue = delivered(10, deadline_ms=1_000)
    seen = [queue.committed]
    for offset in (3, 0, 1, 9, 2, 4, 8, 7, 5, 6):
        progress.ack(queue, offset, 1, expires_ms=1_000, now_ms=1)
        seen.append(queue.committed)
    assert seen == sorted(seen)
    assert not progress.commit(*KEY, 2)
    assert queue.committed == 10
