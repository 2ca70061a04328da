"""The engine of a push consumer, used by both faces: `loops.membership` fills the process queues, and `loops.listening`
calls the user's listener and settles messages.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenq.client.core.clients.observer import ClientIdentity, observed_settle
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.troubles import Report
from evenq.client.loops.groups.membership import MemberPlan, Membership
from evenq.client.loops.groups.rebalance_listener import RebalanceCallback
from evenq.client.loops.reading.listening import ListenerCalls, RunListener
from evenq.client.loops.reading.table_reads import TableReads
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan(MemberPlan):
    slots: int
    counts_deliveries: bool = True


class PushLoop:
    """One running push consumer, in one event loop."""

    def __init__(
        self,
        calls: RpcConsumerCalls,
        *,
        plan: PushPlan,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        run_listener: RunListener,
        tell: RebalanceCallback | None,
        report: Report | None = None,
        identity: ClientIdentity | None = None,
        table: TableReads | None = None,
    ) -> None:
        """`report` is called once for each permanent error; None: it is logged. `identity` is for observers."""
        self._identity = identity or ClientIdentity(client_id=client_id, group=plan.group, model=plan.model)
        self._calls = calls
        self._plan = plan
        self._member = Membership(
            calls,
            plan=plan,
            client_id=client_id,
            clock=clock,
            rng=rng,
            tell=tell,
            arrived=self._arrived,
            report=report,
            table=table,
        )
        clustering = self._member.clustering
        self._listening = ListenerCalls(
            group=plan.group,
            run=run_listener,
            clock=clock,
            slots=plan.slots,
            options=plan.options,
            max_attempts=self._member.max_attempts,
            send_back=self._send_back if clustering else None,  # RD-1: retries in clustering only
            count=self._member.ownership.locks.count_deliveries,
            settled=self._member.held.settled,
            trusted=self._trusted,
        )
        self._scan: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._member.start()
        # CC-12 sends overdue messages back; ordered queues and broadcasting consumers do not.
        if self._member.clustering and not self._plan.ordered:
            scan = self._listening.scan(self._member.held.processes)
            self._scan = spawn(scan, name=f"evenq-overdue-{self._plan.group}")

    async def close(self) -> None:
        await self._member.close()
        if self._scan is not None:
            self._scan.cancel()
            await asyncio.gather(self._scan, return_exceptions=True)
        await self._listening.close()

    def subscribe(self, topic: str, expression: FilterExpression) -> None:
        """Adds a topic, or changes its filter for queues gained from now on."""
        self._member.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Removes a topic; its queues are handed over (RB-5)."""
        self._member.unsubscribe(topic)

    def pause(self, *, paused: bool) -> None:
        """Pauses or resumes pulls (CS-9). Held messages are consumed, and queues of other members are handed over."""
        self._member.ownership.pause(paused=paused)

    def owned(self) -> list[MessageQueue]:
        """Returns the queues that are read now, sorted, without those of the retry topic."""
        return self._member.owned()

    @property
    def balanced(self) -> bool:
        """True if the member's share of every topic is known, and it reads exactly that (RB-15)."""
        return self._member.balanced

    def _trusted(self, process: ProcessQueue) -> bool:
        """False if another member may own the queue (OC-8, OC-18); an ordered queue is in doubt sooner."""
        sessions = self._member.sessions
        if not self._member.clustering:
            return True
        if process.ordered:
            return sessions.trusted(process.queue.broker_name, trust_ms=self._plan.options.lock_trust_ms)
        return sessions.sure(process.queue.broker_name)

    def _arrived(self, process: ProcessQueue) -> None:
        if process.due_ms() is not None:
            self._listening.offer(process)
        else:  # all messages were filtered out: progress still advances
            self._member.progress.table.advance(process.queue, process.committable)

    async def _send_back(self, queue: ProcessQueue, message: ReceivedMessage, attempts: int, level: int) -> None:
        """Gives a message back (RD-1, RD-5)."""
        with observed_settle(self._identity, "dead_letter" if level < 0 else "retry", [message]):
            address = await self._member.routes.address(message.queue.topic, message.queue.broker_name)
            await self._calls.send_back(
                address,
                self._plan.group,
                message.queue,
                message.queue_offset,
                delay_level=level,
                attempts=attempts,
                uid=queue.uid,
            )
        if level < 0:
            log.warning(
                "group %s: message %s (%s, offset %d) went to the dead-letter topic after %d attempts",
                self._plan.group,
                message.message_id,
                message.queue,
                message.queue_offset,
                attempts,
            )
        else:
            self._member.sent_back()
