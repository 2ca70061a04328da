"""Messages with a message group go to the group's home broker, whichever broker their producer chose (checklist 21).

The SDKs hash groups differently, so only the servers can keep one order for all of them. One hop; a message that was
passed on is stored where it came. Called by `rpc.sending.send` for topics that take ordered messages, and by
`rpc.sending.publishing`.

A home that is away keeps its groups for `message_group_away_ms`, and sends to them fail: what is stored elsewhere
meanwhile would be delivered before what the home still holds. From the moment that a broker stops it takes no messages
of its groups: they could only be delivered after its restart. A broker with copies takes them, as another copy answers
in its name.
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
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.rpc.answers import OK_STATUS, for_caller, parsed, several
from evenq_broker.rpc.cluster.forwarding import MARK, forward, owner_of
from evenq_broker.runtime import Runtime

__all__ = ["Homes"]

Send = Callable[[bytes, RpcContext], Awaitable[bytes]]
Owner = str | Error | None
"""The address of a message's broker; None: this one; an error: it takes no messages now."""


class Homes:
    """The homes of message groups."""

    def __init__(self, runtime: Runtime, catalog: Catalog, *, cluster: ClusterLink) -> None:
        self._runtime, self._catalog, self._cluster = runtime, catalog, cluster

    async def elsewhere(
        self, request: service_pb2.SendMessageRequest, data: bytes, context: RpcContext, *, send_here: Send
    ) -> bytes | None:
        """The answer, if some of the messages belong to other brokers; None: store them here. Raises ConnectionFailed
        if the home of all of them takes no messages now. `send_here`: stores a part of a list.
        """
        names, away = self._homes(request.messages[0].topic.name)
        if len(names) < 2:
            return None
        groups = [message.system_properties.message_group for message in request.messages]
        owners: dict[str, Owner] = {group: self._owner(group, names, away, context) for group in groups}
        if len({id(owner) if isinstance(owner, Error) else owner for owner in owners.values()}) == 1:
            owner = owners[groups[0]]
            if isinstance(owner, Error):
                raise owner
            return None if owner is None else await forward(self._runtime, owner, data, context)
        return await self._apart(request, [owners[group] for group in groups], context, send_here=send_here)

    def must_not_be_away(self, topic: str, groups: Iterable[str]) -> None:
        """Raises ConnectionFailed if the home of one of the groups is away: its producer started since, and does not
        know the broker.
        """
        names, away = self._homes(topic)
        for group in groups if away else ():
            if group and (home := home_of(group, names)) in away:
                raise self._is_away(home)

    def _homes(self, topic: str) -> tuple[list[str], list[str]]:
        """The brokers that message groups of the topic have as homes, and those of them that are away."""
        if self._runtime.settings.message_group_home != "cluster":
            return [], []
        names = [at.broker.name for at in self._catalog.routes.route(topic) if at.counts.permission.writable]
        away = self._cluster.known.homes(topic, self._runtime.settings.message_group_away_ms)
        return names + away, away

    def _owner(self, group: str, names: list[str], away: list[str], context: RpcContext) -> Owner:
        if not group:
            return None
        home = home_of(group, names)
        if home == self._runtime.settings.broker_name:
            stops = self._runtime.closing and self._runtime.leadership.copies == 1
            return self._stops() if stops else None
        if home in away and MARK not in context.headers:
            return self._is_away(home)
        return owner_of(self._runtime, self._catalog, home, context, cluster=self._cluster)

    def _stops(self) -> ConnectionFailed:
        return ConnectionFailed(
            f"broker {self._runtime.settings.broker_name} is stopping and takes no more messages of its message "
            "groups, so that their order stays; send again until it is back"
        )

    def _is_away(self, home: str) -> ConnectionFailed:
        limit_s = self._runtime.settings.message_group_away_ms // 1_000
        return ConnectionFailed(
            f"broker {home} is away, and the order of its message groups would be lost at another one; send again "
            f"until it is back. After {limit_s} s (message_group_away_ms) or `evenq broker forget {home}` others take "
            "them"
        )

    async def _apart(
        self, request: service_pb2.SendMessageRequest, owners: list[Owner], context: RpcContext, *, send_here: Send
    ) -> bytes:
        """A list for several homes: one call for each, one answer. What one of them says is true of its own messages
        only.
        """
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
        """The entries of one home's messages."""
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
            status = response.status
        ids = [message.system_properties.message_id for message in messages]
        return [service_pb2.SendResultEntry(status=status, message_id=message_id) for message_id in ids]
