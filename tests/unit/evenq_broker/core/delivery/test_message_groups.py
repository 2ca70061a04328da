"""Lanes of ordered groups: one message of a message group at a time, also after a restart (D5)."""

from __future__ import annotations

from functools import partial

from evenq_broker.core.delivery import message_groups
from evenq_broker.core.delivery.message_groups import rebuild
from evenq_broker.core.delivery.progress import Progress, QueueProgress, SettleStatus
from evenq_broker.core.state.records import decode, encode

from evenq.store import StoredMessage

KEY = (1, 2, 0)
admit = partial(message_groups.admit, message_group_of=bytes.decode)


def stored(offset: int, lane: str) -> StoredMessage:
    return StoredMessage(2, 0, offset, 0, 0, 0, 0, b"", lane.encode())


def begun(progress: Progress) -> QueueProgress:
    progress.start(*KEY, 0)
    queue = progress.queue(*KEY)
    assert queue is not None
    return queue


def message_groups_of(messages: list[StoredMessage]) -> dict[int, str]:
    return {message.queue_offset: message.system.decode() for message in messages}


def offsets(messages: list[StoredMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_the_next_of_a_lane_comes_after_the_one_before_is_finished() -> None:
    progress = Progress()
    queue = begun(progress)
    messages = [stored(offset, lane) for offset, lane in enumerate("aabab")]
    out, waiting = admit(progress, queue, messages, 5, 32, 1_000, "")
    assert (offsets(out), waiting) == ([0, 2], [1, 3, 4])
    progress.check()
    assert progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=1) is SettleStatus.DONE
    assert progress.take_ready(queue, 9, deadline_ms=2_000, client_id="", max_attempts=9) == ([1], [])
    assert queue.pending[1].attempt == 1
    progress.check()
    progress.expire(2_000)
    assert progress.take_ready(queue, 9, deadline_ms=3_000, client_id="", max_attempts=9)[0] == [1, 2]
    progress.check()


def test_looking_stops_when_the_batch_is_full() -> None:
    progress = Progress()
    queue = begun(progress)
    messages = [stored(offset, lane) for offset, lane in enumerate("aabcd")]
    out, waiting = admit(progress, queue, messages, 5, 2, 1_000, "")
    assert (offsets(out), waiting, queue.next) == ([0, 2], [1], 3)
    progress.check()


def test_lanes_are_learnt_again_after_a_restart() -> None:
    progress = Progress()
    queue = begun(progress)
    messages = [stored(offset, lane) for offset, lane in enumerate("aaab")]
    admit(progress, queue, messages, 4, 32, 1_000, "")
    copy = Progress()
    for op in decode(encode(progress.dump())):
        copy.apply(op)  # type: ignore[arg-type]  # only progress is in it
    twin = copy.queue(*KEY)
    assert twin is not None
    assert twin.unkeyed
    rebuild(copy, twin, message_groups_of(messages))
    copy.check()
    assert copy.take_ready(twin, 9, deadline_ms=5_000, client_id="", max_attempts=9) == ([], [])
    assert copy.ack(twin, 0, 1, expires_ms=1_000, now_ms=1) is SettleStatus.DONE
    assert copy.take_ready(twin, 9, deadline_ms=5_000, client_id="", max_attempts=9) == ([1], [])
    copy.check()


def two_queues(progress: Progress) -> tuple[QueueProgress, QueueProgress]:
    progress.start(1, 2, 1, 0)
    other = progress.queue(1, 2, 1)
    assert other is not None
    return begun(progress), other


def take(progress: Progress, queue: QueueProgress) -> list[int]:
    return progress.take_ready(queue, 9, deadline_ms=5_000, client_id="", max_attempts=9)[0]


def test_a_message_group_in_two_queues_has_one_message_out_over_both() -> None:
    """Contract 9.4, 9.6: also after a change of the number of queues."""
    progress = Progress()
    woken: list[int] = []
    progress.on_unblocked = lambda queue: woken.append(queue.queue_id)
    old, new = two_queues(progress)
    admit(progress, old, [stored(offset, lane) for offset, lane in enumerate("aab")], 3, 32, 1_000, "")
    out, waiting = admit(progress, new, [stored(offset, lane) for offset, lane in enumerate("aca")], 3, 32, 1_000, "")
    assert (offsets(out), waiting) == ([1], [0, 2])
    progress.check()
    progress.finish(old, 0)
    assert (take(progress, old), take(progress, new), woken) == ([1], [], [])
    progress.finish(old, 1)
    assert woken == [1]
    assert (take(progress, old), take(progress, new)) == ([], [0])
    progress.check()
    out, waiting = admit(progress, old, [stored(3, "a")], 4, 32, 1_000, "")
    assert (offsets(out), waiting) == ([], [3])
    progress.finish(new, 0)
    assert take(progress, new) == [2], "a queue goes on with what it has begun"
    progress.finish(new, 2)
    assert take(progress, old) == [3]
    progress.check()


def test_two_queues_with_one_message_group_agree_again_after_a_restart() -> None:
    for order in ((0, 1), (1, 0)):
        progress = Progress()
        old, new = two_queues(progress)
        first = [stored(offset, "a") for offset in range(2)]
        admit(progress, old, first, 2, 32, 1_000, "")
        admit(progress, new, first, 2, 32, 1_000, "")
        copy = Progress()
        for op in decode(encode(progress.dump())):
            copy.apply(op)  # type: ignore[arg-type]  # only progress is in it
        for queue_id in order:
            twin = copy.queue(1, 2, queue_id)
            assert twin is not None
            rebuild(copy, twin, message_groups_of(first))
        copy.check()
        twins = [copy.queue(1, 2, queue_id) for queue_id in (0, 1)]
        assert twins[0] is not None
        assert twins[1] is not None
        assert (take(copy, twins[0]), take(copy, twins[1])) == ([], [])
        assert copy.ack(twins[0], 0, 1, expires_ms=1_000, now_ms=1) is SettleStatus.DONE
        assert (take(copy, twins[0]), take(copy, twins[1])) == ([1], [])
        copy.finish(twins[0], 1)
        assert take(copy, twins[1]) == [0]
        copy.check()


def test_finishing_a_message_that_waits_for_another_queue_lets_nobody_pass_it() -> None:
    progress = Progress()
    old, new = two_queues(progress)
    admit(progress, old, [stored(0, "a")], 1, 32, 1_000, "")
    admit(progress, new, [stored(0, "a"), stored(1, "a")], 2, 32, 1_000, "")
    progress.finish(new, 0)  # forwarded, say
    assert take(progress, new) == []
    progress.check()
    progress.commit(*KEY, 5, allow_backward=True)  # a reset of the queue that had it out
    assert take(progress, new) == [1]
    progress.check()


def test_messages_without_a_group_wait_for_their_own_queue_only() -> None:
    """Contract 5.5: messages without a group are ordered by queue, also after a restart."""
    progress = Progress()
    old, new = two_queues(progress)
    messages = [stored(offset, "") for offset in range(2)]
    for queue in (old, new):
        out, waiting = admit(progress, queue, messages, 2, 32, 1_000, "")
        assert (offsets(out), waiting) == ([0], [1])
    progress.check()
    progress.finish(old, 0)
    assert (take(progress, old), take(progress, new)) == ([1], [])
    copy = Progress()
    for op in decode(encode(progress.dump())):
        copy.apply(op)  # type: ignore[arg-type]  # only progress is in it
    copy.expire(5_000)
    for queue_id, ready in ((0, [1]), (1, [0])):
        twin = copy.queue(1, 2, queue_id)
        assert twin is not None
        rebuild(copy, twin, message_groups_of(messages))
        assert take(copy, twin) == ready
    copy.check()


def test_messages_that_wait_for_an_earlier_one_are_lag_and_not_in_flight() -> None:
    progress = Progress()
    progress.start(1, 2, 0, 0)
    queue = progress.queue(1, 2, 0)
    assert queue is not None
    messages = [stored(offset, lane) for offset, lane in enumerate("aabab")]
    admit(progress, queue, messages, 5, 32, 1_000, "")
    assert (queue.inflight(0, 5), queue.lag(0, 5)) == (2, 5)
    assert (queue.inflight(1, 5), queue.lag(1, 5)) == (1, 4), "the first was deleted by retention"
    progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=0)
    assert (queue.inflight(0, 5), queue.lag(0, 5)) == (1, 4), "its next one is not delivered yet"
