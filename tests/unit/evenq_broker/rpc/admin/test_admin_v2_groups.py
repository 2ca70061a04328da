"""Admin of v2, groups: subscriptions, clients, moving and forgetting progress, time spans."""

from typing import Any

from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.state.records import Unsubscribed, encode

from evenq.errors import ConnectionFailed
from evenq.model import BrokerAddress, FilterExpression, MessageQueue, Subscription
from evenq.serving.auth.calls import ADMIN_V2
from evenq.store import Append
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2

OK = 20000


async def filled(stage: Any) -> Any:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g"))
    for _ in range(3):
        await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 0, b"", b"")]))
        await stage.clock.advance(1_000)
    return broker


async def call(stage: Any, name: str, **resources: str) -> Any:
    request = getattr(admin_pb2, f"{name}Request")()
    for field, value in resources.items():
        getattr(request, field).name = value
    return await stage.ask(ADMIN_V2 + name, request, getattr(admin_pb2, f"{name}Response"))


def join(broker: Any, client: str, expression: str = "*") -> None:
    wanted = (Subscription("t", FilterExpression(expression)),)
    broker.sessions.join(
        "g", Member(client_id=client, protocol=Protocol.EVENQ, language="PYTHON", subscriptions=wanted)
    )


async def test_an_accumulation_says_that_it_is_at_least_so_much_while_a_broker_is_away(stage: Any) -> None:
    broker = await filled(stage)
    assert (await call(stage, "DescribeGroupAccumulation", group="g")).status.message == "OK"
    away = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),))
    broker.catalog.routes.snapshot("nameserver", "n", [away], broker.runtime.clock.monotonic_ms())
    response = await call(stage, "DescribeGroupAccumulation", group="g")
    assert (response.status.code, response.status.message) == (OK, "at least: the messages at b cannot be counted")


async def test_subscriptions_are_told_by_topic_and_by_client(stage: Any) -> None:
    broker = await filled(stage)
    join(broker, "host@1", "a")
    join(broker, "host@2", "b")
    answer = await call(stage, "ListSubscription", group="g")
    [one] = answer.subscription_info
    assert (one.topic.name, one.online, one.subscription_consistency) == ("t", True, False)
    response = await call(stage, "DescribeSubscription", topic="t")
    rows = [
        (info.client_info.client_id, info.client_info.hostname, info.subscription_info.expression.expression)
        for info in response.client_subscription_info
    ]
    assert rows == [("host@1", "host", "a"), ("host@2", "host", "b")]
    clients = await call(stage, "ListConsumerConnection", group="g", topic="t")
    assert [info.client_id for info in clients.client_info] == ["host@1", "host@2"]
    assert (await call(stage, "ListConsumerConnection", group="nobody")).status.code == 40403


async def test_what_nobody_reads_any_more_is_told_as_offline(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 2)
    [one] = (await call(stage, "ListSubscription")).subscription_info
    assert (one.group.name, one.topic.name, one.online) == ("g", "t", False)


async def test_a_subscription_is_deleted_only_when_nobody_reads_it(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 2)
    join(broker, "host@1")
    refused = await call(stage, "DeleteSubscription", group="g", topic="t")
    assert (refused.status.code, "host@1" in refused.status.message) == (42800, True)
    assert broker.ledger.progress.committed(1, 1, 0) == 2
    broker.membership.members.leave("g", "host@1")
    assert (await call(stage, "DeleteSubscription", group="g", topic="t")).status.code == OK
    assert broker.ledger.progress.committed(1, 1, 0) is None
    assert (await call(stage, "DeleteSubscription", group="nobody", topic="t")).status.code == 40403


async def test_a_reset_that_waits_for_a_member_ends_with_the_subscription(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 2)
    fences, queue = broker.sessions.fences, MessageQueue("t", "a", 0)
    for group, fenced in (("g", queue), ("g", MessageQueue("u", "a", 0)), ("h", queue)):
        fences.put(group, fenced, "x", 1, now_ms=stage.clock.monotonic_ms())
    assert (await call(stage, "DeleteSubscription", group="g", topic="t")).status.code == OK
    assert (fences.of("g", "x"), fences.of("h", "x")) == ([MessageQueue("u", "a", 0)], [queue])


async def test_a_forgotten_subscription_comes_back_from_the_journal_as_forgotten(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 2)
    broker.ledger.replay(encode([Unsubscribed(1, 1)]))
    assert broker.ledger.progress.committed(1, 1, 0) is None


async def test_a_group_is_moved_to_a_time(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 3)
    request = admin_pb2.ResetGroupOffsetRequest()
    request.group.name, request.topic.name = "g", "t"
    method = ADMIN_V2 + "ResetGroupOffset"
    refused = await stage.ask(method, request, admin_pb2.ResetGroupOffsetResponse)
    assert (refused.status.code, "reset_timestamp" in refused.status.message) == (40000, True)
    set_ms(request.reset_timestamp, stage.clock.now_ms() - 2_500)
    assert (await stage.ask(method, request, admin_pb2.ResetGroupOffsetResponse)).status.code == OK
    assert broker.ledger.progress.committed(1, 1, 0) == 1

    async def ask_peers(*_: Any, **__: Any) -> list[tuple[str, Any]]:
        return [("b", ConnectionFailed("b sleeps"))]

    broker.cluster.peers.ask_peers = ask_peers
    part = await stage.ask(method, request, admin_pb2.ResetGroupOffsetResponse)
    assert (part.status.code, "b sleeps" in part.status.message) == (50400, True)


async def test_ages_and_times_are_of_the_messages_themselves(stage: Any) -> None:
    broker = await filled(stage)
    broker.ledger.progress.commit(1, 1, 0, 1)
    first, second, third = await stage.during(broker.ledger.store.read_at(1, 0, [0, 1, 2]))
    response = await call(stage, "DescribeGroupAccumulation", group="g")
    age_ms = response.accumulation.deliver_delay_time.ToMilliseconds()
    assert 1_900 <= age_ms <= 3_000
    assert response.accumulation.last_consume_timestamp == first.store_ms
    [span] = (await call(stage, "QueryTimeSpan", group="g")).queue_time_span_list
    assert (span.min_timestamp, span.max_timestamp) == (first.store_ms, third.store_ms)
    assert span.consume_timestamp == second.store_ms
    assert 1_900 <= span.delay_time_ms <= 3_000
    assert (await call(stage, "QueryTimeSpan", group="nobody")).status.code == 40403
