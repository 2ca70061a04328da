"""What a broker says is what a client hears: the events of a session are equal by value on both sides."""

from __future__ import annotations

from evenq_broker.rpc.groups.groups import _event as encode

from evenq.client.rpc.sessions import _event as decode
from evenq.model import Generation, MessageQueue
from evenq.model.session_events import AssignmentChanged, BrokerLeaving, OffsetsReset, QueueWanted
from evenq.wire.stubs.evenq.v1 import common_pb2, groups_pb2

QUEUE = MessageQueue("t", "a", 1)


def over_the_wire(event: object) -> object:
    return decode(groups_pb2.SessionEvent.FromString(encode("g", event)))  # type: ignore[arg-type]


def test_an_event_of_a_broker_is_the_same_event_at_the_client() -> None:
    for event in (QueueWanted(QUEUE), OffsetsReset((QUEUE,)), BrokerLeaving(1_500)):
        assert over_the_wire(event) == event
    plain: AssignmentChanged[common_pb2.Share] = AssignmentChanged("t", Generation(3, 4))
    assert over_the_wire(plain) == plain


def test_a_share_becomes_the_queues_of_the_member() -> None:
    part = common_pb2.BrokerQueues(broker_name="a", queue_ids=[2, 1])
    share = common_pb2.Share(queues=[part])
    queues = (QUEUE, MessageQueue("t", "a", 2))
    assert over_the_wire(AssignmentChanged("t", Generation(1, 1), share)) == AssignmentChanged(
        "t", Generation(1, 1), queues
    )
