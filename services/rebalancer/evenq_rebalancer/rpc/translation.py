"""Translation between messages of `evenq.v1.Assignment` and values of `core`, with all checks of received fields."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest, ClientIdRequired, IllegalGroup, IllegalTopic
from evenq.model import Generation, MessageModel, MessageQueue, group_problem, topic_problem
from evenq.model.balance import EVEN_BALANCE, BalancePolicy, Weight
from evenq.model.names import CLIENT_LENGTH_MAX, broker_problem
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2, groups_pb2, registry_pb2
from evenq_rebalancer.core.assignment_engine import AssignmentQuestion
from evenq_rebalancer.core.decisions import QueueOwnership
from evenq_rebalancer.core.holds import HOLDS_MAX, Hold
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.reports import (
    BrokerReport,
    GroupFact,
    HeldFact,
    HeldLater,
    HeldPlaceFact,
    HoldsFact,
    LagFact,
    MemberFact,
    ModeFact,
    TopicFact,
)
from evenq_rebalancer.core.simulate import Wish

READ_QUEUES_MAX = 4_096
BROKERS_READ_MAX = 1_000
STRATEGY_LENGTH_MAX = 127
LABEL_LENGTH_MAX = 255
PLACE_LENGTH_MAX = 1_024
"""Characters of `instance` and a label, or of namespace, kind and name."""
HOLD_TOPICS_MAX = 1_000
HOLD_QUEUES_MAX = 20_000
"""Held queues of one topic and group, as many as a decision carries."""
LAGS_MAX = 100_000
CAPACITY_MAX = 1_000_000.0
OWNER_PROTOCOL = "evenq"
"""`Member.protocol` of members that lock the queues they read."""
MEMBERS_KNOWN = 50_000
_UNREADABLE = {definition_pb2.NONE, definition_pb2.WRITE}

M_co = TypeVar("M_co", covariant=True)


class Parses(Protocol[M_co]):
    """A generated class."""

    def FromString(self, data: bytes, /) -> M_co: ...  # noqa: N802  protobuf's name


def parse(kind: Parses[M_co], data: bytes) -> M_co:
    """Returns the message in `data`. Raises BadRequest if it cannot be parsed."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        name = getattr(kind, "__name__", "message")
        raise BadRequest(f"the {len(data)} bytes of the request are not a valid {name}: {error}") from error


def ok() -> definition_pb2.Status:
    return definition_pb2.Status(code=definition_pb2.OK, message="OK")


def checked_pair(group: str, topic: str) -> tuple[str, str]:
    """Returns the two names. Raises IllegalGroup, IllegalTopic."""
    return _group(group), _topic(topic)


def question_of(request: assignment_pb2.AssignmentRequest) -> AssignmentQuestion:
    """Returns a member's query. Raises IllegalGroup, IllegalTopic, ClientIdRequired, BadRequest."""
    group, topic = checked_pair(request.group, request.topic)
    if not request.client_id.strip():
        raise ClientIdRequired("the query has no client_id; give that of the member")
    return AssignmentQuestion(
        group=group,
        topic=topic,
        client_id=_client(request.client_id),
        strategy=_strategy(request.strategy),
        model=_model(request.model),
    )


def report_of(message: assignment_pb2.BrokerReport, *, address: str = "") -> BrokerReport:
    """Returns a broker's facts. `address`: the host it reports from. Raises BadRequest, IllegalGroup, IllegalTopic."""
    problem = broker_problem(message.broker_name)
    if problem:
        raise BadRequest(problem)
    return BrokerReport(
        broker_name=message.broker_name,
        full=message.full,
        groups=tuple(_group_fact(facts) for facts in message.groups),
        groups_gone=tuple(message.groups_gone),
        topics=tuple(_topic_fact(entry) for entry in message.topics),
        topics_gone=tuple(message.topics_gone),
        lags=tuple(_lag_fact(lag) for lag in message.lags),
        zone=_label(message.zone),
        address=address,
        brokers=tuple(message.brokers[:BROKERS_READ_MAX]),
    )


def setting_of(
    request: assignment_pb2.SetMessageRequestModeRequest | assignment_pb2.TopicMode,
) -> RequestModeSetting:
    """Returns the request mode in a request. Raises BadRequest."""
    if request.mode not in {assignment_pb2.PULL, assignment_pb2.POP}:
        raise BadRequest(f"request mode {request.mode} is unknown; 0 is PULL, 1 is POP")
    mode = RequestMode.POP if request.mode == assignment_pb2.POP else RequestMode.PULL
    return RequestModeSetting(mode=mode, pop_share_queue_num=request.pop_share_queue_num)


def wish_of(request: assignment_pb2.SimulateRequest) -> Wish:
    """Returns the imagined change. Raises BadRequest."""
    return Wish(
        members=request.members,
        queues=request.queues,
        strategy=_strategy(request.strategy),
        lose_zone=_label(request.lose_zone),
    )


def topic_mode_message(topic: str, setting: RequestModeSetting, generation: Generation) -> assignment_pb2.TopicMode:
    """Encodes a request mode, for brokers to keep."""
    return assignment_pb2.TopicMode(
        topic=topic,
        mode=mode_message(setting.mode),
        pop_share_queue_num=setting.pop_share_queue_num,
        generation=generation_message(generation),
    )


def held_place_message(hold: Hold, queues: Iterable[tuple[str, list[int]]]) -> assignment_pb2.HeldPlace:
    """Encodes a hold and its queues (ids by broker name), for brokers to keep."""
    message = assignment_pb2.HeldPlace(client_id=hold.client_id, place=hold.place, until_wall_ms=hold.until_wall_ms)
    for broker_name, queue_ids in queues:
        message.queues.add(broker_name=broker_name, queue_ids=queue_ids)
    return message


def mode_message(mode: RequestMode) -> assignment_pb2.RequestMode.ValueType:
    return assignment_pb2.POP if mode is RequestMode.POP else assignment_pb2.PULL


def generation_message(generation: Generation) -> common_pb2.Generation:
    return common_pb2.Generation(epoch=generation.epoch, counter=generation.counter)


def queue_message(queue: MessageQueue) -> common_pb2.Queue:
    return common_pb2.Queue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)


def holding_message(holding: QueueOwnership) -> assignment_pb2.ExplainedQueue:
    return assignment_pb2.ExplainedQueue(
        queue=queue_message(holding.queue),
        owner=holding.owner,
        since_ms=holding.since_ms,
        reason=holding.reason,
        previous_owner=holding.previous_owner,
        state=holding.state,
        owner_zone=holding.owner_zone,
        broker_zone=holding.broker_zone,
        generation=generation_message(holding.generation),
    )


def _group_fact(facts: assignment_pb2.GroupFacts) -> GroupFact:
    return GroupFact(
        group=_group(facts.group),
        ordered=facts.ordered,
        strategy=_strategy(facts.strategy),
        members=tuple(_member_fact(member.SerializeToString()) for member in facts.members),
        balance=_balance(facts.balance) if facts.HasField("balance") else EVEN_BALANCE,
        held=_held_facts(facts) if facts.held else (),
        modes=tuple(
            ModeFact(topic=_topic(fact.topic), setting=setting_of(fact), generation=_generation(fact.generation))
            for fact in facts.modes
        ),
        holds=tuple(_holds_fact(fact) for fact in facts.holds[:HOLD_TOPICS_MAX]),
    )


@lru_cache(maxsize=MEMBERS_KNOWN)
def _member_fact(data: bytes) -> MemberFact:
    """Translates one member; cached, because each join reports the whole group again."""
    member = groups_pb2.Member.FromString(data)
    topics = sorted({_topic(subscription.topic) for subscription in member.subscriptions})
    capacity = member.capacity or 1.0
    if not (math.isfinite(capacity) and 0 < capacity <= CAPACITY_MAX):
        raise BadRequest(f"member {member.client_id[:80]!r} has capacity {capacity}, the range is above 0 to 1,000,000")
    return MemberFact(
        client_id=_client(member.client_id),
        model=_model(member.model),
        topics=tuple(topics),
        zone=_label(member.zone),
        instance=_label(member.instance),
        address=_label(member.address),
        capacity=capacity,
        owns=member.protocol == OWNER_PROTOCOL,
        strategy=_label(member.strategy),
    )


def _held_facts(facts: assignment_pb2.GroupFacts) -> HeldLater:
    """Reads only count, epoch and brokers now; the rows stay encoded until they are read. Brokers checked the holders'
    client ids when the members joined.
    """
    epoch = max(held.generation.epoch for held in facts.held)
    data = assignment_pb2.GroupFacts(held=facts.held).SerializeToString()

    def rows() -> tuple[HeldFact, ...]:
        held_facts = assignment_pb2.GroupFacts.FromString(data).held
        return tuple(
            HeldFact(queue=_queue(held.queue), holder=held.holder, generation=_generation(held.generation))
            for held in held_facts
        )

    brokers = frozenset({held.queue.broker_name for held in facts.held})
    return HeldLater(count=len(facts.held), epoch=epoch, brokers=brokers, make=rows)


def _holds_fact(message: assignment_pb2.TopicHolds) -> HoldsFact:
    """Leaves out excess or invalid holds: a lost hold costs a move, a refused report the whole broker."""
    topic, left, places = _topic(message.topic), HOLD_QUEUES_MAX, []
    for held in message.places[:HOLDS_MAX]:
        ids = ((part.broker_name, number) for part in held.queues for number in part.queue_ids)
        queues = tuple(MessageQueue(topic, name, number) for name, number in islice(ids, left))
        left -= len(queues)
        if 0 < len(held.client_id) <= CLIENT_LENGTH_MAX and len(held.place) <= PLACE_LENGTH_MAX and queues:
            places.append(
                HeldPlaceFact(
                    client_id=held.client_id, place=held.place, until_wall_ms=held.until_wall_ms, queues=queues
                )
            )
    return HoldsFact(topic=topic, places=tuple(places), generation=_generation(message.generation))


def _lag_fact(lag: assignment_pb2.GroupLag) -> LagFact:
    return LagFact(
        group=_group(lag.group), lags=tuple((_queue(row.queue), max(0, row.lag)) for row in lag.queues[:LAGS_MAX])
    )


def _generation(generation: common_pb2.Generation) -> Generation:
    return Generation(generation.epoch, generation.counter)


def _queue(queue: common_pb2.Queue) -> MessageQueue:
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def _balance(policy: groups_pb2.BalancePolicy) -> BalancePolicy:
    """Translates a policy that the broker has checked; an unknown weight of a newer broker counts as EVEN."""
    try:
        return BalancePolicy(
            weight=Weight(policy.weight) if policy.weight in set(Weight) else Weight.EVEN,
            moves_max=policy.moves_max,
            hold_ms=policy.hold_ms,
            hold_lag_max=policy.hold_lag_max if policy.hold_ms else 0,
        )
    except ValueError as error:
        raise BadRequest(f"a group's balance policy is out of range: {error}") from error


def _label(text: str) -> str:
    if len(text) > LABEL_LENGTH_MAX:
        raise BadRequest(f"a zone, instance or address has {len(text)} characters, the limit is {LABEL_LENGTH_MAX}")
    return text


def _topic_fact(entry: registry_pb2.TopicEntry) -> TopicFact:
    if not 0 <= entry.read_queues <= READ_QUEUES_MAX:
        raise BadRequest(
            f"topic {entry.name[:80]!r} has {entry.read_queues} read queues, the range is 0 to {READ_QUEUES_MAX}"
        )
    return TopicFact(topic=_topic(entry.name), read_queues=0 if entry.permission in _UNREADABLE else entry.read_queues)


def _group(name: str) -> str:
    problem = group_problem(name)
    if problem:
        raise IllegalGroup(problem)
    return name


def _topic(name: str) -> str:
    problem = topic_problem(name)
    if problem:
        raise IllegalTopic(problem)
    return name


def _client(client_id: str) -> str:
    if not 0 < len(client_id) <= CLIENT_LENGTH_MAX:
        raise BadRequest(f"a client id has {len(client_id)} characters, the range is 1 to {CLIENT_LENGTH_MAX}")
    return client_id


def _strategy(name: str) -> str:
    if len(name) > STRATEGY_LENGTH_MAX:
        raise BadRequest(f"a strategy name has {len(name)} characters, the limit is {STRATEGY_LENGTH_MAX}")
    return name


def _model(model: groups_pb2.MessageModel.ValueType) -> MessageModel:
    return MessageModel.BROADCASTING if model == groups_pb2.BROADCASTING else MessageModel.CLUSTERING
