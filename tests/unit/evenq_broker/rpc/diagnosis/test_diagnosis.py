"""DiagnoseGroup at a broker: what it gathers, what it names as missing, and the facts it tells others."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.schedule_records import Schedule
from evenq_broker.loops.resizing.resizing import permit, scale
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import BadRequest, ConnectionFailed, GroupNotFound
from evenq.model import FilterExpression, MessageQueue, Permission, Subscription
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2, diagnosis_pb2

METHOD = "/evenq.v1.Admin/DiagnoseGroup"


async def ask(stage: Any, group: str = "g", **asked: Any) -> diagnosis_pb2.DiagnoseGroupResponse:
    request = diagnosis_pb2.DiagnoseGroupRequest(group=group, **asked)
    answer: diagnosis_pb2.DiagnoseGroupResponse = await stage.call(METHOD, request, diagnosis_pb2.DiagnoseGroupResponse)
    return answer


async def owner(stage: Any, broker: Any) -> None:
    wanted = (Subscription("t", FilterExpression("*")),)
    broker.sessions.join("g", Member(client_id="m1", protocol=Protocol.EVENQ, subscriptions=wanted, zone="north"))
    queues = [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)]
    assert await stage.during(broker.sessions.locking.lock("g", "m1", queues, wait_ms=0)) == [True, True]


async def test_a_group_whose_queues_are_held_is_healthy_and_looked_at_once(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.during(broker.catalog.create_group("g"))
    await owner(stage, broker)
    before_ms = stage.clock.monotonic_ms()
    answer = await ask(stage)
    assert list(answer.findings) == []
    assert (answer.members, answer.queues, list(answer.brokers)) == (1, 2, ["a"])
    assert answer.decides == "its members divide the queues by AVG: the group has no strategy"
    assert stage.clock.monotonic_ms() - before_ms < 500


async def test_schedules_of_the_groups_topics_that_fail_or_missed_times_are_told(stage: Any) -> None:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=2))
    group = await stage.during(broker.catalog.create_group("g"))
    broker.ledger.progress.start(group.group_id, topic.topic_id, 0, 0)
    made = Schedule(topic_id=0, name="s", uid="", every_ms=10_000, body=b"x")
    await stage.during(broker.schedules.put(topic, made))
    assert list((await ask(stage)).findings) == []
    await stage.during(permit(broker.kernel, "t", Permission.READ))
    await stage.clock.advance(35_000)
    [one] = (await ask(stage)).findings
    assert (one.kind, one.severity, one.subject) == ("SCHEDULE_FAILS", "WARNING", "t")
    assert "1 schedule of t at broker a cannot send messages: topic t is closed for writing here" in one.seen
    assert one.command == "evenq schedule list t"
    await stage.during(permit(broker.kernel, "t", Permission.READ_WRITE))
    await stage.clock.advance(2_000)
    [one] = [one for one in (await ask(stage)).findings if one.kind.startswith("SCHEDULE")]
    assert (one.kind, one.severity) == ("SCHEDULE_MISSED", "NOTE")


async def test_a_head_that_does_not_move_is_stuck_after_the_time_asked_for(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.during(broker.catalog.create_group("g"))
    await owner(stage, broker)
    group, topic = broker.catalog.groups.get("g"), broker.catalog.topics.get("t")
    place = (group.group_id, topic.topic_id, 0)
    await broker.ledger.store.append([Append(topic.topic_id, 0, 0, 0, b"head", b"")])
    broker.ledger.progress.start(*place, 0)
    broker.ledger.progress.deliver(broker.ledger.progress.queue(*place), [0], 1, deadline_ms=10**15, client_id="")
    broker.stuck_queues.look(place, 0, waits=True, now_ms=stage.clock.monotonic_ms() - 30_000)
    broker.stuck_queues.end_of_round()
    assert list((await ask(stage)).findings) == []
    [one] = (await ask(stage, stuck_ms=20_000)).findings
    assert (one.kind, one.subject) == ("STUCK_HEAD", "t a/0")
    assert one.command == "evenq message find t --queue a/0 --offset 0 --limit 1"


async def test_a_broker_that_does_not_answer_and_a_member_that_others_know_are_told(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.during(broker.catalog.create_group("g"))
    await owner(stage, broker)
    part = (await ask(stage, local=True)).part
    assert [one.member.client_id for one in part.members] == ["m1"]
    assert {one.holder for one in part.queues} == {"m1"}
    part.broker_name = "b"
    for at in part.queues:
        at.queue.broker_name = "b"
    there = diagnosis_pb2.DiagnoseGroupResponse(part=part)
    there.status.code = definition_pb2.OK

    async def ask_peers(method: str, request: bytes, **_: Any) -> list[tuple[str, Any]]:
        assert method == METHOD
        assert diagnosis_pb2.DiagnoseGroupRequest.FromString(request).local
        return [("b", there.SerializeToString()), ("c", ConnectionFailed("no answer"))]

    broker.cluster.peers.ask_peers = ask_peers
    answer = await ask(stage)
    assert [(one.kind, one.subject) for one in answer.findings] == [("BROKER_SILENT", "c")]
    assert (list(answer.brokers), list(answer.silent), answer.queues) == (["a", "b"], ["c"], 4)


@pytest.mark.parametrize("how", ["closed", "permission"])
async def test_messages_in_queues_that_nobody_can_read_any_more_are_told(stage: Any, how: str) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    group, topic = await stage.during(broker.catalog.create_group("g")), broker.catalog.topics.get("t")
    other = await stage.during(broker.catalog.create_group("other"))
    request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=1))
    request.messages.add(body=b"x").system_properties.message_id = "id"
    for _ in range(3):
        await stage.call("/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)
    broker.ledger.progress.start(group.group_id, topic.topic_id, 1, 1)
    broker.ledger.progress.start(other.group_id, topic.topic_id, 1, 3)
    if how == "closed":
        await stage.during(scale(broker.kernel, "t", 1, force=True, membership=broker.membership))
    else:
        await stage.during(permit(broker.kernel, "t", Permission.WRITE))
    [one] = (await ask(stage)).findings
    assert (one.kind, one.subject) == ("STRANDED_MESSAGES", "t at a")
    assert one.seen.startswith("2 messages wait in queue a/1 of t, which ")
    assert list((await ask(stage, group="other")).findings) == [], "it has read all"


async def test_a_group_that_brokers_know_differently_is_told(stage: Any) -> None:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a, b = await stage.broker("a", nameservers="ns:1"), await stage.broker("b", nameservers="ns:1")
    await stage.until(lambda: len(a.catalog.routes.brokers()) == 2)
    await stage.during(a.catalog.create_group("g", strategy="AVG"))
    await stage.during(b.catalog.create_group("g", max_attempts=3))
    [one] = (await ask(stage)).findings
    assert (one.kind, one.command) == (
        "DIFFERENT_SETTINGS",
        "evenq group create g --strategy AVG --max-attempts 17",
    )
    request = admin_pb2.CreateGroupRequest(group="g", strategy="AVG", max_attempts=17)
    await stage.call("/evenq.v1.Admin/CreateGroup", request, admin_pb2.CreateGroupResponse)
    assert list((await ask(stage)).findings) == []


async def test_unknown_groups_and_times_out_of_range_are_refused(stage: Any) -> None:
    await stage.broker()
    with pytest.raises(GroupNotFound, match="no consumer group 'g'"):
        await ask(stage)
    with pytest.raises(BadRequest, match="watch_ms is 10001"):
        await ask(stage, watch_ms=10_001)
    with pytest.raises(BadRequest, match="stuck_ms is -1"):
        await ask(stage, stuck_ms=-1)
