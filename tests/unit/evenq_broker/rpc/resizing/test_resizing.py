"""Resizing through any broker: it reaches those it is for, and says who did not answer."""

from typing import Any

import pytest
from evenq_broker.core.state.schedule_records import Schedule
from evenq_broker.loops.resizing.resizing import permit
from evenq_proofs.fake_registry import FakeRegistry

from evenq.client.loops.admin.resizing import drained
from evenq.client.rpc.admin import AdminCalls
from evenq.errors import BadRequest, ConnectionFailed, NotFound, TopicNotFound
from evenq.model import Permission
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

Change = admin_pb2.DrainBrokerRequest


async def two(stage: Any) -> tuple[Any, Any]:
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a, b = await stage.broker("a", nameservers="ns:1"), await stage.broker("b", nameservers="ns:1")
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 2 for broker in (a, b)))
    await ask(stage, "CreateTopic", admin_pb2.CreateTopicRequest(topic="t", queues=2))
    return a, b


async def ask(stage: Any, rpc: str, request: Any, broker: str = "a") -> Any:
    response = getattr(admin_pb2, f"{rpc}Response")
    return await stage.call(f"/evenq.v1.Admin/{rpc}", request, response, broker=broker)


async def test_a_topic_is_scaled_on_all_brokers_or_on_one(stage: Any) -> None:
    a, b = await two(stage)
    answer = await ask(stage, "ScaleTopic", admin_pb2.ScaleTopicRequest(topic="t", queues=5))
    assert [(one.broker_name, one.entry.read_queues) for one in answer.brokers] == [("a", 5), ("b", 5)]
    one = admin_pb2.ScaleTopicRequest(topic="t", queues=3, broker_name="b")
    answer = await ask(stage, "ScaleTopic", one)
    assert [(one.broker_name, one.entry.write_queues) for one in answer.brokers] == [("b", 3)]
    assert [broker.catalog.topics.get("t").write_queues for broker in (a, b)] == [5, 3]


async def test_a_permission_is_set_on_all_brokers_or_on_one(stage: Any) -> None:
    a, b = await two(stage)
    request = admin_pb2.PermitTopicRequest(topic="t", permission=definition_pb2.READ, broker_name="a")
    await ask(stage, "PermitTopic", request, broker="b")
    assert [broker.catalog.topics.get("t").permission for broker in (a, b)] == [definition_pb2.READ, 4]
    request = admin_pb2.PermitTopicRequest(topic="t", permission=definition_pb2.READ_WRITE)
    answer = await ask(stage, "PermitTopic", request)
    assert [one.entry.permission for one in answer.brokers] == [4, 4]


async def test_a_broker_that_could_not_be_told_to_forget_another_is_named(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    a, b, c = [await stage.broker(name, nameservers="ns:1") for name in "abc"]
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 3 for broker in (a, b, c)))
    registry.drop("c")
    await stage.until(lambda: a.cluster.known.missing() and b.cluster.known.missing())
    stage.net.stop("b:8081")
    request = admin_pb2.ForgetBrokerRequest(broker_name="c")
    with pytest.raises(ConnectionFailed, match="c is forgotten, but not by b, which did not answer"):
        await ask(stage, "ForgetBroker", request)
    stage.net.serve("b:8081", b.rpcs())
    assert (await ask(stage, "ForgetBroker", request)).known
    assert not b.cluster.known.missing()


async def test_a_broker_that_does_not_answer_is_named(stage: Any) -> None:
    await two(stage)
    stage.net.stop("b:8081")
    answer = await ask(stage, "ScaleTopic", admin_pb2.ScaleTopicRequest(topic="t", queues=3))
    assert [(one.broker_name, bool(one.error)) for one in answer.brokers] == [("a", False), ("b", True)]


async def test_a_broker_is_drained_through_any_other_and_shows_it(stage: Any) -> None:
    a, b = await two(stage)
    answer = await ask(stage, "DrainBroker", Change(broker_name="b", change=Change.DRAIN))
    assert (answer.broker_name, answer.draining, answer.empty, answer.writers) == ("b", True, True, 1)
    assert (a.catalog.draining, b.catalog.draining) == (False, True)
    listed = await ask(stage, "ListBrokers", admin_pb2.ListBrokersRequest())
    assert [(one.broker.name, one.draining) for one in listed.brokers] == [("a", False), ("b", True)]
    answer = await ask(stage, "DrainBroker", Change(change=Change.DRAIN))
    assert (answer.broker_name, answer.writers) == ("a", 0), "no broker is left to take messages"
    answer = await ask(stage, "DrainBroker", Change(broker_name="b"))
    assert answer.draining, "looking changes nothing"
    answer = await ask(stage, "DrainBroker", Change(broker_name="b", change=Change.RESUME))
    assert not answer.draining


async def test_schedules_are_named_where_their_broker_or_their_topic_there_is_to_go(stage: Any) -> None:
    _, b = await two(stage)
    topic = b.catalog.topics.get("t")
    for number in range(2):
        made = Schedule(topic_id=0, name=f"s{number}", uid="", every_ms=60_000, body=b"x")
        await stage.during(b.schedules.put(topic, made))
    answer = await ask(stage, "DrainBroker", Change(broker_name="b", change=Change.DRAIN))
    assert (answer.empty, answer.schedules, list(answer.schedule_names)) == (True, 2, ["t s0", "t s1"])
    plan = admin_pb2.ScaleTopicRequest(topic="t", broker_name="b", dry_run=True)
    [there] = (await ask(stage, "ScaleTopic", plan)).brokers
    assert (there.gone, there.schedules, list(there.schedule_names)) == (False, 2, ["s0", "s1"])


async def test_a_drain_moves_all_schedules_also_behind_a_topic_whose_schedules_stay(stage: Any) -> None:
    a, b = await two(stage)
    await stage.during(a.catalog.create_topic("u", queues=1))
    for name, count in (("t", 100), ("u", 50)):
        await stage.during(b.catalog.create_topic(name, queues=1))
        for number in range(count):
            made = Schedule(topic_id=0, name=f"s{number:03}", uid="", every_ms=60_000, body=b"x")
            await stage.during(b.schedules.put(b.catalog.topics.get(name), made))
    await stage.during(permit(a.kernel, "t", Permission.READ))
    await stage.until(lambda: not a.catalog.routes.route("t")[0].counts.permission.writable)
    net: Any = stage.net
    calls = AdminCalls(net, endpoint="a:8081", client_id="c", timeout_ms=60_000)
    view = await stage.during(drained(calls, stage.clock, "b", wait_ms=0))
    assert (len(a.schedules.table), view.schedules, len(view.schedule_problems)) == (50, 100, 100)
    assert {one.schedule.topic_id for one in a.schedules.table} == {a.catalog.topics.get("u").topic_id}


async def test_what_makes_no_sense_is_refused_with_a_sentence(stage: Any) -> None:
    await two(stage)
    lite = admin_pb2.CreateTopicRequest(topic="lite", message_type=definition_pb2.LITE)
    await ask(stage, "CreateTopic", lite)
    for rpc, request, error, words in (
        ("ScaleTopic", admin_pb2.ScaleTopicRequest(topic="t", queues=5_000), BadRequest, "1 to 4096"),
        ("ScaleTopic", admin_pb2.ScaleTopicRequest(topic="lite", queues=2), BadRequest, "LITE"),
        ("ScaleTopic", admin_pb2.ScaleTopicRequest(topic="no", queues=2), TopicNotFound, "no topic"),
        (
            "ScaleTopic",
            admin_pb2.ScaleTopicRequest(topic="t", queues=2, broker_name="z"),
            NotFound,
            "it is on a, b",
        ),
        ("PermitTopic", admin_pb2.PermitTopicRequest(topic="t"), BadRequest, "READ_WRITE, READ"),
        ("DrainBroker", Change(broker_name="z"), NotFound, "the cluster has a, b"),
    ):
        with pytest.raises(error, match=words):
            await ask(stage, rpc, request)
