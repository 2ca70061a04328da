"""Messages between a broker and the rebalancer: decisions and queries. Reports are in `loops.wire.reports`.

Called by `loops.assignment` and `loops.groups`. Parsing an answer raises the error of its status. A member's share and
a topic's request mode are passed on unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

from evenq.model import Generation
from evenq.wire import status
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2
from evenq_broker.core.assignment.local import Answer
from evenq_broker.loops.wire.translation import generation_of, queue_of

Share = common_pb2.Share
"""A member's part of a decision, for the member's stream."""
TopicMode = assignment_pb2.TopicMode
"""A topic's request mode, for the next report."""


class TopicHolds(NamedTuple):
    """Queues of one topic that wait for successors by one decision."""

    topic: str
    generation: Generation
    waits: bool
    """False: none does, or they were too many to keep."""
    encoded: bytes


class DecisionNews:
    """A received decision, or the leader's address, or only a sign of life."""

    __slots__ = ("_message", "generation", "group", "leader", "topic")

    def __init__(self, data: bytes) -> None:
        self._message = assignment_pb2.Decision.FromString(data)
        self.leader = self._message.leader
        """`host:port` of the rebalancer that leads; empty: the one that sent this."""
        self.group = self._message.group
        """Empty: not a decision."""
        self.topic = self._message.topic
        self.generation = generation_of(self._message.generation)

    def shares(self) -> dict[str, Share]:
        """Returns the shares by client id."""
        return {member.client_id: member.share for member in self._message.shares.members}

    @property
    def mode(self) -> TopicMode | None:
        """The request mode that it sets; None: none."""
        return self._message.set_mode if self._message.HasField("set_mode") else None

    @property
    def holds_any(self) -> bool:
        """True if queues wait for successors by it."""
        return bool(self._message.held)

    def holds(self, bytes_max: int) -> TopicHolds:
        """Returns the queues that wait for successors by it; none, if they take more than `bytes_max`."""
        places, generation = self._message.held, self._message.generation
        holds = assignment_pb2.TopicHolds(topic=self.topic, generation=generation, places=places)
        if holds.ByteSize() > bytes_max:
            del holds.places[:]
        return TopicHolds(self.topic, self.generation, bool(holds.places), holds.SerializeToString())


# ------------------------------------------------------------------------------------------------------------- queries


def ask_assignment(group: str, topic: str, client_id: str) -> bytes:
    """Queries one member's queues."""
    return assignment_pb2.AssignmentRequest(group=group, topic=topic, client_id=client_id).SerializeToString()


def assignment_of(response: bytes) -> Answer | None:
    """Returns the member's queues; None: the leader does not know the group or the topic."""
    message = assignment_pb2.AssignmentResponse.FromString(response)
    status.check(message.status)
    if not message.known:
        return None
    queues = tuple(queue_of(assigned.queue) for assigned in message.queues if assigned.HasField("queue"))
    return Answer(queues, message.strategy, message.generation.epoch, message.generation.counter)


def ask_owners(group: str, topic: str) -> bytes:
    """Queries the owners of the topic's queues."""
    return assignment_pb2.ExplainRequest(group=group, topic=topic).SerializeToString()


def owners_of(response: bytes, topic: str, broker_name: str) -> dict[int, str]:
    """Returns queue id -> client id, for the queues of one broker that have an owner."""
    message = assignment_pb2.ExplainResponse.FromString(response)
    status.check(message.status)
    return {
        assigned.queue.queue_id: assigned.owner
        for assigned in message.queues
        if assigned.owner and assigned.queue.topic == topic and assigned.queue.broker_name == broker_name
    }
