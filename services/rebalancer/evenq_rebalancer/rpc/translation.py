"""Between the messages of `evenq.v1.Assignment` and the words of `core`. Everything that comes from outside is checked
here.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest, ClientIdRequired, IllegalGroup, IllegalTopic
from evenq.model import MessageModel, MessageQueue, group_problem, topic_problem
from evenq.model.names import CLIENT_LENGTH_MAX, broker_problem
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2, groups_pb2, registry_pb2
from evenq_rebalancer.core.board import Question
from evenq_rebalancer.core.decisions import Generation, Holding
from evenq_rebalancer.core.groups import GroupFact, MemberFact, Report, TopicFact
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting

__all__ = [
    "checked_pair",
    "generation_message",
    "holding_message",
    "mode_message",
    "ok",
    "parse",
    "question_of",
    "queue_message",
    "report_of",
    "setting_of",
]

READ_QUEUES_MAX = 4_096
STRATEGY_LENGTH_MAX = 127
_UNREADABLE = {definition_pb2.NONE, definition_pb2.WRITE}

M_co = TypeVar("M_co", covariant=True)


class Parses(Protocol[M_co]):
    """A generated class."""

    def FromString(self, data: bytes, /) -> M_co: ...  # noqa: N802  protobuf's name


def parse(kind: Parses[M_co], data: bytes) -> M_co:
    """The message in `data`. Raises BadRequest if it is none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        name = getattr(kind, "__name__", "message")
        raise BadRequest(f"the {len(data)} bytes of the request are no {name}: {error}") from error


def ok() -> definition_pb2.Status:
    """All is well."""
    return definition_pb2.Status(code=definition_pb2.OK, message="OK")


def checked_pair(group: str, topic: str) -> tuple[str, str]:
    """The two names. Raises IllegalGroup, IllegalTopic."""
    return _group(group), _topic(topic)


def question_of(request: assignment_pb2.AssignmentRequest) -> Question:
    """A member's question. Raises IllegalGroup, IllegalTopic, ClientIdRequired, BadRequest."""
    group, topic = checked_pair(request.group, request.topic)
    if not request.client_id.strip():
        raise ClientIdRequired("the question has no client_id; tell who asks")
    return Question(
        group=group,
        topic=topic,
        client_id=_client(request.client_id),
        strategy=_strategy(request.strategy),
        model=_model(request.model),
    )


def report_of(message: assignment_pb2.BrokerReport) -> Report:
    """A broker's facts. Raises BadRequest, IllegalGroup, IllegalTopic; then nothing of the report counts."""
    problem = broker_problem(message.broker_name)
    if problem:
        raise BadRequest(problem)
    return Report(
        broker_name=message.broker_name,
        full=message.full,
        groups=tuple(_group_fact(facts) for facts in message.groups),
        groups_gone=tuple(message.groups_gone),
        topics=tuple(_topic_fact(entry) for entry in message.topics),
        topics_gone=tuple(message.topics_gone),
    )


def setting_of(request: assignment_pb2.SetMessageRequestModeRequest) -> RequestModeSetting:
    """The request mode in a request. Raises BadRequest."""
    if request.mode not in {assignment_pb2.PULL, assignment_pb2.POP}:
        raise BadRequest(f"request mode {request.mode} is unknown; 0 is PULL, 1 is POP")
    mode = RequestMode.POP if request.mode == assignment_pb2.POP else RequestMode.PULL
    return RequestModeSetting(mode=mode, pop_share_queue_num=request.pop_share_queue_num)


def mode_message(mode: RequestMode) -> assignment_pb2.RequestMode.ValueType:
    """PULL or POP."""
    return assignment_pb2.POP if mode is RequestMode.POP else assignment_pb2.PULL


def generation_message(generation: Generation) -> common_pb2.Generation:
    """A generation."""
    return common_pb2.Generation(epoch=generation.epoch, counter=generation.counter)


def queue_message(queue: MessageQueue) -> common_pb2.Queue:
    """A message queue."""
    return common_pb2.Queue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)


def holding_message(holding: Holding) -> assignment_pb2.ExplainedQueue:
    """Who has a queue."""
    return assignment_pb2.ExplainedQueue(
        queue=queue_message(holding.queue),
        owner=holding.owner,
        since_ms=holding.since_ms,
        reason=holding.reason,
        previous_owner=holding.previous_owner,
    )


def _group_fact(facts: assignment_pb2.GroupFacts) -> GroupFact:
    return GroupFact(
        group=_group(facts.group),
        ordered=facts.ordered,
        strategy=_strategy(facts.strategy),
        members=tuple(_member_fact(member) for member in facts.members),
    )


def _member_fact(member: groups_pb2.Member) -> MemberFact:
    topics = sorted({_topic(subscription.topic) for subscription in member.subscriptions})
    return MemberFact(client_id=_client(member.client_id), model=_model(member.model), topics=tuple(topics))


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
