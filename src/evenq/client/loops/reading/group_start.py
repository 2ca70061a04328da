"""The start of a simple consumer's group on a topic that the group never read, by the policy of the consumer.

It is settled at all brokers of the topic before the first receive, so that none of them begins by its own policy later.
The brokers decide by the policy in the call (`Calls.begin`). They take earlier progress into account, also of a
topic that was deleted and created again. Older brokers do not decide: then the start is queried and committed here.

`loops.receiving` calls it before each receive; it acts once per topic. A topic that was created after the consumer is
read from its first message. A broker that is unreachable is settled when it is back. Servers without evenq.v1 decide
alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from evenq.client.core.reading.start_offset import policy_start
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import Error, IllegalOffset, NotImplementedYet, Unsupported
from evenq.model import NO_GENERATION, MessageQueue, QueueOffset, StartFrom, StartPolicy

if TYPE_CHECKING:
    from evenq.client.rpc.calls import Calls


class GroupStart:
    def __init__(
        self,
        calls: Calls,
        routes: RouteBook,
        *,
        group: str,
        start_from: StartFrom | None,
        timestamp_ms: int,
        troubles: Troubles,
    ) -> None:
        """`start_from` None: by the group's setting, except for topics that were created after the consumer."""
        self._troubles = troubles
        self._calls = calls
        self._routes = routes
        self._group = group
        self._start_from = start_from
        self._timestamp_ms = timestamp_ms
        self._due: dict[str, dict[MessageQueue, QueueOffset]] = {}
        """By topic: starts that no broker has stored yet."""
        self._settled: set[str] = set()
        self._tries: Counter[str] = Counter()
        self._settler = asyncio.Lock()
        """Receives run concurrently: only one may settle, or a late one would move back the progress of others."""

    async def settle(self, topics: Iterable[str]) -> None:
        """Settles the start of each topic. Raises permanent errors of the brokers."""
        for topic in topics:
            tries = self._tries[topic]
            if self._policy(topic) is None:
                continue
            async with self._settler:
                policy = self._policy(topic)
                if policy is not None and tries == self._tries[topic]:  # otherwise another receive has just tried
                    try:
                        await self._settle(topic, policy)
                    finally:
                        self._tries[topic] += 1

    def _policy(self, topic: str) -> StartFrom | None:
        """Returns the policy of a topic that is not settled; None: there is nothing to do."""
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
            self._troubles.noted(f"the start on topic {topic}", error)
        else:
            self._troubles.well(f"the start on topic {topic}")
            self._settled.add(topic)
            del self._due[topic]

    async def _begun(self, topic: str, policy: StartFrom) -> bool:
        """True once all brokers of the topic have decided; False: one of them is too old."""
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
        """Returns the start offsets by policy; empty if the group has read the topic anywhere."""
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
