"""Lanes of ordered groups: one message of a message group at a time, also after a restart (D5)."""

from __future__ import annotations

from evenq_broker.core.delivery import Progress, QueueProgress, Verdict
from evenq_broker.core.fifo import admit, rebuild
from evenq_broker.core.journal import decode, encode

from evenq.store import StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

KEY = (1, 2, 0)


def stored(offset: int, lane: str) -> StoredMessage:
    system = definition_pb2.SystemProperties(message_group=lane).SerializeToString()
    return StoredMessage(2, 0, offset, 0, 0, 0, 0, b"", system)


def begun(progress: Progress) -> QueueProgress:
    progress.start(*KEY, 0)
    queue = progress.queue(*KEY)
    assert queue is not None
    return queue


def offsets(messages: list[StoredMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_the_next_of_a_lane_comes_after_the_one_before_is_finished() -> None:
    progress = Progress()
    queue = begun(progress)
    messages = [stored(offset, lane) for offset, lane in enumerate("aabab")]
    out, waiting = admit(progress, queue, messages, 5, 32, 1_000, "")
    assert (offsets(out), waiting) == ([0, 2], [1, 3, 4])
    progress.check()
    assert progress.ack(queue, 0, 1, expires_ms=1_000, now_ms=1) is Verdict.DONE
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
    rebuild(copy, twin, messages)
    copy.check()
    assert copy.take_ready(twin, 9, deadline_ms=5_000, client_id="", max_attempts=9) == ([], [])
    assert copy.ack(twin, 0, 1, expires_ms=1_000, now_ms=1) is Verdict.DONE
    assert copy.take_ready(twin, 9, deadline_ms=5_000, client_id="", max_attempts=9) == ([1], [])
    copy.check()
