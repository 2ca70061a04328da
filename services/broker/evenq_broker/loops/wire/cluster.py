"""Requests between brokers about topics, groups and themselves, and messages to and from nameservers. Parsing an answer
raises the error of its status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evenq.errors import BadRequest
from evenq.model import GroupConfig, MessageType, Permission, QueueCounts, TopicConfig
from evenq.wire import status
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import admin_pb2, data_pb2, peers_pb2, registry_pb2, routes_pb2
from evenq_broker.core.cluster.known_brokers import Away
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.cluster.unfinished import Left
from evenq_broker.core.state.records import BrokerKnown, ChangeKind, ChangePut
from evenq_broker.loops.wire.translation import (
    broker_state,
    broker_view,
    counts_of_entry,
    entry_of,
    group_settings,
    message_type_number,
    message_type_of,
)


class RouteNews(NamedTuple):
    """One event of the watch."""

    nameserver: str
    snapshot: bool
    """True: `brokers` are all that the nameserver knows."""
    settling: bool
    """The nameserver has just started, and may not know all brokers yet."""
    brokers: list[RegisteredBroker]
    removed: Sequence[str]
    left: Sequence[tuple[RegisteredBroker, int]] = ()
    """With a snapshot: brokers that left lately, and how long ago, ms."""


def register(own: RegisteredBroker) -> bytes:
    """Sends everything."""
    return registry_pb2.RegisterRequest(state=broker_state(own)).SerializeToString()


def heartbeat_interval_ms(response: bytes) -> int:
    """Returns the heartbeat interval that the nameserver requests in its answer to `register`; 0: none."""
    message = registry_pb2.RegisterResponse.FromString(response)
    status.check(message.status)
    return max(0, message.heartbeat_interval_ms)


def heartbeat(own: RegisteredBroker) -> bytes:
    """Reports that the broker is still there, unchanged."""
    return registry_pb2.RegistryHeartbeatRequest(
        broker_name=own.name, broker_id=own.broker_id, incarnation=own.incarnation, data_version=own.data_version
    ).SerializeToString()


def wants_everything(response: bytes) -> bool:
    """True if the nameserver does not know this broker, by its answer to `heartbeat`."""
    message = registry_pb2.RegistryHeartbeatResponse.FromString(response)
    status.check(message.status)
    return message.full_wanted


def unregister(own: RegisteredBroker) -> bytes:
    """Leaves the routes."""
    return registry_pb2.UnregisterRequest(
        broker_name=own.name, broker_id=own.broker_id, incarnation=own.incarnation
    ).SerializeToString()


def watch_routes(watcher: str) -> bytes:
    """Requests all routes and each change of them."""
    return registry_pb2.WatchRoutesRequest(watcher=watcher).SerializeToString()


def route_news(event: bytes) -> RouteNews:
    """Returns the event of a watch; brokers without an address are left out."""
    message = registry_pb2.RouteEvent.FromString(event)
    brokers = [view for state in message.brokers if (view := broker_view(state)) is not None]
    left = [(view, max(0, one.ago_ms)) for one in message.left if (view := broker_view(one.state)) is not None]
    return RouteNews(message.nameserver, message.snapshot, message.settling, brokers, message.removed, left)


@dataclass(frozen=True, slots=True)
class Placement:
    """Result for a topic on one broker."""

    broker_name: str
    counts: QueueCounts | None = None
    """As it is there; None: it could not be made."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class PeerChange:
    """A change that brokers have not confirmed, as one sends it to another."""

    change: ChangePut
    made: TopicConfig | None
    """The topic at the sender, if it was made or widened; its id is not valid here."""


# -------------------------------------------------------------------------------------------------------------- topics


def create_topic(
    name: str, kind: MessageType, *, queues: int, retention_ms: int | None, chosen: bool, uid: str
) -> bytes:
    """Requests that one broker makes or widens a topic; arguments as for `Catalog.create_topic`."""
    return admin_pb2.CreateTopicRequest(
        topic=name,
        message_type=message_type_number(kind),
        queues=queues,
        mixed=kind is MessageType.MIXED,
        retention_ms=retention_ms,
        chosen=chosen,
        uid=uid,
        local=True,
    ).SerializeToString()


def created_counts(broker_name: str, response: bytes) -> QueueCounts:
    """Returns the topic at that broker now, from its answer to `create_topic`."""
    message = admin_pb2.CreateTopicResponse.FromString(response)
    check(message.status)
    return counts_of_entry(broker_name, message.placements[0].entry)


def placement_messages(topic: str, placements: Iterable[Placement]) -> list[admin_pb2.TopicPlacement]:
    """Returns the wire form of placements."""
    return [
        admin_pb2.TopicPlacement(
            broker_name=one.broker_name,
            entry=None if one.counts is None else entry_of(topic, one.counts),
            error=one.error,
        )
        for one in placements
    ]


def delete_topic(name: str) -> bytes:
    """Requests that one broker forgets a topic."""
    return admin_pb2.DeleteTopicRequest(topic=name, local=True).SerializeToString()


def check_topic_deleted(response: bytes) -> None:
    """Checks the answer to `delete_topic`."""
    check(admin_pb2.DeleteTopicResponse.FromString(response).status)


# -------------------------------------------------------------------------------------------------------------- groups


def create_group(request: admin_pb2.CreateGroupRequest, group: GroupConfig) -> bytes:
    """Requests that one broker makes the group with all settings; older brokers follow only `request`."""
    complete = admin_pb2.CreateGroupRequest()
    complete.CopyFrom(request)
    complete.local = True
    complete.settings.CopyFrom(group_settings(group))
    return complete.SerializeToString()


def check_group_created(response: bytes) -> None:
    """Checks the answer to `create_group`."""
    check(admin_pb2.CreateGroupResponse.FromString(response).status)


def delete_group(name: str) -> bytes:
    """Requests that one broker deletes a group."""
    return admin_pb2.DeleteGroupRequest(group=name, local=True).SerializeToString()


def check_group_deleted(response: bytes) -> None:
    """Checks the answer to `delete_group`."""
    check(admin_pb2.DeleteGroupResponse.FromString(response).status)


def begun_question(group: str, topic: str) -> bytes:
    """Queries one broker whether a group has begun on a topic there."""
    return data_pb2.QueryOffsetsRequest(group=group, topic=topic).SerializeToString()


def begun_since(response: bytes) -> int:
    """Returns how long ago it did, ms; 0: it did not (older brokers: always), -1: at an unknown time."""
    message = data_pb2.QueryOffsetsResponse.FromString(response)
    check(message.status)
    return message.begun_ms


# ------------------------------------------------------------------------------------------------------------- brokers


def goodbye(own: RegisteredBroker, left: Left) -> bytes:
    """Reports that a drained broker ends, and its remains."""
    return admin_pb2.ForgetBrokerRequest(
        broker_name=own.name, local=True, leaving=own.incarnation, unread=left.unread, dead_letters=left.dead_letters
    ).SerializeToString()


def missing_messages(brokers: Iterable[BrokerKnown], changes: Mapping[str, int]) -> list[admin_pb2.MissingBroker]:
    """Returns the wire form of missing brokers; `changes` that each has not confirmed, by name."""
    return [
        admin_pb2.MissingBroker(
            name=one.name,
            gone_ms=one.gone_ms,
            unread=one.unread,
            dead_letters=one.dead_letters,
            changes=changes.get(one.name, 0),
        )
        for one in brokers
    ]


def away_messages(brokers: Iterable[Away]) -> list[routes_pb2.AwayBroker]:
    """Returns the wire form of brokers with queues of a topic that are not there."""
    return [
        routes_pb2.AwayBroker(
            broker_name=one.name, read_queues=one.read_queues, gone_ms=one.gone_ms, followers=one.followers
        )
        for one in brokers
    ]


# ------------------------------------------------------------------------------------------------- unconfirmed changes


def changes_message(sender: str, changes: Iterable[PeerChange]) -> bytes:
    """Sends another broker changes that it may not know."""
    return peers_pb2.CatalogChangesRequest(
        broker_name=sender,
        changes=[
            peers_pb2.CatalogChange(
                name=one.change.name,
                uid=one.change.uid,
                at_ms=one.change.at_ms,
                waiting=one.change.waiting,
                made=None if one.made is None else _definition(one.made),
            )
            for one in changes
        ],
    ).SerializeToString()


def changes_of(message: peers_pb2.CatalogChangesRequest) -> list[PeerChange]:
    """Returns the content of `changes_message`. Raises BadRequest."""
    try:
        return [_peer_change(one) for one in message.changes]
    except ValueError as error:
        raise BadRequest(str(error)) from error


def refusals_of(response: bytes) -> list[str]:
    """Returns why each change was not applied, "" if it was, from the answer to `changes_message`."""
    message = peers_pb2.CatalogChangesResponse.FromString(response)
    check(message.status)
    return list(message.refused)


def _definition(topic: TopicConfig) -> admin_pb2.CreateTopicRequest:
    kept_ms = -1 if topic.retention_ms is None else topic.retention_ms
    return admin_pb2.CreateTopicRequest(
        topic=topic.name,
        message_type=message_type_number(topic.message_type),
        queues=topic.write_queues,
        mixed=topic.message_type is MessageType.MIXED,
        retention_ms=kept_ms,
        uid=topic.uid,
        local=True,
    )


def _peer_change(message: peers_pb2.CatalogChange) -> PeerChange:
    made = None
    if message.HasField("made"):
        request = message.made
        made = TopicConfig(
            name=message.name,
            topic_id=0,
            message_type=message_type_of(request.message_type),
            read_queues=request.queues,
            write_queues=request.queues,
            permission=Permission.READ_WRITE,
            retention_ms=None if request.retention_ms < 0 else request.retention_ms,
            uid=message.uid,
        )
    gone = ChangeKind.TOPIC_DELETED if message.uid else ChangeKind.GROUP_DELETED
    kind = gone if made is None else ChangeKind.TOPIC_MADE
    change = ChangePut(kind, message.name, message.uid, message.at_ms, tuple(sorted(set(message.waiting))))
    return PeerChange(change, made)
