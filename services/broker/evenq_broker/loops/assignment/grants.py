"""Owners of queues, for 5.x clients that received queues of their own from the rebalancer (wire contract 6.3).

A push consumer that names a real queue waits for it only while it owns the queue. When a decision moves the queue, its
long poll ends with MESSAGE_NOT_FOUND immediately. Further polls do not wait until the client has queried its assignment
again, so that the new owner gets the messages. The rebalancer is queried for the owners once per decision. In doubt
every client may read: without a rebalancer, while it is away, and for queues without an owner. A message that two
clients wait for still goes to one of them only. Called by `rpc.delivery.receive`; receives decisions from
`loops.groups.sessions`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from evenq.errors import Error
from evenq.model import GroupConfig, MessageType, TopicConfig
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.assignment import ask_owners, owners_of

log = logging.getLogger(__name__)

KEPT_MAX = 10_000
ASK_TIMEOUT_MS = 1_000
_SHARED = frozenset({MessageType.PRIORITY, MessageType.LITE})

Key = tuple[str, str]
"""Group and topic."""


class Grants:
    """Owners of this broker's queues, as the rebalancer decided, for groups whose clients name real queues."""

    def __init__(self, kernel: Kernel, *, long_polls: LongPolls, rebalancer: RebalancerLink | None) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._long_polls, self._rebalancer = long_polls, rebalancer
        self._owners: OrderedDict[Key, dict[int, str]] = OrderedDict()
        self._asking: dict[Key, bool] = {}
        """True: something changed since the query was sent."""

    def may(self, group: GroupConfig, topic: TopicConfig, client_id: str, queue_id: int) -> bool:
        """False if another member certainly owns the queue."""
        link = self._rebalancer
        if link is None or not link.connected or not group.strategy or topic.message_type in _SHARED:
            return True
        key = (group.name, topic.name)
        owners = self._owners.get(key)
        if owners is None:
            self._ask(key)
            return True
        return owners.get(queue_id, client_id) == client_id

    def changed(self, group: str, topic: str) -> None:
        """Queries the owners again: there is a newer decision; empty topic: about any of the group."""
        for key in [key for key in self._owners if key[0] == group and topic in {"", key[1]}]:
            self._ask(key)

    def _ask(self, key: Key) -> None:
        if key in self._asking:
            self._asking[key] = True
            return
        self._asking[key] = False
        self._runtime.spawn(self._learn(key), name=f"owners of {key[1]} in {key[0]}")

    async def _learn(self, key: Key) -> None:
        try:
            while True:
                self._asking[key] = False
                self._keep(key, await self._ask_owners(key))
                self._apply(key)
                if not self._asking[key]:
                    return
        finally:
            del self._asking[key]

    async def _ask_owners(self, key: Key) -> dict[int, str]:
        link = self._rebalancer
        try:
            assert link is not None, "queries need a link"
            response = await link.forward("/evenq.v1.Assignment/Explain", ask_owners(*key), ASK_TIMEOUT_MS)
            return owners_of(response, key[1], self._runtime.settings.broker_name)
        except Error as error:
            log.debug("group %s: owners of the queues of topic %s are not known: %s", *key, error.message)
            return {}

    def _keep(self, key: Key, owners: dict[int, str]) -> None:
        self._owners[key] = owners
        self._owners.move_to_end(key)
        if len(self._owners) > KEPT_MAX:
            self._owners.popitem(last=False)

    def _apply(self, key: Key) -> None:
        """Ends the polls of clients that lost a queue, and those that were held until the client owns the queue."""
        group, topic = self._catalog.groups.get(key[0]), self._catalog.topics.get(key[1])
        owners = self._owners.get(key, {})
        if group is None or topic is None or topic.message_type in _SHARED:
            return
        polls = self._long_polls.table
        over = [
            poll
            for poll in polls.of_queues(group.group_id, topic.topic_id)
            if any(owners.get(queue_id, poll.client_id) != poll.client_id for _, queue_id in poll.known or ())
        ]
        for queue_id in range(topic.read_queues):
            held = polls.held(topic.topic_id, queue_id)
            over += [poll for poll in held if owners.get(queue_id, poll.client_id) == poll.client_id]
        self._long_polls.end(over)
