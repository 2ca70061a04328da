"""Topics of the whole cluster: made once by many first uses, with the counts that they have elsewhere."""

import asyncio
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import BadRequest, ConnectionFailed, GroupNotFound, IllegalGroup, IllegalTopic, TopicNotFound
from evenq.wire.stubs.evenq.v1 import admin_pb2


async def test_many_first_uses_of_a_topic_make_it_once(stage: Any) -> None:
    broker = await stage.broker()
    found = await stage.during(asyncio.gather(*(broker.cluster_catalog.ensure_topic("t") for _ in range(20))))
    assert {topic.topic_id for topic in found} == {1}
    assert broker.catalog.topics.next_id() == 2


async def test_nothing_is_made_by_use_where_that_is_not_allowed(stage: Any) -> None:
    broker = await stage.broker(auto_create_topics=False, auto_create_groups=False)
    with pytest.raises(TopicNotFound, match="evenq topic create t"):
        await broker.cluster_catalog.ensure_topic("t")
    with pytest.raises(IllegalTopic):
        await broker.cluster_catalog.ensure_topic("a b")
    with pytest.raises(GroupNotFound, match="evenq group create g"):
        await broker.catalog.ensure_group("g")
    with pytest.raises(IllegalGroup):
        await broker.catalog.ensure_group("a b")


async def test_a_topic_has_the_counts_it_has_elsewhere_when_none_are_asked_for(stage: Any) -> None:
    broker = await stage.broker(default_queues=8)
    await stage.during(broker.catalog.create_topic("t", queues=3))
    (placement,) = await stage.during(broker.cluster_catalog.create_topic("t"))
    assert placement.counts.write_queues == 3
    (placement,) = await stage.during(broker.cluster_catalog.create_topic("new"))
    assert placement.counts.write_queues == 8


async def two(stage: Any) -> tuple[Any, Any, FakeRegistry]:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    a, b = [await stage.broker(name, nameservers="ns:1") for name in "ab"]
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 2 for broker in (a, b)))
    await stage.during(a.cluster_catalog.create_topic("t", queues=1))
    assert b.catalog.topics.get("t") is not None
    return a, b, registry


async def test_a_topic_that_is_deleted_while_a_broker_is_missing_is_deleted_there_when_it_is_back(stage: Any) -> None:
    a, b, registry = await two(stage)
    registry.drop("b")
    await stage.until(a.cluster.known.missing)
    request = admin_pb2.DeleteTopicRequest(topic="t")
    with pytest.raises(ConnectionFailed, match=r"deleted here, but not on every broker \(b: it is missing\)"):
        await stage.call("/evenq.v1.Admin/DeleteTopic", request, admin_pb2.DeleteTopicResponse)
    assert b.catalog.topics.get("t") is not None
    await stage.until(lambda: b.catalog.topics.get("t") is None)
    await stage.until(lambda: not len(a.change_sender.unconfirmed))
    assert a.catalog.routes.route("t") == []


async def test_a_group_that_only_another_broker_has_is_deleted_and_is_no_unknown_one(stage: Any) -> None:
    """As after a deletion that a missing broker missed: the command is run again when it is back."""
    _, b, _ = await two(stage)
    await stage.during(b.catalog.create_group("g"))
    request = admin_pb2.DeleteGroupRequest(group="g")
    await stage.call("/evenq.v1.Admin/DeleteGroup", request, admin_pb2.DeleteGroupResponse)
    assert b.catalog.groups.get("g") is None
    with pytest.raises(GroupNotFound):
        await stage.call("/evenq.v1.Admin/DeleteGroup", request, admin_pb2.DeleteGroupResponse)


async def test_a_group_with_a_member_at_another_broker_is_not_deleted(stage: Any) -> None:
    a, b, _ = await two(stage)
    for broker in (a, b):
        await stage.during(broker.catalog.create_group("g"))
    group, topic = b.catalog.groups.get("g"), b.catalog.topics.get("t")
    b.ledger.progress.commit(group.group_id, topic.topic_id, 0, 0)
    session = b.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    request = admin_pb2.DeleteGroupRequest(group="g")
    with pytest.raises(BadRequest, match="group g has 1 members, among them x; stop them first"):
        await stage.call("/evenq.v1.Admin/DeleteGroup", request, admin_pb2.DeleteGroupResponse)
    assert None not in {broker.catalog.groups.get("g") for broker in (a, b)}
    assert b.ledger.progress.committed(group.group_id, topic.topic_id, 0) == 0
    b.sessions.leave(session)
    await stage.call("/evenq.v1.Admin/DeleteGroup", request, admin_pb2.DeleteGroupResponse)
    assert {broker.catalog.groups.get("g") for broker in (a, b)} == {None}


async def test_members_at_a_broker_that_does_not_answer_do_not_keep_a_group(stage: Any) -> None:
    a, b, registry = await two(stage)
    for broker in (a, b):
        await stage.during(broker.catalog.create_group("g"))
    b.sessions.join("g", Member(client_id="x", protocol=Protocol.EVENQ))
    registry.drop("b")
    await stage.until(a.cluster.known.missing)
    request = admin_pb2.DeleteGroupRequest(group="g")
    with pytest.raises(ConnectionFailed, match=r"group g is deleted here, but not on every broker \(b: "):
        await stage.call("/evenq.v1.Admin/DeleteGroup", request, admin_pb2.DeleteGroupResponse)
    assert a.catalog.groups.get("g") is None
    await stage.until(lambda: b.catalog.groups.get("g") is None)
