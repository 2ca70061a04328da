"""A member's session with a broker (`evenq.v1.Groups/Session`): requests out, events in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import overload

from evenq.client.core.calls import GroupTerms, Join, Leave, MemberInfo, SessionEvent, Welcome
from evenq.client.rpc.calls import GROUPS, Calls
from evenq.client.rpc.translation import filter_of, model_queue
from evenq.errors import DuplicateClientId
from evenq.model import Generation, MessageModel, MessageQueue
from evenq.model.session_events import (
    AssignmentChanged,
    BrokerLeaving,
    MembersChanged,
    OffsetsReset,
    QueueWanted,
    SettingsChanged,
)
from evenq.runtime.net import Net, close_frames
from evenq.runtime.version import __version__
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import groups_pb2

LABEL_MAX = 127


class RpcConsumerCalls(Calls):
    """`Calls` with the session: the calls of a push consumer."""

    def __init__(self, net: Net, *, endpoint: str, client_id: str, timeout_ms: int = 3_000) -> None:
        super().__init__(net, endpoint=endpoint, client_id=client_id, timeout_ms=timeout_ms, reads=True)

    async def session(self, address: str, requests: AsyncIterator[Join | Leave | None]) -> AsyncIterator[SessionEvent]:
        """Opens a member's session; yields the broker's events. None among the requests is a heartbeat. Raises the
        error with which the broker refuses the member.
        """
        frames = self.stream(address, GROUPS + "Session", self._encoded(requests), timeout_ms=None)
        try:
            async for frame in frames:
                event = _event(groups_pb2.SessionEvent.FromString(frame))
                if event is not None:
                    yield event
        finally:
            await close_frames(frames)

    async def _encoded(self, requests: AsyncIterator[Join | Leave | None]) -> AsyncIterator[bytes]:
        async for request in requests:
            wire = groups_pb2.SessionRequest()
            match request:
                case None:
                    wire.beat.SetInParent()
                case Leave():
                    wire.leave.SetInParent()
                case Join():
                    self._fill(wire.join, request)
            yield wire.SerializeToString()

    def _fill(self, wire: groups_pb2.Join, join: Join) -> None:
        wire.group = join.group
        member = wire.member
        member.client_id = self.client_id
        member.language, member.version, member.protocol = "PYTHON", __version__, "evenq"
        member.zone, member.instance, member.capacity = join.zone, join.instance, join.capacity
        wire.incarnation, wire.hands_over = join.incarnation, join.hands_over
        member.refuses_resets, member.strategy = join.refuses_resets, _label(join.strategy)
        member.unordered = join.unordered
        if join.model is MessageModel.BROADCASTING:
            member.model = groups_pb2.BROADCASTING
        for topic, expression in join.subscriptions.items():
            member.subscriptions.add(topic=topic, filter=filter_of(expression), version=join.version)


def _label(name: str) -> str:
    """Returns a strategy's name, which may be the user's own, within a broker's limits of a label."""
    return "".join(filter(str.isprintable, name))[:LABEL_MAX]


class _Members(Sequence[MemberInfo]):
    """List of members, decoded at its first use: it is long, and members with server assignments never read it."""

    def __init__(self, wire: Sequence[groups_pb2.Member]) -> None:
        self._wire = wire

    @cached_property
    def _all(self) -> tuple[MemberInfo, ...]:
        return tuple(_member(member) for member in self._wire)

    def __len__(self) -> int:
        return len(self._wire)

    @overload
    def __getitem__(self, index: int) -> MemberInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MemberInfo]: ...
    def __getitem__(self, index: int | slice) -> MemberInfo | Sequence[MemberInfo]:
        return self._all[index]


def _member(wire: groups_pb2.Member) -> MemberInfo:
    return MemberInfo(wire.client_id, wire.protocol, frozenset(entry.topic for entry in wire.subscriptions))


def _settings(wire: groups_pb2.GroupSettings) -> GroupTerms:
    return GroupTerms(wire.max_attempts, wire.start_from, wire.strategy)


def _changed(wire: groups_pb2.AssignmentChanged) -> AssignmentChanged[tuple[MessageQueue, ...]]:
    generation = Generation(wire.generation.epoch, wire.generation.counter)
    if not wire.HasField("share"):
        return AssignmentChanged(wire.topic, generation)
    queues = [
        MessageQueue(wire.topic, part.broker_name, number) for part in wire.share.queues for number in part.queue_ids
    ]
    return AssignmentChanged(wire.topic, generation, tuple(sorted(queues)))


def _event(wire: groups_pb2.SessionEvent) -> SessionEvent | None:
    match wire.WhichOneof("event"):
        case "welcome":
            welcome = wire.welcome
            return Welcome(
                welcome.beat_interval_ms,
                _Members(welcome.members),
                _settings(welcome.settings),
                welcome.session_timeout_ms,
                welcome.revoke_ms,
            )
        case "settings_changed":
            return SettingsChanged(_settings(wire.settings_changed.settings))
        case "members_changed":
            return MembersChanged(_Members(wire.members_changed.members))
        case "assignment_changed":
            return _changed(wire.assignment_changed)
        case "queue_wanted":
            return QueueWanted(model_queue(wire.queue_wanted.queue))
        case "offsets_reset":
            return OffsetsReset(tuple(model_queue(queue) for queue in wire.offsets_reset.queues))
        case "broker_leaving":
            return BrokerLeaving(wire.broker_leaving.drain_ms)
        case "refused":
            if wire.refused.duplicate:
                raise DuplicateClientId(wire.refused.status.message)
            check(wire.refused.status)
    return None  # an event of a later version
