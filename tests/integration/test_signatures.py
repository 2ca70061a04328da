"""A cluster that takes signed calls only: nameserver, rebalancer and two brokers as processes, our SDK and a client
that knows only the protocol. Statement 4 of the conformance list (wire contract 2.2).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.command_line import evenq_process
from evenq_proofs.v2_requests import receive_request
from evenq_proofs.waiting import until
from pyspark.sql.types import StructType
from pyspark_evenq.brokers import connection
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.rows.requested import columns
from pyspark_evenq.source.reader import BatchReader

import evenq
from evenq.errors import Forbidden, Unauthorized
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.signature import date_time
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
SECRET = "canary-orders-4711"
ROOT = evenq.Credentials(access_key="root", secret_key="canary-root-4711")
ORDERS = evenq.Credentials(access_key="orders", secret_key=SECRET)
FILE = f"""
[users.evenq-internal]
secret = "canary-internal-4711"
internal = true
[users.root]
secret = "canary-root-4711"
admin = true
[users.orders]
secret = "{SECRET}"
allow = [
  {{ resource = "topic:orders*", actions = ["publish", "consume"] }},
  {{ resource = "group:orders-*", actions = ["consume"] }},
]
[users.leaver]
secret = "canary-leaver-4711"
allow = [{{ resource = "topic:orders*", actions = ["publish"] }}]
"""
READER_GRANT = '{ resource = "topic:orders", actions = ["consume"] },'
FILE += f"""
[users.reader]
secret = "canary-reader-4711"
allow = [
  {READER_GRANT}
  {{ resource = "group:orders-*", actions = ["consume"] }},
]
"""
LOST_GRANT = '{ resource = "topic:orders", actions = ["consume", "describe"] },'
FILE += f"""
[users.reader-of-two]
secret = "canary-reader-of-two-4711"
allow = [
  {LOST_GRANT}
  {{ resource = "topic:orders-kept", actions = ["consume"] }},
  {{ resource = "group:orders-*", actions = ["consume"] }},
]
"""
READER_OF_TWO = evenq.Credentials(access_key="reader-of-two", secret_key="canary-reader-of-two-4711")
READER = evenq.Credentials(access_key="reader", secret_key="canary-reader-4711")
LEAVER = evenq.Credentials(access_key="leaver", secret_key="canary-leaver-4711")


def prepare(admin: evenq.Admin) -> None:
    admin.create_topic("orders")
    admin.create_topic("other")
    admin.create_topic("orders-kept")


pytestmark = pytest.mark.cluster(
    brokers=2,
    users=FILE,
    settings={"AUTH__RELOAD_MS": "200", "LOG_LEVEL": "DEBUG"},
    broker_settings={"DEFAULT_START_FROM": "FIRST", "AUTO_CREATE_TOPICS": "false"},
    admin=ROOT,
    prepare=prepare,
)


@pytest.fixture
def users(cluster: LocalCluster) -> Path:
    return Path(cluster.brokers[0].environment["EVENQ_BROKER_AUTH__USERS"])


def moment(off_ms: int = 0) -> str:
    """The header of now, or of so much later."""
    return date_time(SystemClock().now_ms() + off_ms)


def headers(credential: str = "orders", secret: str = SECRET, *, date: str = "", upper: bool = True) -> dict[str, str]:
    """Signed by hand, as another SDK does."""
    date = date or moment()
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    value = (
        f"Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature.upper() if upper else signature}"
    )
    return {"x-mq-client-id": "c", "x-mq-date-time": date, "authorization": f"MQv2-HMAC-SHA1 {value}"}


def route_request(topic: str) -> bytes:
    request = service_pb2.QueryRouteRequest()
    request.topic.name = topic
    request.endpoints.scheme = definition_pb2.IPv4
    request.endpoints.addresses.add(host="127.0.0.1", port=8081)
    return request.SerializeToString()


async def test_4_a_signature_counts_in_either_case_with_or_without_a_region_and_else_is_unauthorized(
    cluster: LocalCluster,
) -> None:
    """Statement 4, and 2.2: the time in UTC, of any zone, or RFC 3339, and not an old one; the gRPC status is OK."""
    net = GrpcNet()

    async def code(events: dict[str, str], topic: str = "orders") -> int:
        raw = await net.unary(
            cluster.endpoint, V2 + "QueryRoute", route_request(topic), timeout_ms=60_000, metadata=events
        )
        return int(service_pb2.QueryRouteResponse.FromString(raw).status.code)

    try:
        for credential in ("orders", "orders//Rocketmq", "orders/cn-hangzhou/RocketMQ"):
            for upper in (True, False):
                rfc_3339 = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f789Z")
                for date in (moment(), moment(345 * 60_000), rfc_3339):  # Nepal's clocks show 5 h 45 min more
                    assert await code(headers(credential, upper=upper, date=date)) == 20000
        assert await code(headers(secret="wrong-secret")) == 40100
        assert await code(headers("stranger")) == 40100
        assert await code(headers("")) == 40100
        assert await code({"x-mq-client-id": "c"}) == 40100
        assert await code({**headers(), "x-mq-date-time": moment(-2_000)}) == 40100
        assert await code(headers(date=moment(-400_000))) == 40100  # listened to some minutes ago
        assert await code(headers(), topic="other") == 40300
    finally:
        await net.close()


async def test_4_streams_are_refused_inside_their_answers_too(cluster: LocalCluster) -> None:
    """Statement 4: ReceiveMessage and Telemetry carry the status in a frame."""
    net = GrpcNet()

    async def settings() -> AsyncIterator[bytes]:
        command = service_pb2.TelemetryCommand()
        command.settings.publishing.topics.add().name = "orders"
        yield command.SerializeToString()
        await asyncio.Event().wait()

    async def first(method: str, reported: dict[str, str], request: Any, answer: Any) -> int:
        frames = net.stream(cluster.endpoint, V2 + method, request, timeout_ms=60_000, metadata=reported)
        try:
            async for frame in frames:
                return int(answer.FromString(frame).status.code)
        finally:
            await frames.aclose()
        return 0

    receive = receive_request("orders-g", "orders", poll_ms=0, batch_size=1)
    encoded = receive.SerializeToString()
    try:
        let_in = {20000, 40401}  # with and without messages of the other tests
        for reported, wanted in ((headers(), let_in), (headers(secret="wrong-secret"), {40100}), ({}, {40100})):
            assert await first("ReceiveMessage", reported, encoded, service_pb2.ReceiveMessageResponse) in wanted
        for reported, wanted in ((headers(), 20000), (headers("leaver"), 40100), ({}, 40100)):
            assert await first("Telemetry", reported, settings(), service_pb2.TelemetryCommand) == wanted
    finally:
        await net.close()


async def test_telemetry_of_a_group_without_a_grant_is_answered_and_nothing_else_is(cluster: LocalCluster) -> None:
    """SDKs begin only with their settings. Then every call of the consumer says what is missing."""
    resource, why = definition_pb2.Resource, "user orders may not consume group strangers"
    group, topic = resource(name="strangers"), resource(name="orders")
    net = GrpcNet()
    fields = {**headers(), "x-mq-client-id": "stranger"}

    async def settings() -> AsyncIterator[bytes]:
        for _ in range(3):
            command = service_pb2.TelemetryCommand()
            command.settings.client_type = definition_pb2.PUSH_CONSUMER
            command.settings.subscription.group.CopyFrom(group)
            command.settings.subscription.subscriptions.add().topic.CopyFrom(topic)
            yield command.SerializeToString()
        await asyncio.Event().wait()

    frames = net.stream(cluster.endpoint, V2 + "Telemetry", settings(), timeout_ms=60_000, metadata=fields)
    try:
        for _ in range(3):
            command = service_pb2.TelemetryCommand.FromString(await anext(frames))
            assert command.status.code == definition_pb2.OK
            assert command.settings.subscription.group.name == "strangers"
        queue = definition_pb2.MessageQueue(topic=topic)
        ack = service_pb2.AckMessageRequest(group=group, topic=topic)
        ack.entries.add(message_id="m", receipt_handle="h")
        acting = definition_pb2.PUSH_CONSUMER
        calls = {
            "Heartbeat": service_pb2.HeartbeatRequest(group=group, client_type=acting),
            "QueryAssignment": service_pb2.QueryAssignmentRequest(group=group, topic=topic),
            "AckMessage": ack,
            "ChangeInvisibleDuration": service_pb2.ChangeInvisibleDurationRequest(group=group, topic=topic),
        }
        for method, request in calls.items():
            encoded = request.SerializeToString()  # type: ignore[attr-defined]
            came = await net.unary(cluster.endpoint, V2 + method, encoded, timeout_ms=60_000, metadata=fields)
            status = getattr(service_pb2, f"{method}Response").FromString(came).status
            assert (status.code, why in status.message) == (40300, True), method
        receive = service_pb2.ReceiveMessageRequest(group=group, message_queue=queue, batch_size=1)
        encoded = receive.SerializeToString()
        polls = net.stream(cluster.endpoint, V2 + "ReceiveMessage", encoded, timeout_ms=60_000, metadata=fields)
        refused = service_pb2.ReceiveMessageResponse.FromString(await anext(polls)).status
        assert (refused.code, why in refused.message) == (40300, True)
        await polls.aclose()
    finally:
        await frames.aclose()
        await net.close()
    with evenq.Admin(endpoint=cluster.endpoint, credentials=ROOT) as admin:
        assert "strangers" not in {view.group for view in admin.list_groups()}


async def test_both_faces_of_the_sdk_send_and_receive_with_their_keys_and_not_without(cluster: LocalCluster) -> None:
    with (
        pytest.raises(Unauthorized, match="give the client an access key"),
        evenq.Producer(endpoint=cluster.endpoint) as p,
    ):
        p.send(evenq.Message(topic="orders", body=b"unsigned"))
    with evenq.Producer(endpoint=cluster.endpoint, credentials=ORDERS) as producer:
        sent = {producer.send(evenq.Message(topic="orders", body=b"signed")).message_id for _ in range(20)}
        with pytest.raises(Forbidden, match="user orders may not"):
            producer.send(evenq.Message(topic="other", body=b"forbidden"))
    got: list[str] = []
    done = threading.Event()

    def listen(messages: Sequence[evenq.ReceivedMessage]) -> None:
        got.extend(message.message_id for message in messages)
        if sent <= set(got):
            done.set()

    with evenq.PushConsumer(
        endpoint=cluster.endpoint,
        credentials=ORDERS,
        group="orders-push",
        subscriptions={"orders": "*"},
        listener=listen,
    ):
        assert done.wait(60)
    async with asyncio.timeout(60):
        async with evenq.aio.SimpleConsumer(  # type: ignore[attr-defined]  # loaded at its first use
            endpoint=cluster.endpoint, credentials=ORDERS, group="orders-simple", subscriptions={"orders": "*"}
        ) as consumer:
            found: set[str] = set()
            while not sent <= found:
                for message in await consumer.receive(32, wait_ms=5_000):
                    found.add(message.message_id)
                    await consumer.ack(message)


@pytest.mark.slow
def test_a_reader_of_spark_signs_in_the_driver_and_in_its_workers(cluster: LocalCluster) -> None:
    """Without Spark itself: what it calls on the driver, pickles, and calls in a worker."""
    given = {"endpoints": cluster.endpoint, "subscribe": "orders"}
    with pytest.raises(Unauthorized):
        BatchReader(ReadOptions.parse(given, streaming=False), ()).partitions()
    with evenq.Producer(endpoint=cluster.endpoint, credentials=ORDERS) as producer:
        for _ in range(20):
            producer.send(evenq.Message(topic="orders", body=b"a row"))
    keys = {"accessKey": "orders", "secretKey": SECRET}
    reader = BatchReader(ReadOptions.parse(given | keys, streaming=False), columns(StructType()))
    partitions = reader.partitions()
    connection.sign_with(None)  # another process
    rows = sum(batch.num_rows for partition in partitions for batch in reader.read(partition))
    connection.sign_with(None)
    assert rows >= 20


def test_servers_work_together_under_their_own_user(cluster: LocalCluster) -> None:
    with evenq.Admin(endpoint=cluster.endpoint, credentials=ROOT) as admin:
        assert [broker.answered for broker in admin.list_brokers()] == [True, True]
        view = admin.describe_cluster()
    assert view.rebalancer_answers
    for node in cluster.nodes:
        assert '"user": "evenq-internal"' not in node.log_text()  # never refused


@pytest.mark.slow
def test_the_command_line_takes_its_keys_from_the_environment_or_a_file(cluster: LocalCluster, tmp_path: Path) -> None:
    evenq_ = partial(evenq_process, endpoint=cluster.endpoint)
    refused = evenq_("topic", "list")
    assert refused.returncode == 4
    assert "give the client an access key" in refused.stderr
    keys = {"EVENQ_ACCESS_KEY": "root", "EVENQ_SECRET_KEY": "canary-root-4711"}
    listed = evenq_("topic", "list", "--json", **keys)
    assert {"orders", "other"} <= {row["topic"] for row in json.loads(listed.stdout)}
    file = tmp_path / "keys.toml"
    file.write_text(f'access_key = "orders"\nsecret_key = "{SECRET}"\n')
    sent = evenq_("produce", "orders", "--body", "hello", "--credentials", str(file), **keys)
    assert sent.returncode == 0, sent.stderr
    forbidden = evenq_("topic", "list", "--credentials", str(file))
    assert forbidden.returncode == 4
    assert "user orders may not describe the cluster" in forbidden.stderr


async def test_a_user_who_goes_is_out_within_seconds_with_open_streams_too(cluster: LocalCluster, users: Path) -> None:
    async with asyncio.timeout(60):
        net = GrpcNet()

        async def settings() -> AsyncIterator[bytes]:
            command = service_pb2.TelemetryCommand()
            command.settings.publishing.topics.add().name = "orders"
            yield command.SerializeToString()
            await asyncio.Event().wait()

        fields = {**headers("leaver", LEAVER.secret_key), "x-mq-client-id": "leaving"}
        frames = net.stream(cluster.endpoint, V2 + "Telemetry", settings(), timeout_ms=120_000, metadata=fields)
        try:
            opened = service_pb2.TelemetryCommand.FromString(await anext(frames))
            assert opened.status.code == 20000
            await asyncio.to_thread(users.write_text, FILE.replace("[users.leaver]", "[users.gone]"))
            begun = time.monotonic()
            last = service_pb2.TelemetryCommand.FromString(await anext(frames))
            assert last.status.code == 40100
            assert time.monotonic() - begun < 40
        finally:
            await asyncio.to_thread(users.write_text, FILE)
            await frames.aclose()
            await net.close()


def test_queues_of_a_member_whose_grant_was_removed_are_read_by_the_others(cluster: LocalCluster, users: Path) -> None:
    seen: dict[str, set[bytes]] = {"keeps": set(), "loses": set()}
    refusals: list[BaseException] = []

    def consumer(name: str, credentials: evenq.Credentials) -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group="orders-shared",
            subscriptions={"orders": "*"},
            listener=lambda messages: seen[name].update(message.body for message in messages),
            on_error=refusals.append,
            start_from="LAST",
            client_id=name,
            endpoint=cluster.endpoint,
            credentials=credentials,
        )

    def wait(state: Any) -> None:
        deadline = time.monotonic() + 60
        while not state():
            assert time.monotonic() < deadline, (seen, refusals)
            time.sleep(0.05)

    with (
        consumer("keeps", ORDERS) as keeps,
        consumer("loses", READER) as loses,
        evenq.Producer(endpoint=cluster.endpoint, credentials=ORDERS) as producer,
    ):
        wait(lambda: keeps.queues and loses.queues)
        users.write_text(FILE.replace(READER_GRANT, ""))
        try:
            wait(lambda: any(isinstance(error, Forbidden) for error in refusals))
            # Each broker reads the file by itself: until the last one has, the member may get queues there again.
            for number in range(20):
                bodies = {b"after-%d-%d" % (number, one) for one in range(40)}
                for body in sorted(bodies):
                    producer.send(evenq.Message(topic="orders", body=body))
                wait(lambda: bodies <= seen["keeps"] | seen["loses"])  # noqa: B023
                if bodies <= seen["keeps"]:
                    break
            else:
                pytest.fail("a member without its grant goes on reading")
        finally:
            users.write_text(FILE)


def test_a_member_whose_grant_for_one_topic_was_removed_reads_its_other_topic(
    cluster: LocalCluster, users: Path
) -> None:
    """The locks of all its queues are renewed when its sessions end; those of one topic are refused."""
    seen: set[bytes] = set()
    with (
        evenq.PushConsumer(
            group="orders-of-two-topics",
            subscriptions={"orders": "*", "orders-kept": "*"},
            listener=lambda messages: seen.update(message.body for message in messages),
            start_from="LAST",
            endpoint=cluster.endpoint,
            credentials=READER_OF_TWO,
        ) as reader,
        evenq.Producer(endpoint=cluster.endpoint, credentials=ORDERS) as producer,
    ):
        until(lambda: len(reader.queues) == 32)
        users.write_text(FILE.replace(LOST_GRANT, ""))
        try:
            until(lambda: len(reader.queues) < 32, "it keeps all queues")
            assert [queue.topic for queue in reader.queues].count("orders-kept") == 16
            bodies = {b"kept-%d" % one for one in range(40)}
            for body in sorted(bodies):
                producer.send(evenq.Message(topic="orders-kept", body=body))
            until(lambda: bodies <= seen)
        finally:
            users.write_text(FILE)


def test_no_secret_is_in_any_log_metric_or_process_list(cluster: LocalCluster) -> None:
    """After all the tests above, at DEBUG (security checklist: canary secrets)."""
    for node in cluster.nodes:
        log = node.log_text()
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=60).read().decode()
        for text in (log, metrics):
            assert "canary" not in text, node.name
            assert "Signature=" not in text
        if Path("/proc").exists():
            assert b"canary" not in Path(f"/proc/{node.pid}/cmdline").read_bytes()
            assert b"canary" not in Path(f"/proc/{node.pid}/environ").read_bytes()
