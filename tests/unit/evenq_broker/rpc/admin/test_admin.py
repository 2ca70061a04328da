"""The whole cluster through any broker."""

from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import Error
from evenq.model import FilterExpression, FilterType, Subscription
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2


async def two(stage: Any, registry: FakeRegistry | None = None) -> tuple[Any, Any]:
    stage.net.serve("ns:1", (registry or FakeRegistry()).rpcs())
    a, b = await stage.broker("a", nameservers="ns:1"), await stage.broker("b", nameservers="ns:1")
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 2 for broker in (a, b)))
    await ask(stage, "CreateTopic", admin_pb2.CreateTopicRequest(topic="t", queues=2))
    for name in ("a", "b"):
        request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic="t", broker_name=name, queue_id=0))
        request.messages.add(body=b"x").system_properties.message_id = "id"
        await stage.call("/evenq.v1.Data/Publish", request, data_pb2.PublishResponse, broker=name)
        commit = data_pb2.CommitOffsetsRequest(group="g")
        commit.offsets.add(queue=request.queue, offset=0)
        await stage.call("/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse, broker=name)
    return a, b


async def ask(stage: Any, rpc: str, request: Any, broker: str = "a") -> Any:
    response = getattr(admin_pb2, f"{rpc}Response")
    return await stage.call(f"/evenq.v1.Admin/{rpc}", request, response, broker=broker)


async def test_topics_are_listed_with_the_sums_of_all_brokers(stage: Any) -> None:
    await two(stage)
    answer = await ask(stage, "ListTopics", admin_pb2.ListTopicsRequest())
    assert [(t.topic, t.brokers, t.queues, t.messages) for t in answer.topics] == [("t", 2, 4, 2)]


async def test_a_topic_is_described_with_the_queues_of_all_brokers_and_its_readers(stage: Any) -> None:
    await two(stage)
    answer = await ask(stage, "DescribeTopic", admin_pb2.DescribeTopicRequest(topic="t"), broker="b")
    queues = [(at.queue.broker_name, at.queue.queue_id, at.max_offset) for at in answer.queues]
    assert queues == [("a", 0, 1), ("a", 1, 0), ("b", 0, 1), ("b", 1, 0)]
    assert answer.queues[0].last_store_ms > 0
    assert list(answer.groups) == ["g"]


async def test_a_group_is_described_with_its_lag_on_all_brokers(stage: Any) -> None:
    await two(stage)
    answer = await ask(stage, "DescribeGroup", admin_pb2.DescribeGroupRequest(group="g"))
    assert answer.summary.lag == 2
    assert answer.summary.topics == 1
    assert [(at.queue.broker_name, at.committed) for at in answer.queues if at.queue.queue_id == 0] == [
        ("a", 0),
        ("b", 0),
    ]
    listed = await ask(stage, "ListGroups", admin_pb2.ListGroupsRequest())
    assert [(group.group, group.lag) for group in listed.groups] == [("g", 2)]


async def test_what_a_silent_or_missing_broker_has_of_a_group_is_not_counted_as_done(stage: Any) -> None:
    registry = FakeRegistry()
    a, _ = await two(stage, registry)
    describe = admin_pb2.DescribeGroupRequest(group="g")
    assert list((await ask(stage, "DescribeGroup", describe)).summary.silent) == []
    stage.net.stop("b:8081")
    response = await ask(stage, "DescribeGroup", describe)
    assert (response.summary.lag, list(response.summary.silent)) == (1, ["b"]), "at least 1"
    [listed] = (await ask(stage, "ListGroups", admin_pb2.ListGroupsRequest())).groups
    assert (listed.lag, list(listed.silent)) == (1, ["b"])
    registry.drop("b")
    await stage.until(lambda: a.catalog.routes.broker("b") is None)
    response = await ask(stage, "DescribeGroup", describe)
    assert list(response.summary.silent) == ["b"], "no member is there to ask, and it is still not known"
    with pytest.raises(Error, match=r"no consumer group 'h' on a broker that answers \(b cannot be reached\)"):
        await ask(stage, "DescribeGroup", admin_pb2.DescribeGroupRequest(group="h"))
    await ask(stage, "ForgetBroker", admin_pb2.ForgetBrokerRequest(broker_name="b"))
    assert list((await ask(stage, "DescribeGroup", describe)).summary.silent) == []


async def test_a_topics_retention_reaches_every_broker_and_stays_until_it_is_told_anew(stage: Any) -> None:
    a, b = await two(stage)
    await ask(stage, "CreateTopic", admin_pb2.CreateTopicRequest(topic="t", retention_ms=60_000))
    await ask(stage, "CreateTopic", admin_pb2.CreateTopicRequest(topic="t", queues=3))
    assert [broker.catalog.topics.get("t").retention_ms for broker in (a, b)] == [60_000, 60_000]
    assert (await ask(stage, "DescribeTopic", admin_pb2.DescribeTopicRequest(topic="t"))).retention_ms == 60_000
    await ask(stage, "CreateTopic", admin_pb2.CreateTopicRequest(topic="t", retention_ms=-1), broker="b")
    assert [broker.catalog.topics.get("t").retention_ms for broker in (a, b)] == [None, None]
    with pytest.raises(Error, match="requests a retention of -2 ms"):
        await ask(stage, "CreateTopic", admin_pb2.CreateTopicRequest(topic="t", retention_ms=-2))


async def test_a_deleted_topic_is_gone_everywhere(stage: Any) -> None:
    a, b = await two(stage)
    await ask(stage, "DeleteTopic", admin_pb2.DeleteTopicRequest(topic="t"))
    await stage.until(lambda: not a.catalog.routes.route("t") and not b.catalog.routes.route("t"))
    with pytest.raises(Error) as caught:
        await ask(stage, "DeleteTopic", admin_pb2.DeleteTopicRequest(topic="t"))
    assert caught.value.code == definition_pb2.TOPIC_NOT_FOUND


async def test_a_deleted_group_is_gone_everywhere_with_its_progress(stage: Any) -> None:
    a, b = await two(stage)
    await ask(stage, "DeleteGroup", admin_pb2.DeleteGroupRequest(group="g"), broker="b")
    assert a.catalog.groups.get("g") is None
    assert b.catalog.groups.get("g") is None
    with pytest.raises(Error) as caught:
        await ask(stage, "DescribeGroup", admin_pb2.DescribeGroupRequest(group="g"))
    assert caught.value.code == definition_pb2.CONSUMER_GROUP_NOT_FOUND


async def test_members_that_filter_differently_at_different_brokers_are_told(stage: Any) -> None:
    """RG-8: all members of a group must want the same."""
    for client_id, broker in zip(("c1", "c2"), await two(stage), strict=True):
        wanted = FilterExpression(f"a > {client_id[1]}", FilterType.SQL)
        result = Member(client_id=client_id, protocol=Protocol.V2, subscriptions=(Subscription("t", wanted),))
        broker.membership.members.join("g", result, now_ms=broker.runtime.clock.monotonic_ms(), lease_ms=60_000)
    answer = await ask(stage, "DescribeGroup", admin_pb2.DescribeGroupRequest(group="g"))
    [topic] = answer.differing_filters
    assert topic.topic == "t"
    assert [(one.filter.type, one.filter.expression, list(one.client_ids)) for one in topic.filters] == [
        (common_pb2.Filter.SQL, "a > 1", ["c1"]),
        (common_pb2.Filter.SQL, "a > 2", ["c2"]),
    ]


async def test_brokers_are_listed_and_one_that_does_not_answer_says_so(stage: Any) -> None:
    await two(stage)
    answer = await ask(stage, "ListBrokers", admin_pb2.ListBrokersRequest())
    assert [(s.broker.name, s.answered, s.messages_in) for s in answer.brokers] == [("a", True, 1), ("b", True, 1)]
    stage.net.stop("b:8081")
    cluster = await ask(stage, "DescribeCluster", admin_pb2.DescribeClusterRequest())
    assert [(s.broker.name, s.answered) for s in cluster.brokers] == [("a", True), ("b", False)]
    assert list(cluster.nameservers) == ["ns:1"]
    assert (cluster.topics, cluster.groups) == (1, 1)


@pytest.mark.parametrize(
    ("rpc", "request_", "code"),
    [
        ("CreateTopic", admin_pb2.CreateTopicRequest(topic="x y"), definition_pb2.ILLEGAL_TOPIC),
        ("CreateTopic", admin_pb2.CreateTopicRequest(topic="%DLQ%g"), definition_pb2.ILLEGAL_TOPIC),
        ("CreateTopic", admin_pb2.CreateTopicRequest(topic="n", queues=5_000), definition_pb2.BAD_REQUEST),
        (
            "CreateTopic",
            admin_pb2.CreateTopicRequest(topic="t", message_type=definition_pb2.FIFO),
            definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        ("CreateGroup", admin_pb2.CreateGroupRequest(group="x y"), definition_pb2.ILLEGAL_CONSUMER_GROUP),
        ("CreateGroup", admin_pb2.CreateGroupRequest(group="n", start_from="NOON"), definition_pb2.BAD_REQUEST),
        ("CreateGroup", admin_pb2.CreateGroupRequest(group="n", strategy="FAIREST"), definition_pb2.BAD_REQUEST),
        ("DescribeTopic", admin_pb2.DescribeTopicRequest(topic="none"), definition_pb2.TOPIC_NOT_FOUND),
        ("DeleteGroup", admin_pb2.DeleteGroupRequest(group="none"), definition_pb2.CONSUMER_GROUP_NOT_FOUND),
    ],
)
async def test_what_cannot_be_has_its_own_code(stage: Any, rpc: str, request_: Any, code: int) -> None:
    await two(stage)
    with pytest.raises(Error) as caught:
        await ask(stage, rpc, request_)
    assert caught.value.code == code


async def test_changing_one_setting_of_a_group_leaves_the_others(stage: Any) -> None:
    await two(stage)
    first = admin_pb2.CreateGroupRequest(group="keep", ordered=True, strategy="AVG", max_attempts=5)
    await ask(stage, "CreateGroup", first)
    await ask(stage, "CreateGroup", admin_pb2.CreateGroupRequest(group="keep", max_attempts=3))
    shown = await ask(stage, "DescribeGroup", admin_pb2.DescribeGroupRequest(group="keep"))
    assert (shown.summary.ordered, shown.summary.strategy, shown.summary.max_attempts) == (True, "AVG", 3)


async def test_an_unknown_strategy_is_refused_with_the_known_names(stage: Any) -> None:
    await two(stage)
    with pytest.raises(Error, match="'FAIREST'; known are AVG, "):
        await ask(stage, "CreateGroup", admin_pb2.CreateGroupRequest(group="n", strategy="FAIREST"))


@pytest.mark.parametrize("name", ["NONE", "none"])
async def test_the_strategy_none_takes_a_groups_strategy_away_everywhere(stage: Any, name: str) -> None:
    a, b = await two(stage)
    await ask(stage, "CreateGroup", admin_pb2.CreateGroupRequest(group="keep", strategy="STICKY", max_attempts=5))
    await ask(stage, "CreateGroup", admin_pb2.CreateGroupRequest(group="keep"))
    assert [broker.catalog.groups.get("keep").strategy for broker in (a, b)] == ["STICKY", "STICKY"], "empty: as it is"
    await ask(stage, "CreateGroup", admin_pb2.CreateGroupRequest(group="keep", strategy=name))
    for broker in (a, b):
        kept = broker.catalog.groups.get("keep")
        assert (kept.strategy, kept.max_attempts) == ("", 5)


async def test_a_balance_policy_is_kept_everywhere_until_another_is_told(stage: Any) -> None:
    a, b = await two(stage)
    request = admin_pb2.CreateGroupRequest(group="rides", strategy="AVG")
    request.balance.weight, request.balance.hold_ms = "LAG", 5_000
    await ask(stage, "CreateGroup", request)
    await ask(stage, "CreateGroup", admin_pb2.CreateGroupRequest(group="rides", max_attempts=3))
    assert a.catalog.groups.get("rides").balance == b.catalog.groups.get("rides").balance
    answer = await ask(stage, "DescribeGroup", admin_pb2.DescribeGroupRequest(group="rides"), broker="b")
    assert (answer.summary.balance.weight, answer.summary.balance.hold_ms) == ("LAG", 5_000)
    request.balance.moves_max = -1
    with pytest.raises(Error, match="moves_max is -1, the range is 0"):
        await ask(stage, "CreateGroup", request)
