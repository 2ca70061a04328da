"""Ordered groups: one message of a message group is delivered at a time, the next after it is finished (D5).

Each queue has lanes: message group -> its unfinished offsets, ascending. Only the first offset of a lane is delivered
or waits for redelivery; the others are BLOCKED. If a message group is in several queues of the topic, because their
number changed, only one of its messages is delivered over all of them. Messages without a group share the lane "" of
their queue and wait for nothing in another one (wire contract 5.5). Lanes are not in the journal: they are rebuilt from
the messages after a restart. Called by `loops.delivery.taking`; pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from evenq_broker.core.delivery.progress import BLOCKED, READY, Pending, Progress, QueueProgress


class _Stored(Protocol):
    @property
    def queue_offset(self) -> int: ...
    @property
    def system(self) -> bytes: ...


_S = TypeVar("_S", bound=_Stored)

MessageGroupOf = Callable[[bytes], str]
"""Reads the message group in stored system properties; "" if there is none."""


def admit(
    progress: Progress,
    queue: QueueProgress,
    messages: Sequence[_S],
    next_offset: int,
    count: int,
    deadline_ms: int,
    client_id: str,
    *,
    message_group_of: MessageGroupOf,
) -> tuple[list[_S], list[int]]:
    """Delivers up to `count` fresh messages. Returns them, and the offsets that must wait for one before them.

    `messages` were read from `queue.next`, and `next_offset` is behind them. The first message that is free, but one
    too many, ends the look.
    """
    out: list[_S] = []
    waiting: list[int] = []
    lanes: list[str] = []
    siblings = progress.siblings(queue)
    for message in messages:
        lane = message_group_of(message.system)
        held = queue.lanes.get(lane)
        free = held is None and (not lane or not any(lane in one.lanes for one in siblings))
        if free and len(out) >= count:
            next_offset = message.queue_offset
            break
        offset = message.queue_offset
        if held is None:
            held = queue.lanes[lane] = deque()
        held.append(offset)
        if free:
            out.append(message)
            lanes.append(lane)
        else:
            # A number below every delivery's: no handle can name a message that was never delivered.
            entry = queue.pending[offset] = Pending(queue.first - 1, 0, BLOCKED, "")
            entry.lane = lane
            waiting.append(offset)
    offsets = [message.queue_offset for message in out]
    progress.deliver(queue, offsets, next_offset, deadline_ms=deadline_ms, client_id=client_id)
    for offset, lane in zip(offsets, lanes, strict=True):
        queue.pending[offset].lane = lane
    return out, waiting


def rebuild(progress: Progress, queue: QueueProgress, message_groups: Mapping[int, str]) -> None:
    """Rebuilds the lanes of all unfinished messages after a restart. `message_groups`: message group by offset."""
    queue.lanes.clear()
    queue.unkeyed = False
    for offset, message_group in sorted(message_groups.items()):
        entry = queue.pending.get(offset)
        if entry is None:
            continue
        entry.lane = message_group
        lane = queue.lanes.setdefault(entry.lane, deque())
        lane.append(offset)
        # Only waiting messages are blocked: a later one that a client works on already cannot be taken from it.
        if len(lane) > 1 and entry.deadline_ms == READY:
            entry.deadline_ms = BLOCKED
        elif len(lane) == 1 and entry.deadline_ms == BLOCKED:
            progress.unblock(queue, offset)
    for name, offsets in queue.lanes.items():
        if name:
            _settle(progress, queue, name, queue.pending[offsets[0]])


def _settle(progress: Progress, queue: QueueProgress, lane: str, head: Pending) -> None:
    # One message group in two queues: a delivered message wins, otherwise the queue that was rebuilt first.
    for one in progress.siblings(queue):
        offsets = one.lanes.get(lane)
        if not offsets:
            continue
        other = one.pending[offsets[0]]
        if other.deadline_ms != BLOCKED and head.deadline_ms == READY:
            head.deadline_ms = BLOCKED
        elif other.deadline_ms == READY and head.deadline_ms > READY:
            other.deadline_ms = BLOCKED
