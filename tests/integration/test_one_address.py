"""Clients outside the cluster: three brokers, of which clients reach one address for all (a load balancer, a forwarded
port) or one address for each. What brokers tell inside leads nowhere here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.rpc.cluster.directing import DIRECTED
from evenq_proofs.command_line import run_evenq
from evenq_proofs.forward import Forward
from evenq_proofs.nets import open_net
from evenq_proofs.outside import Outside, outside
from evenq_proofs.waiting import until
from pyspark.sql.types import StructType
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.rows.requested import columns
from pyspark_evenq.source.reader import BatchReader

import evenq
from evenq.errors import ConnectionFailed, Error, Forbidden, PreconditionFailed
from evenq.runtime.clock import SystemClock
from evenq.wire.signed_net import SignedNet, Signer
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, backup_pb2, common_pb2, data_pb2, groups_pb2, staging_pb2

ROOT = evenq.Credentials(access_key="root", secret_key="canary-root-4711")
SHOP = evenq.Credentials(access_key="shop", secret_key="canary-shop-4711")
USERS = """
[users.evenq-internal]
secret = "canary-internal-4711"
internal = true
[users.root]
secret = "canary-root-4711"
admin = true
[users.shop]
secret = "canary-shop-4711"
allow = [
  { resource = "topic:shop*", actions = ["publish", "consume", "describe"] },
  { resource = "group:shop*", actions = ["consume", "describe"] },
]
[users.guest]
secret = "canary-guest-4711"
allow = [{ resource = "topic:guest", actions = ["consume"] }]
"""
COUNT = 240
STRICT = {"AUTO_CREATE_TOPICS": "false", "DRAIN_MS": "5000"}


class Way:
    """A way in."""

    def __init__(self, running: Outside, *, signed: bool = False) -> None:
        self.cluster, self.ports, self.endpoint = running.cluster, running.ports, running.endpoint
        self.keys = SHOP if signed else None
        for port in self.ports:  # on a busy machine a broker may be ready before the others know of it
            with evenq.Admin(endpoint=f"127.0.0.1:{port}", credentials=ROOT if signed else None) as admin:
                until(lambda admin=admin: len(admin.list_brokers()) == len(self.ports))  # type: ignore[misc]

    def admin(self) -> evenq.Admin:
        return evenq.Admin(endpoint=self.endpoint, credentials=ROOT if self.keys else None)


# Every story again for other ways in: three more brokers each.
SLOW_WAYS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("signed", "each", "not told")]


@pytest.fixture(scope="module", params=["open", *SLOW_WAYS])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    kind = request.param
    users = USERS if kind == "signed" else ""
    with outside(
        tmp_path_factory.mktemp("outside"), users=users, each=kind == "each", shared=kind != "not told", **STRICT
    ) as running:
        yield Way(running, signed=bool(users))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    with outside(tmp_path_factory.mktemp("signed"), users=USERS, **STRICT) as running:
        yield Way(running, signed=True)


def send(way: Way, topic: str, *, keyed: bool = False, endpoint: str = "") -> None:
    with evenq.Producer(endpoint=endpoint or way.endpoint, credentials=way.keys) as producer:
        for number in range(COUNT):
            key = f"k{number % 12}" if keyed else ""
            producer.send(evenq.Message(topic=topic, body=b"%d" % number, message_group=key or None))


ALL = sorted(b"%d" % number for number in range(COUNT))


def test_concurrent_push_consumers_share_the_queues_of_all_brokers(way: Way) -> None:
    with way.admin() as admin:
        admin.create_topic("shop-push", queues=2)
    known_everywhere(way, "shop-push", brokers=3)
    send(way, "shop-push")
    seen: list[bytes] = []
    brokers: set[str] = set()

    def listen(messages: Any) -> None:
        seen.extend(message.body for message in messages)
        brokers.update(message.queue.broker_name for message in messages)

    def member() -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group="shop-push", subscriptions={"shop-push": "*"}, listener=listen, endpoint=way.endpoint,
            credentials=way.keys,
        )  # fmt: skip

    with member(), member():
        until(lambda: len(seen) >= COUNT)
        time.sleep(0.5)
    assert sorted(seen) == ALL
    assert len(brokers) == 3
    with way.admin() as admin:
        assert sum(queue.lag for queue in admin.describe_group("shop-push").queues) == 0, "progress reached each broker"


def test_ordered_push_consumers_keep_the_order_over_a_hand_over(way: Way) -> None:
    with way.admin() as admin:
        admin.create_topic("shop-ordered", queues=2, message_type="FIFO")
    send(way, "shop-ordered", keyed=True)
    seen: list[tuple[str, int]] = []

    def listen(messages: Any) -> None:
        for message in messages:
            time.sleep(0.005)
            seen.append((message.message_group, int(message.body)))

    def member() -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group="shop-ordered", subscriptions={"shop-ordered": "*"}, listener=listen, ordered=True,
            endpoint=way.endpoint, credentials=way.keys,
        )  # fmt: skip

    with member():
        until(lambda: len(seen) > COUNT // 6)
        with member():
            until(lambda: len(seen) >= COUNT)
            time.sleep(0.5)
    assert Counter(seen) == Counter({(f"k{number % 12}", number): 1 for number in range(COUNT)})
    for key in {key for key, _ in seen}:
        numbers = [number for k, number in seen if k == key]
        assert numbers == sorted(numbers)


def test_pull_and_simple_consumers_and_delays_and_transactions(way: Way) -> None:
    with way.admin() as admin:
        for name, kind in (("shop-pull", "NORMAL"), ("shop-simple", "NORMAL"), ("shop-tx", "TRANSACTION")):
            admin.create_topic(name, queues=2, message_type=kind)
    send(way, "shop-pull")
    send(way, "shop-simple")
    pulled: list[bytes] = []
    with evenq.PullConsumer(
        group="shop-pull", subscriptions={"shop-pull": "*"}, endpoint=way.endpoint, credentials=way.keys
    ) as consumer:
        deadline = time.monotonic() + 60
        while len(pulled) < COUNT and time.monotonic() < deadline:
            pulled += [message.body for message in consumer.poll(wait_ms=500)]
        consumer.commit()
    assert sorted(pulled) == ALL
    received: list[bytes] = []
    with evenq.SimpleConsumer(
        group="shop-simple", subscriptions={"shop-simple": "*"}, endpoint=way.endpoint, credentials=way.keys
    ) as simple:
        deadline = time.monotonic() + 60
        while len(received) < COUNT and time.monotonic() < deadline:
            for message in simple.receive(max_messages=32, wait_ms=1_000, invisible_ms=30_000):
                received.append(message.body)
                simple.ack(message)
    assert sorted(received) == ALL
    with evenq.Producer(
        endpoint=way.endpoint, credentials=way.keys, checker=lambda _: evenq.TransactionResolution.COMMIT,
        transaction_topics=["shop-tx"],
    ) as producer:  # fmt: skip
        for number in range(12):
            with producer.begin_transaction(evenq.Message(topic="shop-tx", body=b"%d" % number)) as transaction:
                transaction.commit()
    committed: list[bytes] = []
    with evenq.SimpleConsumer(
        group="shop-tx", subscriptions={"shop-tx": "*"}, endpoint=way.endpoint, credentials=way.keys
    ) as simple:
        deadline = time.monotonic() + 60
        while len(committed) < 12 and time.monotonic() < deadline:
            for message in simple.receive(max_messages=32, wait_ms=1_000, invisible_ms=30_000):
                committed.append(message.body)
                simple.ack(message)
    assert sorted(committed) == sorted(b"%d" % number for number in range(12))


# ------------------------------------------------------------------------------------- one call, one broker, whose rights


DATA, GROUPS, V2 = "/evenq.v1.Data/", "/evenq.v1.Groups/", "/apache.rocketmq.v2.MessagingService/"
STAGING, BACKUP = "/evenq.v1.Staging/", "/evenq.v1.Backup/"


def asked(way: Way, work: Callable[[SignedNet], Any], user: evenq.Credentials = SHOP) -> Any:
    async def story() -> Any:
        async with open_net() as net:
            return await work(SignedNet(net, Signer.of(user, SystemClock())))

    return asyncio.run(story())


async def brokers_at(net: SignedNet, *, topic: str, port: int) -> set[str]:
    """The brokers in the route of a topic as the broker at this port gives it."""
    query = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic))
    query.endpoints.scheme = definition_pb2.IPv4
    query.endpoints.addresses.add(host="127.0.0.1", port=port)
    method = "/apache.rocketmq.v2.MessagingService/QueryRoute"
    content = await net.unary(f"127.0.0.1:{port}", method, query.SerializeToString(), timeout_ms=60_000)
    return {queue.broker.name for queue in service_pb2.QueryRouteResponse.FromString(content).message_queues}


def known_everywhere(way: Way, topic: str, *, brokers: int) -> None:
    """Waits until the route at each port has this number of brokers: they learn of a new topic a moment later."""
    for port in way.ports:
        ask = partial(brokers_at, topic=topic, port=port)
        until(lambda ask=ask: len(asked(way, ask, ROOT)) == brokers)  # type: ignore[misc]


@pytest.mark.slow
def test_a_call_that_names_another_broker_is_judged_by_its_callers_rights(signed: Way) -> None:
    with signed.admin() as admin:
        admin.create_topic("others", queues=1)
        admin.create_topic("shop", queues=1)
        admin.create_group("others")
    other = common_pb2.Queue(topic="others", broker_name="broker-b", queue_id=0)
    queues, filled = [other], definition_pb2.Message(body=b"x")
    requests = {
        DATA + "Publish": data_pb2.PublishRequest(queue=other, messages=[filled]),
        DATA + "Pull": data_pb2.PullRequest(group="shop", queue=other),
        DATA + "QueryOffsets": data_pb2.QueryOffsetsRequest(group="others", queues=queues),
        DATA + "CommitOffsets": data_pb2.CommitOffsetsRequest(
            group="others", offsets=[data_pb2.CommitOffset(queue=other, offset=0)]
        ),
        DATA + "SendBack": data_pb2.SendBackRequest(group="others", queue=other),
        DATA + "CountDeliveries": data_pb2.CountDeliveriesRequest(group="others", queue=other),
        DATA + "Transact": data_pb2.TransactRequest(group="others", acks=[data_pb2.TransactAck(topic="others")]),
        GROUPS + "ListMembers": groups_pb2.ListMembersRequest(group="others"),
        GROUPS + "LockQueues": groups_pb2.LockQueuesRequest(group="others", client_id="c", queues=queues),
        GROUPS + "UnlockQueues": groups_pb2.UnlockQueuesRequest(group="others", client_id="c", queues=queues),
        V2 + "Heartbeat": service_pb2.HeartbeatRequest(group=definition_pb2.Resource(name="others")),
        V2 + "NotifyClientTermination": service_pb2.NotifyClientTerminationRequest(
            group=definition_pb2.Resource(name="others")
        ),
    }
    batch: Any = {"query_id": "q", "topics": ["others"]}
    requests |= {
        STAGING + "Begin": staging_pb2.BeginRequest(**batch),
        STAGING + "Stage": staging_pb2.StageRequest(topic="others", query_id="q", token=b"t" * 16),
        STAGING + "Decide": staging_pb2.DecideRequest(**batch),
        STAGING + "Abandon": staging_pb2.AbandonRequest(**batch),
    }
    streams: dict[str, tuple[Any, Callable[[bytes], int]]] = {
        BACKUP + "Fetch": (backup_pb2.FetchBackupRequest(broker_name="broker-b"), lambda _: 0),  # a frame is an answer
        DATA + "Scan": (
            data_pb2.ScanRequest(queue=other, end=1),
            lambda frame: data_pb2.ScanBlock.FromString(frame).status.code,
        ),
        GROUPS + "Session": (
            groups_pb2.SessionRequest(join=groups_pb2.Join(group="others", member=groups_pb2.Member(client_id="c"))),
            lambda frame: groups_pb2.SessionEvent.FromString(frame).refused.status.code,
        ),
    }
    assert requests.keys() | streams.keys() == DIRECTED, "every call that may go on is tried here"

    async def story(net: SignedNet) -> list[str]:
        passed = []
        for named in ("broker-a", "broker-b", "broker-c"):
            for mark in ({}, {"x-evenq-forwarded": "1", "x-evenq-user": "root", "x-evenq-peer": "10.9.9.9:1"}):
                headers = {"x-mq-client-id": "c", "x-evenq-broker": named, **mark}
                for method, request in requests.items():
                    answer = await net.unary(
                        signed.endpoint, method, request.SerializeToString(), timeout_ms=60_000, metadata=headers
                    )
                    code = admin_pb2.CreateTopicResponse.FromString(answer).status.code  # all have it as field 1
                    if code != Forbidden.code:
                        passed.append(f"{method} to {named}: {code}")
                for method, (message, code_of) in streams.items():
                    word: Any = message.SerializeToString()
                    frames = net.stream(
                        signed.endpoint, method, each(word) if method == GROUPS + "Session" else word, timeout_ms=60_000,
                        metadata=headers,
                    )  # fmt: skip
                    try:
                        async for frame in frames:
                            if code_of(frame) != Forbidden.code:
                                passed.append(f"{method} to {named}")
                            break
                    except Forbidden:
                        pass
        return passed

    assert asked(signed, story) == []


async def each(*words: bytes) -> AsyncIterator[bytes]:
    for word in words:
        yield word


def test_a_client_id_stays_its_users_at_every_broker(signed: Way) -> None:
    async def beat(net: SignedNet) -> int:
        headers = {"x-mq-client-id": "mine", "x-evenq-broker": "broker-c"}
        request = service_pb2.HeartbeatRequest().SerializeToString()
        address = f"127.0.0.1:{signed.ports[turn]}"
        answer = await net.unary(address, V2 + "Heartbeat", request, timeout_ms=60_000, metadata=headers)
        return service_pb2.HeartbeatResponse.FromString(answer).status.code

    turn = 0
    assert asked(signed, beat) == definition_pb2.OK
    turn = 1  # another broker, which never heard of the id
    assert asked(signed, beat, ROOT) == Forbidden.code


def test_a_call_goes_on_once_and_never_to_a_broker_that_nobody_knows(signed: Way) -> None:
    with signed.admin() as admin:
        admin.create_topic("shop-once", queues=1)
    queue = common_pb2.Queue(topic="shop-once", broker_name="broker-b", queue_id=0)
    request = data_pb2.QueryOffsetsRequest(queues=[queue]).SerializeToString()

    async def story(net: SignedNet) -> list[int]:
        codes = []
        for port, named, mark in (
            (0, "broker-b", {}), (1, "broker-b", {}), (0, "broker-z", {}), (0, "broker-b", {"x-evenq-forwarded": "1"}),
        ):  # fmt: skip
            answer = await net.unary(
                f"127.0.0.1:{signed.ports[port]}", DATA + "QueryOffsets", request, timeout_ms=60_000,
                metadata={"x-evenq-broker": named, **mark},
            )  # fmt: skip
            codes.append(data_pb2.QueryOffsetsResponse.FromString(answer).status.code)
        return codes

    right = definition_pb2.OK
    assert asked(signed, story) == [right, right, ConnectionFailed.code, PreconditionFailed.code]


@pytest.mark.parametrize("call", ["ack", "change", "dead letter", "pull"])
@pytest.mark.slow
def test_a_call_of_the_public_protocol_finds_the_queues_broker_from_any_other(signed: Way, call: str) -> None:
    """Its header names no broker: the receipt handle or the queue says whose it is, and the caller's rights count."""
    name = f"shop-{call.replace(' ', '-')}"
    with signed.admin() as admin:
        admin.create_topic(name, queues=1)
        admin.create_group(name)
    topic, resource = definition_pb2.Resource(name=name), definition_pb2.Resource(name=name)
    queue = definition_pb2.MessageQueue(topic=topic, broker=definition_pb2.Broker(name="broker-b"))
    wrong, right = (f"127.0.0.1:{signed.ports[index]}" for index in (2, 1))
    headers = {"x-mq-client-id": f"reader-{name}"}

    async def one(net: SignedNet, method: str, request: Any, response: Any, *, address: str = wrong) -> Any:
        data = request.SerializeToString()
        return response.FromString(await net.unary(address, method, data, timeout_ms=60_000, metadata=headers))

    async def frames(net: SignedNet, method: str, request: Any, response: Any) -> list[Any]:
        stream = net.stream(wrong, V2 + method, request.SerializeToString(), timeout_ms=60_000, metadata=headers)
        return [response.FromString(frame) async for frame in stream]

    async def pull(net: SignedNet) -> list[bytes]:
        request = service_pb2.PullMessageRequest(group=resource, message_queue=queue, batch_size=8)
        return [one.message.body for one in await frames(net, "PullMessage", request, service_pb2.PullMessageResponse)
                if one.HasField("message")]  # fmt: skip

    async def receive(net: SignedNet) -> Any:
        request = service_pb2.ReceiveMessageRequest(group=resource, message_queue=queue, batch_size=1)
        request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, 5
        found = await frames(net, "ReceiveMessage", request, service_pb2.ReceiveMessageResponse)
        [message] = [frame.message for frame in found if frame.HasField("message")]
        return message.system_properties

    async def settle(net: SignedNet, message: Any) -> int:
        handle, id_ = message.receipt_handle, message.message_id
        if call == "ack":
            ack = service_pb2.AckMessageRequest(group=resource, topic=topic)
            ack.entries.add(message_id=id_, receipt_handle=handle)
            answer = await one(net, V2 + "AckMessage", ack, service_pb2.AckMessageResponse)
        elif call == "change":
            change = service_pb2.ChangeInvisibleDurationRequest(group=resource, topic=topic, receipt_handle=handle)
            change.invisible_duration.seconds = 0
            answer = await one(net, V2 + "ChangeInvisibleDuration", change, service_pb2.ChangeInvisibleDurationResponse)
        else:
            dead = service_pb2.ForwardMessageToDeadLetterQueueRequest(
                group=resource, topic=topic, receipt_handle=handle, message_id=id_, max_delivery_attempts=1
            )
            answer = await one(
                net, V2 + "ForwardMessageToDeadLetterQueue", dead,
                service_pb2.ForwardMessageToDeadLetterQueueResponse,
            )  # fmt: skip
        return int(answer.status.code)

    async def story(net: SignedNet) -> None:
        place = common_pb2.Queue(topic=name, broker_name="broker-b", queue_id=0)
        publish = data_pb2.PublishRequest(queue=place)
        publish.messages.add(body=b"x").system_properties.message_id = "id-1"
        stored = await one(net, DATA + "Publish", publish, data_pb2.PublishResponse, address=right)
        assert stored.status.code == definition_pb2.OK
        if call == "pull":
            assert await pull(net) == [b"x"]
            return
        message = await receive(net)
        assert await settle(net, message) == definition_pb2.OK
        if call == "change":  # given back at once: it comes again, with one attempt more
            assert (await receive(net)).delivery_attempt == 2

    asked(signed, story)
    with signed.admin() as admin:
        details = admin.describe_group(name) if call != "pull" else None
        letters = admin.list_dead_letters(name) if call == "dead letter" else None
    if call in {"ack", "dead letter"}:
        assert details is not None
        assert (details.summary.lag, details.summary.silent) == (0, ()), "settled where the queue is"
    if letters is not None:
        assert [(count.broker_name, count.waiting) for count in letters.counts] == [("broker-b", 1)]
    intruder = evenq.Credentials(access_key="guest", secret_key="canary-guest-4711")

    async def refused(net: SignedNet) -> int:
        if call == "pull":
            try:
                request = service_pb2.PullMessageRequest(group=resource, message_queue=queue, batch_size=8)
                [first, *_] = await frames(net, "PullMessage", request, service_pb2.PullMessageResponse)
            except Forbidden as error:
                return error.code
            return int(first.status.code)
        return await settle(net, definition_pb2.SystemProperties(receipt_handle="e1.broker-b.x", message_id="id-1"))

    headers = {"x-mq-client-id": "guest"}
    assert asked(signed, refused, intruder) == Forbidden.code


# -------------------------------------------------------------------------------------------------------- other ways in


def command(*words: str, endpoint: str) -> str:
    return run_evenq(*words, "--endpoint", endpoint, GRPC_VERBOSITY="NONE")


@pytest.mark.slow  # three brokers and five commands of its own
def test_a_forwarded_port_of_a_cluster_that_knows_nothing_of_it(tmp_path: Path) -> None:
    """`kubectl port-forward`: one broker's usual port; the addresses that brokers tell there lead nowhere."""
    with (
        outside(tmp_path, each=True, **STRICT) as running,
        closing(Forward(running.cluster.brokers[0].port)) as forward,
    ):
        way = Way(running)
        endpoint = f"127.0.0.1:{forward.port}"
        with evenq.Admin(endpoint=endpoint) as admin:
            admin.create_topic("forwarded", queues=1)
        with (
            evenq.Producer(endpoint=endpoint, options=evenq.ProducerOptions(timeout_ms=1_000)) as producer,
            pytest.raises(Error),
        ):
            producer.send(evenq.Message(topic="forwarded", body=b"the addresses inside lead nowhere"))
        send(way, "forwarded", endpoint=f"{endpoint}?one-address")
        seen: list[bytes] = []
        with evenq.PushConsumer(
            group="g", subscriptions={"forwarded": "*"}, endpoint=f"evenq://{endpoint}?one-address",
            listener=lambda messages: seen.extend(message.body for message in messages),
        ):  # fmt: skip
            until(lambda: len(seen) >= COUNT)
        assert sorted(seen) == ALL
        command("produce", "forwarded", "--body", "typed", "--one-address", endpoint=endpoint)
        output = command("consume", "forwarded", "--group", "g2", "--from", "first", "--max", str(COUNT + 1), "--json", "--one-address",
                       endpoint=endpoint)  # fmt: skip
        assert len(output.splitlines()) == COUNT + 1
        assert "broker-c" in command("broker", "list", "--one-address", endpoint=endpoint)


@pytest.mark.slow
def test_the_command_line_and_spark_through_one_address(way: Way) -> None:
    if way.keys:
        pytest.skip("keys make no difference here")
    command("topic", "create", "typed", "--queues", "1", endpoint=way.endpoint)
    for word in ("one", "two", "three"):
        command("produce", "typed", "--body", word, endpoint=way.endpoint)
    output = command(
        "consume", "typed", "--group", "typed", "--from", "first", "--max", "3", "--json", endpoint=way.endpoint
    )
    assert len(output.splitlines()) == 3
    with way.admin() as admin:
        admin.create_topic("table", queues=2)
    send(way, "table")
    options = ReadOptions.parse({"endpoints": way.endpoint, "subscribe": "table"}, streaming=False)
    reader = BatchReader(options, columns(StructType()))
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == COUNT


def test_a_topic_of_one_broker_takes_messages_wherever_the_call_lands(way: Way) -> None:
    request = admin_pb2.CreateTopicRequest(topic="shop-lone", queues=2, local=True).SerializeToString()

    async def create(net: SignedNet) -> None:
        answer = await net.unary(f"127.0.0.1:{way.ports[2]}", "/evenq.v1.Admin/CreateTopic", request, timeout_ms=60_000)
        check(admin_pb2.CreateTopicResponse.FromString(answer).status)

    asked(way, create, ROOT)
    known_everywhere(way, "shop-lone", brokers=1)
    for _ in range(3):  # each producer has a connection of its own, which leads to another broker
        send(way, "shop-lone")
    with way.admin() as admin:
        queues = admin.describe_topic("shop-lone").queues
    assert {queue.queue.broker_name for queue in queues} == {"broker-c"}
    assert sum(queue.max_offset - queue.min_offset for queue in queues) == 3 * COUNT


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "LITE"])
def test_a_send_of_the_public_protocol_finds_a_topic_that_is_on_other_brokers(way: Way, kind: str) -> None:
    """It names no broker, and lands at any: at one that may not make the topic, too."""
    topic, names = f"shop-apart-{kind.lower()}", [f"name-{number}" for number in range(12)]
    with way.admin() as admin:
        admin.create_topic(topic, message_type=kind, brokers={"broker-b": 1, "broker-c": 1})
        until(lambda: {at.queue.broker_name for at in admin.describe_topic(topic).queues} == {"broker-b", "broker-c"})

    async def send_one(net: SignedNet, port: int, number: int) -> service_pb2.SendMessageResponse:
        request = service_pb2.SendMessageRequest()
        message = request.messages.add(topic=definition_pb2.Resource(name=topic), body=b"%d" % number)
        message.system_properties.message_id = f"{topic}-{number}"
        if kind == "FIFO":
            message.system_properties.message_group = names[number % 12]
        if kind == "LITE":
            message.system_properties.lite_topic = names[number % 12]
        sent = await net.unary(
            f"127.0.0.1:{port}", V2 + "SendMessage", request.SerializeToString(), timeout_ms=60_000,
            metadata={"x-mq-client-id": "apart"},
        )  # fmt: skip
        return service_pb2.SendMessageResponse.FromString(sent)

    async def send_all(net: SignedNet) -> list[int]:
        for port in way.ports:  # the others hear of the topic with the next routes
            deadline = time.monotonic() + 60
            while (await send_one(net, port, -1)).status.code == definition_pb2.TOPIC_NOT_FOUND:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        ports = [way.ports[number % 3] for number in range(24)]
        return [(await send_one(net, port, number)).status.code for number, port in enumerate(ports)]

    assert set(asked(way, send_all, ROOT)) == {definition_pb2.OK}
    got: list[evenq.ReceivedMessage] = []

    def all_came(
        batch: list[evenq.ReceivedMessage], ack: Callable[[evenq.ReceivedMessage], None] | None = None
    ) -> bool:
        for message in batch:
            got.append(message)
            if ack is not None:
                ack(message)
        return {int(message.body) for message in got} == {-1, *range(24)}

    there = {"endpoint": way.endpoint, "credentials": ROOT if way.keys else None}
    if kind == "LITE":
        with evenq.LiteSimpleConsumer(group=topic, topic=topic, lite_topics=names, **there) as lite:
            until(lambda: all_came(lite.receive(wait_ms=1_000), lite.ack))
    else:
        with evenq.PullConsumer(group=topic, subscriptions={topic: "*"}, start_from="FIRST", **there) as pull:
            until(lambda: all_came(pull.poll(32, wait_ms=1_000)))
    if kind != "LITE":  # whichever broker answers is said to have them
        assert {message.queue.broker_name for message in got} == {"broker-b", "broker-c"}
    if kind == "FIFO":
        homes = {(message.message_group, message.queue.broker_name) for message in got}
        assert len(homes) == len(names), "a group has one home, wherever it was sent to"


@pytest.mark.slow  # three brokers stop in turn under load
def test_a_broker_that_stops_and_comes_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with outside(tmp_path, **STRICT) as running:
        way = Way(running)
        with way.admin() as admin:
            admin.create_topic("steady", queues=2)
        seen: Counter[bytes] = Counter()
        sent: list[bytes] = []
        stop = threading.Event()

        def produce() -> None:
            with evenq.Producer(endpoint=way.endpoint) as producer:
                while not stop.is_set():
                    body = b"%d" % len(sent)
                    try:
                        producer.send(evenq.Message(topic="steady", body=body))
                        sent.append(body)
                    except Error:
                        continue
                    time.sleep(0.005)

        def member() -> evenq.PushConsumer:
            return evenq.PushConsumer(
                group="steady", subscriptions={"steady": "*"}, endpoint=way.endpoint,
                listener=lambda messages: seen.update(message.body for message in messages),
            )  # fmt: skip

        with member(), member():
            thread = threading.Thread(target=produce)
            thread.start()
            until(lambda: len(seen) > 200)
            for index in (1, 2, 0):
                node = way.cluster.brokers[index]
                node.stop()
                time.sleep(1)
                node.restart()
                node.wait_ready()
                time.sleep(1)
            stop.set()
            thread.join()
            until(lambda: set(sent) <= set(seen))
            time.sleep(1)
        assert set(sent) <= set(seen)
        assert not {body: times for body, times in seen.items() if times > 1}
