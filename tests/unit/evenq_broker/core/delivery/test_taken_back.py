"""What a full disk did not keep was never delivered: in the groups' progress, and in what the journal will write."""

from __future__ import annotations

from evenq_broker.core.delivery.message_groups import admit
from evenq_broker.core.delivery.progress import READY, Progress
from evenq_broker.core.delivery.taken_back import forget, without
from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible, Op, encode_op

from evenq.store import StoredMessage

ENDS = {(2, 0): 5}


def left(op: Op) -> bytes:
    return without(encode_op(op), ENDS)


def test_operations_lose_what_lies_behind_the_end_and_others_stay_as_they_are() -> None:
    delivered = Delivered(1, 2, 0, 7, 1_000, "c", (3, 5, 6), (2, 1, 1), (2, 1, 1))
    assert left(delivered) == encode_op(Delivered(1, 2, 0, 5, 1_000, "c", (3,), (2,), (2,)))
    assert left(Invisible(1, 2, 0, 5, 1, 0, READY)) == b""
    for op in (
        Delivered(1, 2, 0, 5, 1_000, "", (4,), (1,), (1,)),
        Delivered(1, 2, 1, 7, 1_000, "", (6,), (1,), (1,)),
        Invisible(1, 2, 0, 4, 1, 0, READY),
        Acked(1, 2, 0, 4),
        Acked(1, 3, 0, 9),
        Committed(1, 2, 0, 4),
    ):
        assert left(op) == encode_op(op)


def test_progress_ends_where_the_queue_does_and_the_next_message_there_is_a_first_delivery() -> None:
    progress = Progress()
    progress.start(1, 2, 0, 4)
    progress.start(9, 2, 1, 4)
    queue, other = progress.queue(1, 2, 0), progress.queue(9, 2, 1)
    assert queue is not None
    assert other is not None
    progress.deliver(queue, [4, 5, 6], 7, deadline_ms=1_000, client_id="c")
    progress.deliver(other, [4, 5, 6], 7, deadline_ms=1_000, client_id="c")
    assert progress.give_back(queue, 6, 1) is not None
    number = queue.first
    forget(progress, ENDS)
    progress.check()
    assert (queue.next, sorted(queue.pending), queue.committed, queue.ready) == (5, [4], 4, [])
    assert (other.next, sorted(other.pending)) == (7, [4, 5, 6])
    progress.deliver(queue, [5], 6, deadline_ms=1_000, client_id="")
    assert progress.give_back(queue, 5, number) is None, "that was the delivery of another message"
    progress.check()


def test_a_message_group_goes_on_behind_what_is_gone() -> None:
    progress = Progress()
    progress.start(1, 2, 0, 4)
    queue = progress.queue(1, 2, 0)
    assert queue is not None
    stored = [StoredMessage(2, 0, offset, 0, 0, 0, 0, b"", b"m") for offset in (4, 5, 6)]
    out, waiting = admit(progress, queue, stored, 7, 9, 1_000, "", message_group_of=lambda system: system.decode())
    assert ([message.queue_offset for message in out], waiting) == ([4], [5, 6])
    forget(progress, ENDS)
    progress.check()
    assert {lane: [*held] for lane, held in queue.lanes.items()} == {"m": [4]}
