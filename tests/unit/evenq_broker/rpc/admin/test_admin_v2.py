"""The admin service of the protocol: topics, the broker itself, what a group has before it."""

import json
import logging
from typing import Any

import pytest

from evenq.model import MessageType
from evenq.serving.auth.calls import ADMIN_V2
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2


async def test_all_calls_of_the_proto_are_there(stage: Any) -> None:
    broker = await stage.broker()
    listed = [rpc.method.removeprefix(ADMIN_V2) for rpc in broker.rpcs() if rpc.method.startswith(ADMIN_V2)]
    assert sorted(listed) == sorted(admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name)


async def test_the_log_level_is_changed_and_told(stage: Any) -> None:
    await stage.broker()
    before = logging.root.level
    try:
        request = admin_pb2.ChangeLogLevelRequest(level=admin_pb2.ChangeLogLevelRequest.ERROR)
        answer = await stage.ask(ADMIN_V2 + "ChangeLogLevel", request, admin_pb2.ChangeLogLevelResponse)
        assert "broker a logs ERROR" in answer.remark
        assert logging.root.level == logging.ERROR
    finally:
        logging.root.setLevel(before)


async def test_the_route_is_told_in_the_words_of_the_reference(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=3))
    request = admin_pb2.GetTopicRouteRequest()
    request.topic.name = "t"
    answer = await stage.ask(ADMIN_V2 + "GetTopicRoute", request, admin_pb2.GetTopicRouteResponse)
    output = json.loads(answer.topic_route_data)
    assert output["brokerDatas"] == [{"brokerAddrs": {"0": "a:8081"}, "brokerName": "a", "cluster": "evenq"}]
    [queues] = output["queueDatas"]
    assert (queues["readQueueNums"], queues["perm"]) == (3, 6)


async def test_rates_are_real(stage: Any) -> None:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t"))

    async def stats() -> Any:
        request = admin_pb2.GetProxyRuntimeStatsRequest()
        return await stage.ask(ADMIN_V2 + "GetProxyRuntimeStats", request, admin_pb2.GetProxyRuntimeStatsResponse)

    await stats()
    await stage.clock.advance(2_000)
    await stats()
    broker.runtime.stats.topic(topic.topic_id).messages_in += 100
    await stage.clock.advance(2_000)
    response = await stats()
    assert 45 < response.in_tps <= 50
    assert (response.out_tps, response.proxy_name) == (0, "a")


@pytest.mark.parametrize(("kind", "given"), [("FIFO", definition_pb2.FIFO), ("MIXED", 0)])
async def test_a_topics_type_is_told_where_the_protocol_has_a_word_for_it(stage: Any, kind: str, given: int) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", message_type=MessageType(kind)))
    request = admin_pb2.DescribeTopicStatusRequest()
    request.topic.name = "t"
    answer = await stage.ask(ADMIN_V2 + "DescribeTopicStatus", request, admin_pb2.DescribeTopicStatusResponse)
    assert (answer.status.code, answer.topic_message_type) == (20000, given)
    request.topic.name = "nowhere"
    unknown = await stage.ask(ADMIN_V2 + "DescribeTopicStatus", request, admin_pb2.DescribeTopicStatusResponse)
    assert unknown.status.code == 40402


async def test_what_a_group_has_before_it_is_counted_by_topic(stage: Any) -> None:
    broker = await stage.broker()
    group = await stage.during(broker.catalog.create_group("g"))
    for name, count in (("a", 5), ("b", 2)):
        topic = await stage.during(broker.catalog.create_topic(name, queues=1))
        await stage.during(
            broker.ledger.store.append([Append(topic.topic_id, 0, 0, 0, b"", b"") for _ in range(count)])
        )
        broker.ledger.progress.start(group.group_id, topic.topic_id, 0, 0)
    queue = broker.ledger.progress.queue(group.group_id, 1, 0)
    broker.ledger.progress.deliver(queue, [0, 1], 2, deadline_ms=10**15, client_id="")
    request = admin_pb2.DescribeGroupAccumulationRequest()
    request.group.name = "g"
    method = ADMIN_V2 + "DescribeGroupAccumulation"
    answer = await stage.ask(method, request, admin_pb2.DescribeGroupAccumulationResponse)
    total, first = answer.accumulation, answer.topic_accumulation["a"]
    assert (total.accumulation, total.inflight_messages, total.ready_messages) == (7, 2, 5)
    assert (first.accumulation, first.inflight_messages, first.ready_messages) == (5, 2, 3)
    request.group.name = "nobody"
    assert (await stage.ask(method, request, admin_pb2.DescribeGroupAccumulationResponse)).status.code == 40403
