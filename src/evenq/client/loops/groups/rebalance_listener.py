"""Reports gained and lost queues to the log and to the user's `on_rebalance`, in order and in batches.

A gained queue is reported before its first message. A lost queue is reported after its last message and before its lock
is released, so the callbacks of two owners never overlap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from evenq.client.loops.clients.user_code import raised_by_user
from evenq.model import MessageQueue
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

NAMED_MAX = 8
"""Most queues that one line names."""
RebalanceCallback = Callable[[list[MessageQueue], list[MessageQueue]], Awaitable[object]]


class RebalanceListener:
    """The reports of one consumer, one call of the callback at a time."""

    def __init__(self, tell: RebalanceCallback | None, *, group: str) -> None:
        self._tell, self._group = tell, group
        self._gained: list[MessageQueue] = []
        self._lost: list[MessageQueue] = []
        self._done: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def gained(self, queue: MessageQueue) -> None:
        """Reports a gained queue; returns after the callback."""
        self._gained.append(queue)
        await self._told()

    async def lost(self, queue: MessageQueue) -> None:
        """Reports a lost queue; returns after the callback. If its gain was not reported yet, neither is."""
        if queue in self._gained:
            self._gained.remove(queue)
            return
        self._lost.append(queue)
        await self._told()

    async def _told(self) -> None:
        reported = self._next()
        if self._tell is not None:  # without a callback nothing has to wait
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
            except (Exception, asyncio.CancelledError) as error:
                if not raised_by_user(error):
                    raise
                # Otherwise this task would end, and later reports would wait for ever.
                log.exception("on_rebalance failed for %d gained and %d lost queues", len(gained), len(lost))
            finally:
                heard.set_result(None)


def _named(queues: list[MessageQueue]) -> str:
    more = f" and {len(queues) - NAMED_MAX} more" if len(queues) > NAMED_MAX else ""
    return ", ".join(str(queue) for queue in queues[:NAMED_MAX]) + more
