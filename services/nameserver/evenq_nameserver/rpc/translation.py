"""Translation between registry entries and protobuf, with all checks of received names and numbers."""

from __future__ import annotations

from typing import Any

from evenq.errors import BadRequest, IllegalTopic, NotImplementedYet, TooManyRequests
from evenq.model.names import broker_problem, topic_problem
from evenq.model.route import BrokerAddress
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq_nameserver.core.registry import BrokerEntry, RegisteredTopic, RouteChange, TopicEntry

LISTENERS_MAX = 17
FOLLOWERS_MAX = 16
QUEUES_MAX = 4_096
TEXT_MAX = 255


def entry_of(state: registry_pb2.BrokerState, *, topics_max: int) -> BrokerEntry:
    """Returns the checked entry. Raises BadRequest, IllegalTopic, TooManyRequests, NotImplementedYet."""
    info = state.broker
    problem = broker_problem(info.name)
    if problem:
        raise BadRequest(problem)
    if info.id != 0:
        raise NotImplementedYet(
            f"broker {info.name!r} has id {info.id}: replicas are not served yet, register with id 0"
        )
    if not 1 <= len(info.incarnation) <= TEXT_MAX or max(len(info.cluster), len(info.version)) > TEXT_MAX:
        raise BadRequest(
            f"incarnation, cluster and version of broker {info.name!r} must have at most {TEXT_MAX} characters"
        )
    if min(info.epoch, info.start_ms, info.copies, state.data_version) < 0:
        raise BadRequest(f"epoch, start_ms, copies and data_version of broker {info.name!r} must not be negative")
    if not 1 <= len(info.listeners) <= LISTENERS_MAX:
        raise BadRequest(f"broker {info.name!r} has {len(info.listeners)} listeners, the range is 1 to {LISTENERS_MAX}")
    if len(state.topics) > topics_max:
        raise TooManyRequests(
            f"broker {info.name!r} has {len(state.topics)} topics, the nameserver takes {topics_max}; raise topics_max"
        )
    return BrokerEntry(
        name=info.name,
        broker_id=info.id,
        cluster=info.cluster,
        epoch=info.epoch,
        incarnation=info.incarnation,
        start_ms=info.start_ms,
        copies=info.copies,
        followers=_followers(info),
        version=info.version,
        addresses=tuple(_address(listener, info.name) for listener in info.listeners),
        data_version=state.data_version,
        topics={topic.name: _topic(topic, info.name) for topic in state.topics},
    )


def _followers(info: registry_pb2.BrokerInfo) -> tuple[str, ...]:
    if len(info.followers) > FOLLOWERS_MAX or any(not 1 <= len(one) <= TEXT_MAX for one in info.followers):
        raise BadRequest(
            f"broker {info.name!r} names {len(info.followers)} followers; the limit is {FOLLOWERS_MAX}, of 1 to "
            f"{TEXT_MAX} characters each"
        )
    return tuple(info.followers)


def _address(listener: registry_pb2.Listener, broker: str) -> BrokerAddress:
    if not 1 <= len(listener.host) <= TEXT_MAX or not 1 <= listener.port <= 65_535 or len(listener.name) > TEXT_MAX:
        raise BadRequest(
            f"listener {listener.name!r} of broker {broker!r} is {listener.host!r}:{listener.port}; give a host, and a "
            "port of 1 to 65535"
        )
    return BrokerAddress(listener.name, listener.host, listener.port, listener.tls)


def _topic(topic: registry_pb2.TopicEntry, broker: str) -> TopicEntry:
    problem = topic_problem(topic.name)
    if problem:
        raise IllegalTopic(problem)
    for count in (topic.read_queues, topic.write_queues):
        if not 0 <= count <= QUEUES_MAX:
            raise BadRequest(f"topic {topic.name!r} on {broker!r} has {count} queues, the range is 0 to {QUEUES_MAX}")
    if len(topic.uid) > TEXT_MAX:
        raise BadRequest(f"the uid of topic {topic.name!r} on {broker!r} must have at most {TEXT_MAX} characters")
    return TopicEntry(
        name=topic.name,
        message_type=int(topic.message_type),
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=int(topic.permission),
        chosen=topic.chosen,
        uid=topic.uid,
    )


def info_of(entry: BrokerEntry, message: registry_pb2.BrokerInfo) -> None:
    """Fills in the identity and addresses of a broker."""
    message.name = entry.name
    message.id = entry.broker_id
    message.cluster = entry.cluster
    message.epoch = entry.epoch
    message.incarnation = entry.incarnation
    message.version = entry.version
    message.start_ms = entry.start_ms
    message.copies = entry.copies
    message.followers.extend(entry.followers)
    for address in entry.addresses:
        message.listeners.add(name=address.listener, host=address.host, port=address.port, tls=address.tls)


def fill_route(route: RegisteredTopic, message: registry_pb2.TopicRoute) -> None:
    """Fills in a topic's route (RT-1: addresses, broker names, read and write queue counts)."""
    message.topic = route.topic
    message.version = route.version
    for entry in route.brokers:
        node = message.brokers.add()
        info_of(entry, node.broker)
        _fill_topic(entry.topics[route.topic], node.entry)


def snapshot_event(nameserver: str, version: int, brokers: list[BrokerEntry], *, settling: bool = False) -> bytes:
    """Returns the encoded first event of a watch. `settling`: live brokers may be missing in it."""
    event = registry_pb2.RouteEvent(version=version, nameserver=nameserver, snapshot=True, settling=settling)
    for entry in brokers:
        _fill_state(entry, event.brokers.add())
    return event.SerializeToString()


def left_part(left: list[tuple[BrokerEntry, int]]) -> bytes:
    """Returns the brokers that left, and how long ago, encoded: the end of a snapshot."""
    event = registry_pb2.RouteEvent()
    for entry, ago_ms in left:
        message = event.left.add(ago_ms=ago_ms)
        _fill_state(entry, message.state)
    return event.SerializeToString()


def change_event(nameserver: str, change: RouteChange) -> bytes:
    event = registry_pb2.RouteEvent(version=change.version, nameserver=nameserver)
    if change.broker is not None:
        _fill_state(change.broker, event.brokers.add())
    if change.removed:
        event.removed.append(change.removed)
    return event.SerializeToString()


def _fill_state(entry: BrokerEntry, message: registry_pb2.BrokerState) -> None:
    info_of(entry, message.broker)
    message.data_version = entry.data_version
    for topic in entry.topics.values():
        _fill_topic(topic, message.topics.add())


def _fill_topic(topic: TopicEntry, message: Any) -> None:
    message.name = topic.name
    message.message_type = topic.message_type
    message.read_queues = topic.read_queues
    message.write_queues = topic.write_queues
    message.permission = topic.permission
    message.chosen = topic.chosen
    message.uid = topic.uid
