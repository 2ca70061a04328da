"""Which queues a stream may plan, and where they begin: what the runner asks of `exclusive` and of `shared`.

The order of calls is that of a trigger: `begin` when the batch before is over, `wait` for new messages, `hold`, and
`planned` with what became of it, always.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from evenq.model.queue import MessageQueue
from pyspark_evenq.offsets import Positions, StreamOffset
from pyspark_evenq.planner import Bounds
from pyspark_evenq.positions import QueueState

__all__ = ["HeldQueues", "Queues"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldQueues:
    """What a batch may be made of."""

    queues: frozenset[MessageQueue]
    """Nothing of other queues is read."""
    ends: Positions
    """Where each queue's next batch begins; queues that are not in here begin where the caller says."""
    moved: Positions
    """The part of `ends` that is not where the batch before ended: the next offset says so (`from`)."""
    is_share: bool = False
    """True: queues that are not in `ends` are others'."""


class Queues(Protocol):
    """The queues of one stream, asked by the main thread of the runner."""

    client_id: str

    def starts(self, chosen: Positions, states: Mapping[MessageQueue, QueueState]) -> dict[MessageQueue, int]:
        """Where a query without a checkpoint begins that is to begin at `chosen`."""
        ...

    def pin(self, starts: Positions) -> None:
        """The group begins here on queues that it never read: if the driver dies before Spark's first log entry, that
        must not become another place.
        """
        ...

    def begin(self, start: StreamOffset, *, first: bool, frozen: Mapping[MessageQueue, Bounds] | None) -> None:
        """The batch that ends at `start` is in Spark's commit log, or (`first`) there was none yet. `frozen`: where a
        run ends that has an end.
        """
        ...

    def wait(self, start: StreamOffset) -> None:
        """Until there is something new, at most `idle_wait_ms`."""
        ...

    def hold(self, start: StreamOffset) -> HeldQueues:
        """What the next batch may read."""
        ...

    def without(self, start: StreamOffset, held: HeldQueues, late: Collection[MessageQueue]) -> HeldQueues:
        """The same, but these moved queues cannot begin yet (there may be none); a later batch begins there."""
        ...

    def planned(self, end: StreamOffset | None) -> bool:
        """The next batch ends there; None: there is none. False: it must not be made after all."""
        ...

    def has(self, queue: MessageQueue) -> bool:
        """Whether it is, or may be, the query's."""
        ...

    def offer(self, logged: StreamOffset, but: Collection[MessageQueue] = ()) -> None:
        """Spark has this batch in its commit log: it is progress, `but` on these queues."""
        ...

    def forget(self, queues: Collection[MessageQueue]) -> None:
        """These begin anew: what was offered of them before counts no more."""
        ...

    def logged(self, start: StreamOffset, end: StreamOffset) -> None:
        """Spark has this batch in its checkpoint and runs it, maybe again."""
        ...

    def done(self, end: StreamOffset) -> None:
        """Spark's commit log has the batch that ends there, the last one; nothing is planned after it."""
        ...

    def flush(self) -> None:
        """Report now."""
        ...

    def close(self) -> None:
        """Report, let go of all queues and leave the group."""
        ...
