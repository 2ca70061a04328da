"""Reports to the log, and to the user's `on_rebalance`, which queues came and went, in order and gathered.

A gained queue is reported before its first message, a lost one after its last message and before its lock is let go, so
what the callback writes down never overlaps with what the next owner writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from evenq.model import MessageQueue
from evenq.runtime.tasks import spawn

__all__ = ["RebalanceCallback", "RebalanceListener"]

log = logging.getLogger(__name__)

NAMED_MAX = 8
"""Queues that one line names."""
RebalanceCallback = Callable[[list[MessageQueue], list[MessageQueue]], Awaitable[object]]


class RebalanceListener:
    """One call of the callback at a time."""

    def __init__(self, tell: RebalanceCallback | None, *, group: str) -> None:
        self._tell, self._group = tell, group
        self._gained: list[MessageQueue] = []
        self._lost: list[MessageQueue] = []
        self._done: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def gained(self, queue: MessageQueue) -> None:
        """Returns once the callback has heard of it."""
        self._gained.append(queue)
        await self._told()

    async def lost(self, queue: MessageQueue) -> None:
        """Returns once the callback has heard of it. A queue whose gain was not reported is not reported at all."""
        if queue in self._gained:
            self._gained.remove(queue)
            return
        self._lost.append(queue)
        await self._told()

    async def _told(self) -> None:
        reported = self._next()
        if self._tell is not None:  # the log may come later than the first message
            await asyncio.shield(reported)

    def _next(self) -> asyncio.Future[None]:
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = spawn(self._run(), name="evenq-notices")
        return self._done

    async def _run(self) -> None:
        while self._done is not None:
            heard, self._done = self._done, None
            gained, self._gained = sorted(self._gained), []
            lost, self._lost = sorted(self._lost), []
            try:
                for what, queues in (("gained", gained), ("released", lost)):
                    if queues:
                        log.info("group %s: %s %d queues: %s", self._group, what, len(queues), _named(queues))
                if self._tell is not None and (gained or lost):
                    await self._tell(gained, lost)
            except Exception:
                log.exception("on_rebalance failed for %d gained and %d lost queues", len(gained), len(lost))
            finally:
                heard.set_result(None)


def _named(queues: list[MessageQueue]) -> str:
    more = f" and {len(queues) - NAMED_MAX} more" if len(queues) > NAMED_MAX else ""
    return ", ".join(str(queue) for queue in queues[:NAMED_MAX]) + more
