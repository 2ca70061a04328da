"""Producers against real processes. Statements 19 to 23 of the conformance checklist (wire-contract.md section 8), one
test each, and what our own SDK adds: packed bodies, requests and replies.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.v2_requests import receive_messages, receive_request, v2_message

import evenq
import evenq.aio
from evenq.client.wiring import ClientContext
from evenq.model.lanes import home_of
from evenq.testing.local_cluster import LocalCluster
from evenq.wire.convert import set_ms
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s

V2 = "/apache.rocketmq.v2.MessagingService/"
LANGUAGES = ["JAVA", "GOLANG", "PYTHON", "NODE_JS", "DOT_NET", "CPP", "RUST"]


pytestmark = pytest.mark.cluster(brokers=2, rebalancer=False)


def message(topic: str, message_id: str, body: bytes = b"x", **system: Any) -> v2.Message:
    made = v2_message(topic, message_id, body)
    for name, value in system.items():
        setattr(made.system_properties, name, value)
    return made


async def call(net: GrpcNet, address: str, name: str, request: Any, response: Any, language: str = "JAVA") -> Any:
    headers = {"x-mq-client-id": f"test-{language}", "x-mq-language": language}
    return response.FromString(
        await net.unary(address, V2 + name, request.SerializeToString(), timeout_ms=60_000, metadata=headers)
    )


async def send(net: GrpcNet, address: str, *messages: v2.Message, language: str = "JAVA") -> Any:
    return await call(
        net, address, "SendMessage", s.SendMessageRequest(messages=messages), s.SendMessageResponse, language
    )


async def receive(net: GrpcNet, address: str, topic: str, group: str) -> list[v2.Message]:
    request = receive_request(group, topic, queue=-1, poll_ms=5_000, invisible_ms=30_000, batch_size=32)
    headers = {"x-mq-client-id": "test-receiver", "x-mq-language": "JAVA"}
    return await receive_messages(net, address, request, metadata=headers)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def delayed(days: int) -> v2.Message:
    made = message("checks-delay", "far")
    set_ms(made.system_properties.delivery_timestamp, ClientContext.real().clock.now_ms() + days * 86_400_000)
    return made


def with_property(name: str) -> v2.Message:
    made = message("checks", "property")
    made.user_properties[name] = "v"
    return made


BAD = {
    v2.MESSAGE_BODY_EMPTY: message("checks", "empty", b""),
    v2.MESSAGE_BODY_TOO_LARGE: message("checks", "large", bytes((4 << 20) + 1)),
    v2.ILLEGAL_MESSAGE_TAG: message("checks", "tag", tag="a|b"),
    v2.ILLEGAL_MESSAGE_GROUP: message("checks-fifo", "group", message_group="g" * 64),
    v2.ILLEGAL_DELIVERY_TIME: delayed(41),
    v2.ILLEGAL_MESSAGE_ID: message("checks", " "),
    v2.ILLEGAL_MESSAGE_PROPERTY_KEY: with_property("a\x00b"),
}


async def test_checklist_19_a_failure_stands_at_both_levels_and_each_message_has_its_entry(
    cluster: LocalCluster, net: GrpcNet
) -> None:
    for language in LANGUAGES:
        for bad in BAD.values():
            answer = await send(net, cluster.endpoint, bad, language=language)
            [entry] = answer.entries
            assert answer.status.code == entry.status.code != v2.OK
            assert entry.message_id == bad.system_properties.message_id
    good = [message("checks", f"many-{number}") for number in range(5)]
    answer = await send(net, cluster.endpoint, *good)
    assert answer.status.code == v2.OK
    assert [entry.message_id for entry in answer.entries] == [f"many-{number}" for number in range(5)]
    assert {entry.status.code for entry in answer.entries} == {v2.OK}
    mixed = await send(net, cluster.endpoint, good[0], message("checks", "empty", b""))
    assert mixed.status.code == v2.MULTIPLE_RESULTS
    assert [entry.status.code for entry in mixed.entries] == [v2.OK, v2.MESSAGE_BODY_EMPTY]


def test_checklist_20_a_retry_of_a_message_id_is_stored_once_also_when_the_broker_died_meanwhile(
    tmp_path: Path,
) -> None:
    with LocalCluster(folder=tmp_path, rebalancer=False, broker_settings={"STORE__FLUSH": "sync"}) as one:

        async def tries(count: int) -> set[int]:
            async with open_net() as net:
                answers = await asyncio.gather(*(send(net, one.endpoint, message("t", "same")) for _ in range(count)))
                assert {answer.status.code for answer in answers} == {v2.OK}
                return {entry.offset for answer in answers for entry in answer.entries}

        first = asyncio.run(tries(8))
        assert len(first) == 1
        one.brokers[0].kill()
        one.brokers[0].start()
        one.wait_ready()
        assert asyncio.run(tries(2)) == first
        with evenq.Admin(endpoint=one.endpoint) as admin:
            assert sum(queue.max_offset for queue in admin.describe_topic("t").queues) == 1


async def test_checklist_21_producers_of_all_sdks_and_ours_share_one_order_of_a_message_group(
    cluster: LocalCluster,
) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("one-order", queues=4, message_type="FIFO")
    groups = [f"order-{number}" for number in range(6)]
    assert len({home_of(group, ["broker-a", "broker-b"]) for group in groups}) == 2
    net = GrpcNet()
    expected: dict[str, list[bytes]] = {group: [] for group in groups}
    async with evenq.aio.Producer(endpoint=cluster.endpoint) as ours:
        for number in range(48):
            group, body = groups[number % len(groups)], b"%d" % number
            expected[group].append(body)
            if number % 4 == 3:
                await ours.send(evenq.Message(topic="one-order", body=body, message_group=group))
                continue
            node, language = cluster.brokers[(number // 6) % 2], LANGUAGES[number % len(LANGUAGES)]
            made = message("one-order", f"id{number}", body, message_group=group, queue_id=number % 4)
            assert (await send(net, node.address, made, language=language)).status.code == v2.OK
    found: dict[str, list[bytes]] = {group: [] for group in groups}
    with evenq.PullConsumer(
        group="one-order", subscriptions={"one-order": "*"}, endpoint=cluster.endpoint, start_from="FIRST"
    ) as consumer:
        while sum(map(len, found.values())) < 48:
            for got in await asyncio.to_thread(consumer.poll):
                assert got.message_group is not None
                found[got.message_group].append(got.body)
    assert found == expected
    await net.close()


async def test_checklist_22_bad_messages_get_the_codes_of_the_contract(cluster: LocalCluster, net: GrpcNet) -> None:
    for code, bad in BAD.items():
        response = await send(net, cluster.endpoint, bad)
        assert (response.status.code, response.entries[0].status.code) == (code, code)
    for reserved in ("KEYS", "UNIQ_KEY"):
        response = await send(net, cluster.endpoint, with_property(reserved))
        assert response.status.code == v2.ILLEGAL_MESSAGE_PROPERTY_KEY


async def test_checklist_23_too_many_requests_on_two_of_three_tries_ends_in_success() -> None:
    """The broker's disk is full for a while: both levels tell it, nothing is half stored, and a producer that waits and
    tries again (as the SDKs of Java, Go and Node.js do, and ours) gets through; Python's stops at the first, by itself.
    """
    from evenq_broker.broker import Broker
    from evenq_broker.settings import BrokerSettings
    from evenq_proofs.loop_net import LoopNet

    from evenq.errors import StoreFull
    from evenq.model import BrokerAddress
    from evenq.runtime.clock import SystemClock

    context = ClientContext.real()
    net = LoopNet(SystemClock())
    broker = Broker(BrokerSettings(broker_name="a"), clock=context.clock, rng=context.rng, net=net)
    await broker.open()
    net.serve("a:8081", broker.rpcs())
    await broker.start([BrokerAddress("default", "a", 8081)])
    full = StoreFull("the broker's disk is 95% full")
    producer = evenq.aio.Producer(
        endpoint="a:8081", context=ClientContext(clock=context.clock, rng=context.rng, net=net)
    )
    await producer.send(evenq.Message(topic="t", body=b"first"))
    broker.ledger.store._state.set_full(full)
    codes = []
    for number in range(3):
        if number == 2:
            broker.ledger.store._state.set_full(None)
        data = await net.unary(
            "a:8081", V2 + "SendMessage",
            s.SendMessageRequest(messages=[message("t", "again")]).SerializeToString(), timeout_ms=60_000,
        )  # fmt: skip
        answer = s.SendMessageResponse.FromString(data)
        assert [entry.status.code for entry in answer.entries] == [answer.status.code]
        codes.append(answer.status.code)
    assert codes == [v2.TOO_MANY_REQUESTS, v2.TOO_MANY_REQUESTS, v2.OK]

    broker.ledger.store._state.set_full(full)
    before = broker.ledger.store.stats.refused
    sending = asyncio.ensure_future(producer.send(evenq.Message(topic="t", body=b"ours")))
    async with asyncio.timeout(60):
        while broker.ledger.store.stats.refused < before + 2:
            await context.clock.sleep_ms(1)
    broker.ledger.store._state.set_full(None)
    await sending
    assert broker.runtime.stats.messages_in == 3
    await producer.close()
    await broker.close()


@pytest.mark.parametrize("method", ["zlib", "lz4", "zstd"])
async def test_packed_bodies_reach_consumers_of_both_kinds_as_they_were(cluster: LocalCluster, method: str) -> None:
    topic, body = f"packed-{method}", b"all work and no play " * 2_001
    options = evenq.ProducerOptions(compression=method)
    with evenq.Producer(endpoint=cluster.endpoint, options=options) as producer:
        producer.send(evenq.Message(topic=topic, body=body))
    with evenq.PullConsumer(
        group=topic, subscriptions={topic: "*"}, endpoint=cluster.endpoint, start_from="FIRST"
    ) as consumer:
        [got] = consumer.poll()
        assert got.body == body
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_group(f"{topic}-v2", start_from="FIRST")
    net = GrpcNet()
    [found] = await receive(net, cluster.endpoint, topic, f"{topic}-v2")
    assert found.body == body
    assert found.system_properties.body_encoding == v2.IDENTITY
    assert found.system_properties.body_digest.checksum == f"{zlib.crc32(body):X}"
    await net.close()


@pytest.mark.slow
async def test_a_bomb_is_refused_by_its_unpacked_size(cluster: LocalCluster) -> None:
    net = GrpcNet()
    bomb = message("checks", "bomb", zlib.compress(bytes(64 << 20)), body_encoding=v2.GZIP)
    assert (await send(net, cluster.endpoint, bomb)).status.code == v2.MESSAGE_BODY_TOO_LARGE
    await net.close()


@pytest.mark.slow
async def test_requests_are_answered_by_another_client_and_one_without_an_answer_ends_in_time(
    cluster: LocalCluster,
) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer, evenq.Producer(endpoint=cluster.endpoint) as answers:

        def answer(messages: Sequence[evenq.ReceivedMessage]) -> None:
            for request in messages:
                if request.body != b"silence":
                    answers.send(evenq.reply_to(request, request.body.upper()))

        consumer = evenq.PushConsumer(
            group="answers", endpoint=cluster.endpoint, listener=answer, subscriptions={"questions": "*"},
            start_from="FIRST",
        ).start()  # fmt: skip
        with consumer:
            replies = [
                producer.request(evenq.Message(topic="questions", body=text), timeout_ms=60_000).body
                for text in (b"one", b"two", b"three")
            ]
            assert replies == [b"ONE", b"TWO", b"THREE"]
            with pytest.raises(evenq.errors.RequestTimeout, match="no reply"):
                producer.request(evenq.Message(topic="questions", body=b"silence"), timeout_ms=300)
            with pytest.raises(evenq.errors.IllegalMessageTag):
                producer.request(evenq.Message(topic="questions", body=b"x", tag="a|b"), timeout_ms=20_000)
    async with evenq.aio.Producer(endpoint=cluster.endpoint) as asking:
        with pytest.raises(evenq.errors.RequestTimeout):
            await asking.request(evenq.Message(topic="questions", body=b"silence"), timeout_ms=300)


@pytest.mark.slow  # it stands still for longer than all tries
def test_a_broker_that_stands_still_for_longer_than_the_tries_take_stores_each_message_once(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path, rebalancer=False) as one:
        options = evenq.ProducerOptions(timeout_ms=200, max_attempts=50, batch_messages=20)
        with evenq.Producer(endpoint=one.endpoint, options=options) as producer:
            producer.send(evenq.Message(topic="stills", body=b"first"))
            futures = []
            for number in range(3):
                futures += [
                    producer.send_async(evenq.Message(topic="stills", body=b"%d-%d" % (number, at)))
                    for at in range(200)
                ]
                one.brokers[0].pause()
                futures += [
                    producer.send_async(evenq.Message(topic="stills", body=b"%d+%d" % (number, at))) for at in range(20)
                ]
                with pytest.raises(TimeoutError):
                    futures[-1].result(0.7)
                one.brokers[0].resume()
                producer.flush(20_000)
            places = [future.result() for future in futures]
        with evenq.Admin(endpoint=one.endpoint) as admin:
            kept = sum(queue.max_offset for queue in admin.describe_topic("stills").queues)
        assert kept == len(futures) + 1
        assert len({(place.queue, place.offset) for place in places}) == len(places), (
            "and each retry is answered with its place"
        )
