"""Ordered groups: at most one message of a message group is out at a time, the next only after it is finished (D5).

Each queue has lanes: message group -> its unfinished offsets, ascending. Only the first of a lane is delivered or
waits for its next delivery; the others are BLOCKED. A message group that is in several queues of the topic, because
their number changed, has at most one out over all of them. Messages without a group share the lane "" of their queue
and wait for nothing in another one (wire contract 5.5). Lanes are not journalled: they are rebuilt from the messages
after a restart. Called by `loops.delivery.taking`; pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from evenq_broker.core.delivery.progress import BLOCKED, READY, Pending, Progress, QueueProgress

__all__ = ["admit", "rebuild"]


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
    """Of fresh messages, the up to `count` that may go out now, and the offsets that must wait for one before them.

    `messages` were read from `queue.next` and `next_offset` is behind them; looking stops at the first message that
    could go out but for `count`.
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
            # A number below every delivery's: no handle can name a message that was never given out.
            entry = queue.pending[offset] = Pending(queue.first - 1, 0, BLOCKED, "")
            entry.lane = lane
            waiting.append(offset)
    offsets = [message.queue_offset for message in out]
    progress.deliver(queue, offsets, next_offset, deadline_ms=deadline_ms, client_id=client_id)
    for offset, lane in zip(offsets, lanes, strict=True):
        queue.pending[offset].lane = lane
    return out, waiting


def rebuild(
    progress: Progress, queue: QueueProgress, messages: Sequence[_S], *, message_group_of: MessageGroupOf
) -> None:
    """After a restart: learn the lanes of everything unfinished from the messages themselves."""
    queue.lanes.clear()
    queue.unkeyed = False
    for message in sorted(messages, key=lambda message: message.queue_offset):
        entry = queue.pending.get(message.queue_offset)
        if entry is None:
            continue
        entry.lane = message_group_of(message.system)
        lane = queue.lanes.setdefault(entry.lane, deque())
        lane.append(message.queue_offset)
        # Only what waits is held back: a later message that a client has in hand already cannot be taken from it.
        if len(lane) > 1 and entry.deadline_ms == READY:
            entry.deadline_ms = BLOCKED
        elif len(lane) == 1 and entry.deadline_ms == BLOCKED:
            progress.unblock(queue, message.queue_offset)
    for name, offsets in queue.lanes.items():
        if name:
            _settle(progress, queue, name, queue.pending[offsets[0]])


def _settle(progress: Progress, queue: QueueProgress, lane: str, head: Pending) -> None:
    # The same message group in two queues: the one that is delivered goes on, else the queue that was learnt first.
    for one in progress.siblings(queue):
        offsets = one.lanes.get(lane)
        if not offsets:
            continue
        other = one.pending[offsets[0]]
        if other.deadline_ms != BLOCKED and head.deadline_ms == READY:
            head.deadline_ms = BLOCKED
        elif other.deadline_ms == READY and head.deadline_ms > READY:
            other.deadline_ms = BLOCKED
