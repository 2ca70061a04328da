"""Queues that a stream may plan, and their starts: the interface of `exclusive` and `shared` for the runner.

The calls of a trigger, in this order: `begin` when the previous batch has ended, `wait` for new messages, `hold`, and
always `planned` with the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from evenq.model.queue import MessageQueue
from pyspark_evenq.plan.offsets import Positions, StreamOffset
from pyspark_evenq.plan.planner import Bounds
from pyspark_evenq.plan.positions import QueueState


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldQueues:
    """Queues and positions that a batch may be made of."""

    queues: frozenset[MessageQueue]
    """The only queues that the batch may read."""
    ends: Positions
    """Queue -> start of its next batch; the caller decides it for other queues."""
    moved: Positions
    """The part of `ends` that differs from the end of the previous batch; the next offset contains it (`from`)."""
    is_share: bool = False
    """True: queues that are not in `ends` belong to other members."""


class Queues(Protocol):
    """The queues of one stream, for the main thread of the runner."""

    client_id: str

    def starts(self, chosen: Positions, states: Mapping[MessageQueue, QueueState]) -> dict[MessageQueue, int]:
        """Returns the starts of a query without a checkpoint, for the starts `chosen` by its options."""
        ...

    def pin(self, starts: Positions) -> None:
        """Stores starts on queues that the group never read: they stay if the driver dies before the first batch."""
        ...

    def begin(self, start: StreamOffset, *, first: bool, frozen: Mapping[MessageQueue, Bounds] | None) -> None:
        """Starts a trigger: the batch that ends at `start` is in Spark's commit log, or (`first`) there was none yet.
        `frozen`: the ends of a bounded run (`availableNow`).
        """
        ...

    def wait(self, start: StreamOffset) -> None:
        """Waits for news, at most `idle_wait_ms`."""
        ...

    def hold(self, start: StreamOffset) -> HeldQueues:
        """Returns the queues that the next batch may read."""
        ...

    def without(self, start: StreamOffset, held: HeldQueues, late: Collection[MessageQueue]) -> HeldQueues:
        """Returns `held` without the moves of `late`, possibly empty: a later batch begins these queues there."""
        ...

    def planned(self, end: StreamOffset | None) -> bool:
        """Records the end of the next batch; None: no batch. Returns False if it must not be made after all."""
        ...

    def has(self, queue: MessageQueue) -> bool:
        """Returns whether the query owns the queue, or may own it."""
        ...

    def offer(self, logged: StreamOffset, but: Collection[MessageQueue] = ()) -> None:
        """Reports a batch in Spark's commit log as progress, without the queues in `but`."""
        ...

    def forget(self, queues: Collection[MessageQueue]) -> None:
        """Drops earlier offers for queues that were created again."""
        ...

    def logged(self, start: StreamOffset, end: StreamOffset) -> None:
        """Records that Spark has this batch in its checkpoint and runs it, maybe again."""
        ...

    def done(self, end: StreamOffset) -> None:
        """Records that Spark's commit log has the last batch, which ends there."""
        ...

    def flush(self) -> None:
        """Reports progress now."""
        ...

    def close(self) -> None:
        """Reports progress, releases all queues and leaves the group."""
        ...
