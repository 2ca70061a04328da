"""One order for each message group: its messages go to the home broker of the group (checklist 21).

Problem. Messages of a group must be in one queue, or no consumer can restore their order. The SDKs choose queues with
different hash functions, so two producers of one group would use two brokers. Only the servers can choose.

Idea. The home of a group is the broker with the greatest hash of group and broker name (`home_of`: rendezvous hashing).
Every broker computes it from the brokers of the route and those that are away, so brokers need not agree on a decision.
A broker that receives a message of another home forwards it. A list for several homes is split, and the answers are
joined in the order of the request.

Example: brokers broker-a, broker-b, broker-c. The homes of `order-1`, `order-3` and `order-6` are broker-a, broker-c
and broker-b. Of 10,000 groups g0 to g9999 they are the home of 3352, 3342 and 3306. Without broker-b, `order-6` moves
to broker-a; only the 3342 groups of broker-b move, as the order of the other hashes does not change.

Homes that do not accept messages (decision 108):
- A home that is away keeps its groups for `message_group_away_ms` (default 300,000), and sends to them fail. A message
  stored elsewhere meanwhile would be delivered before those that the home still holds. After that time the order is
  given up: other brokers store the messages, and those of the lost broker are delivered late.
- A home that is stopping refuses its groups: it could deliver their messages only after its restart. With copies it
  accepts them, because another copy will answer under its name.

Invariants:
- One hop: a forwarded message is stored where it arrives, so brokers with different routes cannot exchange it forever.
- An error of one home is the status of its own messages only.
- Messages without a message group are stored where they arrive, and all messages if fewer than two brokers qualify.

Used by `rpc.sending.send` for topics with ordered messages, and by `rpc.sending.publishing`. Reference: Thaler and
Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from evenq.errors import ConnectionFailed, Error
from evenq.model.lanes import home_of
from evenq.serving.rpc import RpcContext
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.state.frames import field
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK_STATUS, for_caller, parsed, several
from evenq_broker.rpc.cluster.forwarding import MARK, forward, owner_of

Send = Callable[[bytes, RpcContext], Awaitable[bytes]]
Owner = str | Error | None
"""The address of a message's broker; None: this one; an error: the home accepts no messages now."""


class Homes:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._cluster = kernel.runtime, kernel.catalog, cluster

    async def elsewhere(
        self, request: service_pb2.SendMessageRequest, data: bytes, context: RpcContext, *, send_here: Send
    ) -> bytes | None:
        """Returns the answer if some messages belong to other brokers; None: store all here. Raises ConnectionFailed if
        the home of all of them accepts no messages now. `send_here`: stores a part of a list.
        """
        names, away = self._homes(request.messages[0].topic.name)
        if len(names) < 2:
            return None
        groups = [message.system_properties.message_group for message in request.messages]
        owners: dict[str, Owner] = {group: self._owner(group, names, away, context) for group in groups}
        if len({id(owner) if isinstance(owner, Error) else owner for owner in owners.values()}) == 1:  # one home
            owner = owners[groups[0]]
            if isinstance(owner, Error):
                raise owner
            return None if owner is None else await forward(self._runtime, owner, data, context)
        return await self._apart(request, [owners[group] for group in groups], context, send_here=send_here)

    def must_not_be_away(self, topic: str, groups: Iterable[str]) -> None:
        """Raises ConnectionFailed if a home is away: its producer started after it left and does not know it."""
        names, away = self._homes(topic)
        for group in groups if away else ():
            if group and (home := home_of(group, names)) in away:
                raise self._is_away(home)

    def _homes(self, topic: str) -> tuple[list[str], list[str]]:
        """Returns the brokers that are homes of message groups of the topic, and those of them that are away."""
        if self._runtime.settings.message_group_home != "cluster":  # the producer chooses: no homes
            return [], []
        names = [at.broker.name for at in self._catalog.routes.route(topic) if at.counts.permission.writable]
        away = self._cluster.known.homes(topic, self._runtime.settings.message_group_away_ms)
        return names + away, away

    def _owner(self, group: str, names: list[str], away: list[str], context: RpcContext) -> Owner:
        if not group:
            return None
        home = home_of(group, names)
        if home == self._runtime.settings.broker_name:  # also of a forwarded message
            stops = self._runtime.closing and self._runtime.leadership.copies == 1
            return self._stops() if stops else None
        if home in away and MARK not in context.headers:
            return self._is_away(home)
        # None for a forwarded message: it is stored here.
        return owner_of(self._kernel, home, context, cluster=self._cluster)

    def _stops(self) -> ConnectionFailed:
        return ConnectionFailed(
            f"broker {self._runtime.settings.broker_name} is stopping and accepts no more messages of its message "
            "groups, to keep their order; send again until it is back"
        )

    def _is_away(self, home: str) -> ConnectionFailed:
        limit_s = self._runtime.settings.message_group_away_ms // 1_000
        return ConnectionFailed(
            f"broker {home} is away, and its message groups would lose their order at another one; send again until it "
            f"is back. After {limit_s} s (message_group_away_ms) or `evenq broker forget {home}` others accept them"
        )

    async def _apart(
        self, request: service_pb2.SendMessageRequest, owners: list[Owner], context: RpcContext, *, send_here: Send
    ) -> bytes:
        """Sends a list to several homes, with one call for each; returns one answer."""
        places: dict[Owner, list[int]] = {}
        for number, owner in enumerate(owners):
            places.setdefault(owner, []).append(number)
        parts = await asyncio.gather(
            *(
                self._part(owner, [request.messages[number] for number in numbers], context, send_here=send_here)
                for owner, numbers in places.items()
            )
        )
        entries: dict[int, service_pb2.SendResultEntry] = {}
        for numbers, part in zip(places.values(), parts, strict=True):
            entries.update(zip(numbers, part, strict=True))
        sent = [entries[number] for number in range(len(owners))]
        frames = b"".join(field(2, entry.SerializeToString()) for entry in sent)
        bad = [entry.status for entry in sent if entry.status.code != definition_pb2.OK]
        if not bad:
            return OK_STATUS + frames
        same = len(bad) == len(sent) and len({status.code for status in bad}) == 1
        return field(1, bad[0].SerializeToString() if same else several()) + frames

    async def _part(
        self, owner: Owner, messages: list[definition_pb2.Message], context: RpcContext, *, send_here: Send
    ) -> list[service_pb2.SendResultEntry]:
        data = service_pb2.SendMessageRequest(messages=messages).SerializeToString()
        try:
            if isinstance(owner, Error):
                raise owner
            answer = await (send_here(data, context) if owner is None else forward(self._runtime, owner, data, context))
        except Error as error:
            status = status_of(for_caller(error), context.language)
        else:
            response = parsed(service_pb2.SendMessageResponse, answer)
            if len(response.entries) == len(messages):
                return list(response.entries)
            status = response.status  # without entries it counts for each message
        ids = [message.system_properties.message_id for message in messages]
        return [service_pb2.SendResultEntry(status=status, message_id=message_id) for message_id in ids]
