"""All invariants of `core.delivery.progress`, recomputed from scratch; tests call `Progress.check` after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from evenq_broker.core.delivery.held import Held
from evenq_broker.core.delivery.queue_progress import BLOCKED, FINISHING, READY, QueueProgress


def check(
    siblings: Callable[[QueueProgress], Iterable[QueueProgress]],
    queues: Mapping[tuple[int, int, int], QueueProgress],
    timers: Iterable[tuple[int, int, int, int, list[int]]],
    held: Held,
) -> None:
    """Raises AssertionError for the first invariant that does not hold."""
    armed: dict[tuple[int, int, int, int], set[int]] = {}
    for deadline, group_id, topic_id, queue_id, offsets in timers:
        for offset in offsets:
            armed.setdefault((group_id, topic_id, queue_id, offset), set()).add(deadline)
    for key, queue in queues.items():
        unfinished: Iterable[int] = queue.pending
        assert queue.committed == min(unfinished, default=queue.next), (key, queue.committed, queue.next)
        assert all(queue.committed <= offset < queue.next for offset in unfinished)
        assert queue.running == sum(entry.running for entry in queue.pending.values()), key
        for offset, entry in queue.pending.items():
            assert entry.attempt <= entry.number
            if entry.client_id:
                held.check(entry.client_id, key, offset)
            if entry.deadline_ms == READY:
                assert offset in queue.ready, (key, offset)
            elif entry.deadline_ms == BLOCKED:
                assert entry.lane is not None
                assert queue.lanes[entry.lane][0] < offset or any(
                    one.pending[one.lanes[entry.lane][0]].deadline_ms != BLOCKED
                    for one in siblings(queue)
                    if entry.lane in one.lanes
                )
            elif entry.deadline_ms != FINISHING:  # its call ends it
                assert entry.deadline_ms in armed.get((*key, offset), set()), (key, offset)
