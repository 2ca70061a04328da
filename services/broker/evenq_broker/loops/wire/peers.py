"""Messages between two brokers: waiting polls and notices of messages (`loops.polls.cluster_polls`), liveness of v2
clients (`loops.groups.departures`), checks of transactions (`loops.transactions`), group settings, page by page
(`loops.groups.settings`), and subscriptions of lite topics with their start offsets (`loops.lite`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest
from evenq.model import BalancePolicy, GroupConfig
from evenq.model.retry import RetryPolicy
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2, groups_pb2, peers_pb2
from evenq_broker.core.lite.subscriptions import LiteSet, RequestedStart, Subscriber
from evenq_broker.core.polls.interest import Want
from evenq_broker.loops.wire.translation import balance_of, group_settings, retry_of

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
COPIED_BYTES_MAX = 1 << 20
"""Of one message to another copy, which takes 2 MiB."""
ASK_LITE_SETS = peers_pb2.LiteSubscriptionsRequest().SerializeToString()
"""Queries the sets that another broker knows."""


class LiteNews(NamedTuple):
    """Sets that the leader of a group sends to the other copies."""

    version: int
    """Of the sets; unique to each term of leadership."""
    sets: Sequence[LiteSet]


def lite_sets_for_copy(broker_name: str, sets: Iterable[LiteSet]) -> bytes:
    """Returns the leader's message to another copy, with as many sets as fit; clients repeat the rest."""
    request, size = peers_pb2.LiteSubscriptionsRequest(broker_name=broker_name), 0
    for message in lite_set_messages(sets):
        size += message.ByteSize()
        if size > COPIED_BYTES_MAX:
            break
        request.sets.append(message)
    return request.SerializeToString()


def accepted(response: bytes) -> None:
    """Raises the error of the answer's status, and BadRequest for an invalid message."""
    try:
        check(peers_pb2.LiteSubscriptionsResponse.FromString(response).status)
    except DecodeError as error:
        raise BadRequest(f"{len(response)} bytes that are not an answer to lite subscriptions: {error}") from error


def lite_start_of(option: definition_pb2.OffsetOption) -> RequestedStart:
    """Returns the start that a client requests."""
    kind = option.WhichOneof("offset_type")
    return RequestedStart("", option.policy) if kind is None else RequestedStart(kind, int(getattr(option, kind)))


def lite_set_messages(sets: Iterable[LiteSet]) -> list[peers_pb2.LiteSet]:
    """Returns the wire form of clients' subscriptions."""
    return [
        peers_pb2.LiteSet(client_id=who.client_id, group=who.group, topic=who.parent, lite_topics=names, age_ms=age_ms)
        for who, names, age_ms in sets
    ]


def lite_sets_of(response: bytes) -> list[LiteSet]:
    """Returns the sets that another broker sent. Raises the error of its status."""
    message = peers_pb2.LiteSubscriptionsResponse.FromString(response)
    check(message.status)
    return lite_sets_in(message.sets)


def lite_sets_in(messages: Iterable[peers_pb2.LiteSet]) -> list[LiteSet]:
    """Returns the content of `lite_set_messages`."""
    return [
        LiteSet(Subscriber(entry.client_id, entry.group, entry.topic), entry.lite_topics, max(0, entry.age_ms))
        for entry in messages
    ]


class PeerSettings:
    """One group's settings from another broker, unchecked."""

    __slots__ = ("_message", "group", "max_attempts", "ordered", "revised_ms", "start_from", "strategy")

    def __init__(self, group: str, message: groups_pb2.GroupSettings) -> None:
        self._message = message
        self.group = group
        self.ordered = message.ordered
        self.max_attempts = message.max_attempts
        self.strategy = message.strategy
        self.start_from = message.start_from
        self.revised_ms = message.revised_ms
        """When an operator requested them, ms since the epoch."""

    def retry(self) -> RetryPolicy:
        """Returns the retry policy. Raises BadRequest for an invalid one."""
        return retry_of(self._message.retry)

    def balance(self) -> BalancePolicy:
        """Returns the balance policy. Raises BadRequest for an invalid one."""
        return balance_of(self._message.balance)


class SettingsPage(NamedTuple):
    """Some of a broker's groups, ascending by name."""

    groups: list[PeerSettings]
    more: bool


def ask_settings(broker_name: str, *, back: bool, after: str) -> bytes:
    """Queries the groups behind `after`. `back`: the called broker has just called this one."""
    return peers_pb2.GroupSettingsRequest(broker_name=broker_name, back=back, after=after).SerializeToString()


def page_of(response: bytes) -> SettingsPage:
    """Returns the answer to `ask_settings`. Raises the error of its status."""
    message = peers_pb2.GroupSettingsResponse.FromString(response)
    check(message.status)  # before the groups: a rejection must not look like a last page without any
    return SettingsPage([PeerSettings(entry.group, entry.settings) for entry in message.groups], message.more)


def settings_page(groups: Sequence[GroupConfig], *, more: bool) -> bytes:
    """Returns the answer with these groups."""
    return peers_pb2.GroupSettingsResponse(
        status=OK,
        groups=[peers_pb2.NamedSettings(group=group.name, settings=group_settings(group)) for group in groups],
        more=more,
    ).SerializeToString()


class WaitingNews(NamedTuple):
    """One message of a peer on its line."""

    broker_name: str
    """Sent with the first one."""
    counts: list[tuple[Want, int]]


def interest_hello(broker_name: str) -> bytes:
    """Returns the first request of a line, which names the sender."""
    return peers_pb2.InterestRequest(broker_name=broker_name).SerializeToString()


def waiting_polls(counts: Mapping[Want, int]) -> bytes:
    """Returns a request with the numbers of parked polls."""
    request = peers_pb2.InterestRequest()
    for want, count in counts.items():
        request.waiting.add(group=want.group, topic=want.topic, push=want.push, count=count)
    return request.SerializeToString()


def interest_of(request: bytes) -> WaitingNews:
    """Returns the content of `interest_hello` or `waiting_polls`; nothing for no bytes."""
    message = peers_pb2.InterestRequest.FromString(request)
    counts = [(Want(one.group, one.topic, one.push), one.count) for one in message.waiting]
    return WaitingNews(message.broker_name, counts)


def notices(wants: Iterable[Want]) -> bytes:
    """Returns an event: a message is deliverable to one poll of each."""
    event = peers_pb2.InterestEvent()
    for want in wants:
        event.deliverable.add(group=want.group, topic=want.topic, push=want.push)
    return event.SerializeToString()


def notices_of(event: bytes) -> list[Want]:
    """Returns the content of `notices`."""
    message = peers_pb2.InterestEvent.FromString(event)
    return [Want(notice.group, notice.topic, notice.push) for notice in message.deliverable]


class ClientsKnown(NamedTuple):
    """A broker's knowledge of clients that another one doubts."""

    alive: Mapping[str, int]
    """Client id to ms since its last call there; 0: it has a stream or a waiting poll there."""
    gone: frozenset[str]
    """They ended there by their own message and made no call since."""


def clients_request(*, ended: Iterable[str] = (), asked: Iterable[str] = ()) -> bytes:
    """Reports ends, and queries which clients live."""
    return peers_pb2.ClientsRequest(ended=ended, asked=asked).SerializeToString()


def clients_known(response: bytes) -> ClientsKnown:
    """Returns the other broker's answer. Raises the error of its status."""
    message = peers_pb2.ClientsResponse.FromString(response)
    check(message.status)
    silent_ms = [*message.silent_ms, *[0] * len(message.alive)]  # an older version leaves it out
    return ClientsKnown(dict(zip(message.alive, silent_ms, strict=False)), frozenset(message.gone))


def relay_check(topic: str, client_id: str, command: bytes, *, sender_only: bool = False) -> bytes:
    """Requests that `command` is sent to that client, otherwise to a producer of the topic unless `sender_only`."""
    request = data_pb2.RelayCheckRequest(topic=topic, client_id=client_id, command=command, sender_only=sender_only)
    return request.SerializeToString()


def was_sent(response: bytes) -> bool:
    """True if the other broker found a producer, by its RelayCheckResponse."""
    return data_pb2.RelayCheckResponse.FromString(response).sent
