"""Where a simple consumer's group begins on a topic that it never read, as its user says: settled at all brokers of the
topic before the first receive, so that no broker begins on its own terms when its turn comes. The brokers decide by the
policy that they are given (`StartCalls.begin`), and what was read before counts there, also of a topic that was deleted
and created again. Older brokers do not decide: there the start is looked up and committed.

Asked by `loops.receiving` before each receive; does something once per topic. A topic that came after the consumer is
read from its first message. A broker that is away is settled when it is back; servers without evenq.v1 decide alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from evenq.client.core.calls import QueueRange
from evenq.client.core.reading.start_offset import policy_start
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import Error, IllegalOffset, NotImplementedYet, Unsupported
from evenq.model import NO_GENERATION, Generation, MessageQueue, QueueOffset, StartFrom, StartPolicy

__all__ = ["GroupStart", "StartCalls"]

log = logging.getLogger(__name__)


class StartCalls(Protocol):
    """The part of `rpc.calls.Calls` that it uses."""

    async def query_offsets(
        self, address: str, group: str, queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange: ...

    async def begin(
        self, address: str, group: str, queue: MessageQueue, start: StartPolicy, *, generation: Generation, uid: str
    ) -> None: ...

    async def commit(
        self, address: str, group: str, offsets: Mapping[MessageQueue, QueueOffset], *, generation: Generation
    ) -> None: ...


class GroupStart:
    """Of one simple consumer, in one event loop."""

    def __init__(
        self, calls: StartCalls, routes: RouteBook, *, group: str, start_from: StartFrom | None, timestamp_ms: int
    ) -> None:
        """`start_from` None: as the group is configured, but for topics that came after the consumer."""
        self._calls = calls
        self._routes = routes
        self._group = group
        self._start_from = start_from
        self._timestamp_ms = timestamp_ms
        self._due: dict[str, dict[MessageQueue, QueueOffset]] = {}
        """Topic to starts that no broker has stored yet."""
        self._settled: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._settler = asyncio.Lock()
        """Receives run at once: one of them settles, or a late one would move back what others have read."""

    async def settle(self, topics: Iterable[str]) -> None:
        """Raises what the brokers refuse with for good."""
        for topic in topics:
            tries = self._tries[topic]
            if self._policy(topic) is None:
                continue
            async with self._settler:
                policy = self._policy(topic)
                if policy is not None and tries == self._tries[topic]:  # else one more would fail just as the last one
                    try:
                        await self._settle(topic, policy)
                    finally:
                        self._tries[topic] += 1

    def _policy(self, topic: str) -> StartFrom | None:
        """None: nothing is to be done."""
        if topic in self._settled:
            return None
        return StartFrom.FIRST if self._routes.was_missing(topic) else self._start_from

    async def _settle(self, topic: str, policy: StartFrom) -> None:
        try:
            if topic not in self._due:
                if await self._begun(topic, policy):
                    self._settled.add(topic)
                    return
                self._due[topic] = await self._starts(topic, policy)
            await self._commit(topic)
        except (Unsupported, NotImplementedYet):
            self._settled.add(topic)
        except Error as error:
            if not error.retryable:
                raise
            log.info("group %s: its start on topic %s is not settled yet: %s", self._group, topic, error)
        else:
            self._settled.add(topic)
            del self._due[topic]

    async def _begun(self, topic: str, policy: StartFrom) -> bool:
        """True if all brokers of the topic have decided; False: one is too old for that."""
        route = await self._routes.get(topic)
        one_each = {queue.broker_name: queue for queue in route.readable}
        start = StartPolicy(policy, self._timestamp_ms)
        try:
            for name, queue in sorted(one_each.items()):
                await self._calls.begin(
                    route.address_of(name), self._group, queue, start, generation=NO_GENERATION, uid=""
                )
        except IllegalOffset:
            return False
        return True

    async def _starts(self, topic: str, policy: StartFrom) -> dict[MessageQueue, QueueOffset]:
        """Empty if the group has read the topic anywhere."""
        route = await self._routes.get(topic)
        timestamp_ms = self._timestamp_ms if policy is StartFrom.TIMESTAMP else 0
        ranges = await asyncio.gather(
            *(
                self._calls.query_offsets(
                    route.address_of(queue.broker_name), self._group, queue, timestamp_ms=timestamp_ms
                )
                for queue in route.readable
            )
        )
        if any(one.committed >= 0 for one in ranges):
            return {}
        return {
            queue: max(
                policy_start(topic, policy, maximum=one.maximum, at_timestamp=one.at_timestamp),
                QueueOffset(one.minimum),
            )
            for queue, one in zip(route.readable, ranges, strict=True)
        }

    async def _commit(self, topic: str) -> None:
        due = self._due[topic]
        for broker in sorted({queue.broker_name for queue in due}):
            some = {queue: offset for queue, offset in due.items() if queue.broker_name == broker}
            address = await self._routes.address(topic, broker)
            await self._calls.commit(address, self._group, some, generation=NO_GENERATION)
            for queue in some:
                del due[queue]
