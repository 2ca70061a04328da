"""The engine of a push consumer: a member of a group, and the consume service behind it. Both faces drive it.

`loops.membership` brings messages into the queues' snapshots, `loops.listening` hands them to the user's listener and
settles them, and what is settled is progress.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from evenq.client.core.calls import ConsumerCalls
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.troubles import Report
from evenq.client.loops.groups.membership import MemberPlan, Membership
from evenq.client.loops.groups.rebalance_listener import RebalanceCallback
from evenq.client.loops.reading.listening import Listening, RunListener
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["PushPlan", "Pushing"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan(MemberPlan):
    """What a push consumer was asked to be."""

    slots: int
    counts_deliveries: bool = True


class Pushing:
    """One running push consumer; everything in one event loop."""

    def __init__(
        self,
        calls: ConsumerCalls,
        *,
        plan: PushPlan,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        run_listener: RunListener,
        tell: RebalanceCallback | None,
        report: Report | None = None,
    ) -> None:
        """`report` hears of each permanent error once; None: the log does."""
        self._calls = calls
        self._plan = plan
        self._member = Membership(
            calls, plan=plan, client_id=client_id, clock=clock, rng=rng, tell=tell, arrived=self._arrived,
            report=report,
        )  # fmt: skip
        clustering = self._member.clustering
        self._listening = Listening(
            group=plan.group,
            run=run_listener,
            clock=clock,
            slots=plan.slots,
            options=plan.options,
            max_attempts=self._member.max_attempts,
            send_back=self._send_back if clustering else None,  # RD-1: retries in clustering only
            count=self._member.ownership.count_deliveries,
            settled=self._member.ownership.settled,
            trusted=self._trusted,
        )
        self._scan: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the first rebalance comes at once (CS-5)."""
        self._member.start()
        # CC-12 sends overdue messages back for a retry; ordered queues and broadcasting consumers have none.
        if self._member.clustering and not self._plan.ordered:
            scan = self._listening.scan(self._member.ownership.processes)
            self._scan = spawn(scan, name=f"evenq-overdue-{self._plan.group}")

    async def close(self) -> None:
        """Drain, commit, unlock, leave; bounded by `drain_ms` and a few calls."""
        await self._member.close()
        if self._scan is not None:
            self._scan.cancel()
            await asyncio.gather(self._scan, return_exceptions=True)
        await self._listening.close()

    def subscribe(self, topic: str, expression: FilterExpression) -> None:
        """One topic more, or another filter for it (in force for queues gained from now on)."""
        self._member.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """One topic less: its queues are handed over (RB-5)."""
        self._member.unsubscribe(topic)

    def pause(self, *, paused: bool) -> None:
        """No pulls (CS-9), or go on; what is in hand is consumed, and what others are to read is handed over."""
        self._member.ownership.pause(paused=paused)

    def owned(self) -> list[MessageQueue]:
        """Queues that are being read now, sorted; the retry topic's are not among them."""
        return self._member.owned()

    @property
    def balanced(self) -> bool:
        """True if the member's share of every topic is known, and it reads exactly that (RB-15)."""
        return self._member.balanced

    def _trusted(self, process: ProcessQueue) -> bool:
        """OC-8, OC-18: another member may have it by now. An ordered queue waits for its broker's word sooner."""
        sessions = self._member.sessions
        if not self._member.clustering:
            return True
        if process.ordered:
            return sessions.trusted(process.queue.broker_name, trust_ms=self._plan.options.lock_trust_ms)
        return sessions.sure(process.queue.broker_name)

    def _arrived(self, process: ProcessQueue) -> None:
        if process.due_ms() is not None:
            self._listening.offer(process)
        else:  # all was filtered out: progress goes on
            self._member.progress.table.advance(process.queue, process.committable)

    async def _send_back(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int, level: int) -> None:
        """RD-1, RD-5."""
        address = await self._member.routes.address(message.queue.topic, message.queue.broker_name)
        await self._calls.send_back(
            address, self._plan.group, message.queue, message.queue_offset, delay_level=level, attempts=attempts,
            uid=queue.uid,
        )  # fmt: skip
        if level < 0:
            log.warning(
                "group %s: message %s (%s, offset %d) went to the dead-letter topic after %d attempts",
                self._plan.group, message.message_id, message.queue, message.queue_offset, attempts,
            )  # fmt: skip
        else:
            self._member.sent_back()
