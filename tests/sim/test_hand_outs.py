"""Hand-outs are counted by queue and group, and a broker's presumption after its restart counts as one."""

from evenq_sim.hand_outs import HandOuts

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2, groups_pb2

QUEUE = common_pb2.Queue(topic="t", broker_name="a", queue_id=2)
NAME = "t@a:2"
BODY = 7
MESSAGE = definition_pb2.Message(topic={"name": "t"}, body=b"%d" % BODY, system_properties={"queue_id": 2})


def pull(hand_outs: HandOuts, caller: str) -> None:
    request = data_pb2.PullRequest(queue=QUEUE).SerializeToString()
    hand_outs.seen("a", caller, "/evenq.v1.Data/Pull", request, None)
    answer = data_pb2.PullResponse(messages=[MESSAGE]).SerializeToString()
    hand_outs.seen("a", caller, "/evenq.v1.Data/Pull", request, answer)


def lock(hand_outs: HandOuts, caller: str, *, granted: bool = True) -> None:
    answer = groups_pb2.LockQueuesResponse(queues=[groups_pb2.LockedQueue(queue=QUEUE, granted=granted)])
    hand_outs.seen("a", caller, "/evenq.v1.Groups/LockQueues", b"", answer.SerializeToString())


def test_each_answer_with_the_message_is_one_until_the_group_is_deleted() -> None:
    hand_outs = HandOuts()
    pull(hand_outs, "m1")
    frame = service_pb2.ReceiveMessageResponse(message=MESSAGE).SerializeToString()
    hand_outs.seen("a", "m2", "/apache.rocketmq.v2.MessagingService/ReceiveMessage", b"", frame)
    assert (hand_outs.of(BODY, NAME), hand_outs.of(BODY, "%RETRY%g@a:2"), hand_outs.of(8, NAME)) == (2, 0, 0)
    hand_outs.group_deleted()
    assert hand_outs.of(BODY, NAME) == 0


def test_a_restart_counts_for_the_queues_of_a_killed_member_only() -> None:
    hand_outs = HandOuts()
    lock(hand_outs, "m1")
    lock(hand_outs, "m2", granted=False)
    hand_outs.started("a")
    hand_outs.killed("m2")
    hand_outs.started("a")
    assert hand_outs.of(BODY, NAME) == 0
    hand_outs.killed("m1")
    hand_outs.started("b")
    assert hand_outs.of(BODY, NAME) == 0
    hand_outs.started("a")
    assert (hand_outs.of(BODY, NAME), hand_outs.of(BODY, "t@a:1")) == (1, 0)
