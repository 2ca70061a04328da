"""How long a queue that leaves waits for its running listener calls (OC-8, OC-13, RB-25).

Used by `loops.ownership` before the lock of a queue is released. A concurrent queue waits for `drain_ms`: what is not
finished then is delivered twice, which such a listener must expect. An ordered queue waits until its call has ended,
because the next owner would run beside it: two members in one message group, and a message whose only delivery
succeeded would go to the dead letters. A call that never ends must not keep the queue for ever, so the wait ends after
the broker's `revoke_ms`, when the broker would take the queue. Only the end of the consumer cuts it to `drain_ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from evenq.client.loops.clients.wakeup import Wakeup
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.reading.pulling import Pulling
from evenq.client.options import PushOptions
from evenq.runtime.clock import Clock

__all__ = ["Drains"]

log = logging.getLogger(__name__)


class Drains:
    """The waits of one consumer."""

    def __init__(self, *, group: str, options: PushOptions, sessions: BrokerSessions, clock: Clock) -> None:
        self._group, self._drain_ms = group, options.drain_ms
        self._sessions, self._clock = sessions, clock
        self._closed_ms: int | None = None

    def close(self, pulls: Iterable[Pulling]) -> None:
        """The consumer closes: no wait is longer than `drain_ms` from now on, also none that runs."""
        self._closed_ms = self._clock.monotonic_ms()
        for pulling in pulls:
            pulling.quiet.set()

    async def finished(self, pulling: Pulling) -> None:
        """Wait until no listener works on the queue, or the limit is reached."""
        began_ms, queue = self._clock.monotonic_ms(), pulling.process.queue
        wakeup = Wakeup(self._clock, pulling.quiet)
        while pulling.process.busy:
            if not pulling.process.ordered:
                limit, limit_ms = "drain_ms", self._drain_ms
            elif self._closed_ms is None:
                limit, limit_ms = "revoke_ms of the broker", self._sessions.revoke_ms(queue.broker_name)
            else:
                limit, limit_ms = "drain_ms", self._drain_ms + max(0, self._closed_ms - began_ms)
            left_ms = began_ms + limit_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                log.warning(
                    "group %s: messages of %s were not finished within %d ms (%s), they may be delivered again%s",
                    self._group, queue, limit_ms, limit, " while the listener still runs" * pulling.process.ordered,
                )  # fmt: skip
                return
            await wakeup.wait(left_ms)
