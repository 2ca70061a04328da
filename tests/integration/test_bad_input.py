"""Bad input against real processes: each kind has its clear error and code, and nothing acknowledged is lost.

The broker here creates nothing by itself, so unknown names stay unknown. Every test that speaks to it publishes
before and reads everything ever acknowledged afterwards (`kept`). Files, disks and settings have processes of their own
further down.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.v2_requests import ack_request, nack_request, receive_frames, receive_request, v2_message
from evenq_proofs.whole_runs import skip_or_fail

from evenq.errors import ConnectionFailed, PayloadTooLarge, Unsupported
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, data_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
DATA = "/evenq.v1.Data/"
ADMIN = "/evenq.v1.Admin/"
OK = 20000
BODY_BYTES_MAX = 64 << 10
MIB = 1 << 20
DEADLINE_S = 60
ENDPOINTS = definition_pb2.Endpoints(
    scheme=definition_pb2.IPv4, addresses=[definition_pb2.Address(host="127.0.0.1", port=8081)]
)
PROGRAMS = ("broker", "nameserver", "rebalancer")


class Wires:
    """Both public wires of one broker, without any SDK."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.net = GrpcNet()

    async def call(self, method: str, request: Any, response: Any, **metadata: str) -> Any:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        headers = {"x-mq-client-id": "stranger", "x-mq-language": "JAVA", **metadata}
        return response.FromString(
            await self.net.unary(self.address, method, data, timeout_ms=60_000, metadata=headers)
        )

    async def create(self, topic: str, queues: int = 1) -> Any:
        request = admin_pb2.CreateTopicRequest(topic=topic, queues=queues)
        return await self.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse)

    async def create_group(self, group: str, start_from: str = "FIRST") -> Any:
        request = admin_pb2.CreateGroupRequest(group=group, start_from=start_from)
        return await self.call(ADMIN + "CreateGroup", request, admin_pb2.CreateGroupResponse)

    async def send(self, topic: str, body: bytes) -> Any:
        """SendMessage."""
        request = service_pb2.SendMessageRequest(messages=[message(topic, body)])
        return await self.call(V2 + "SendMessage", request, service_pb2.SendMessageResponse)

    async def publish(self, topic: str, *bodies: bytes) -> Any:
        request = data_pb2.PublishRequest(messages=[message(topic, body) for body in bodies])
        request.queue.topic, request.queue.queue_id = topic, -1
        return await self.call(DATA + "Publish", request, data_pb2.PublishResponse)

    async def pull(self, topic: str, offset: int = 0, group: str = "") -> Any:
        request = data_pb2.PullRequest(group=group, offset=offset, batch_max=10_000, committed=-1)
        request.queue.topic = topic
        return await self.call(DATA + "Pull", request, data_pb2.PullResponse)

    async def bodies(self, topic: str) -> list[bytes]:
        """Everything in queue 0."""
        found: list[bytes] = []
        while True:
            page = await self.pull(topic, len(found))
            found += [one.body for one in page.messages]
            if page.status.code != OK or page.next_offset >= page.max_offset:
                return found

    async def receive(self, topic: str, group: str, *, invisible_ms: int = 10_000, batch: int = 32) -> list[Any]:
        """The frames of one ReceiveMessage that does not wait."""
        request = receive_request(
            group, topic, queue=-1, poll_ms=0, invisible_ms=invisible_ms, tags="*", batch_size=batch
        )
        return await receive_frames(self.net, self.address, request, metadata={"x-mq-client-id": "stranger"})

    async def received(self, topic: str, group: str, **options: Any) -> list[Any]:
        return [frame.message for frame in await self.receive(topic, group, **options) if frame.HasField("message")]

    async def ack(self, topic: str, group: str, *handles: str) -> Any:
        request = ack_request(group, topic)
        for handle in handles:
            request.entries.add(message_id="id", receipt_handle=handle)
        return await self.call(V2 + "AckMessage", request, service_pb2.AckMessageResponse)

    async def change(self, topic: str, group: str, handle: str, invisible_ms: int = 1_000) -> Any:
        request = nack_request(group, topic, handle, invisible_ms)
        method = V2 + "ChangeInvisibleDuration"
        return await self.call(method, request, service_pb2.ChangeInvisibleDurationResponse)


def message(topic: str, body: bytes) -> definition_pb2.Message:
    return v2_message(topic, f"01{os.urandom(16).hex().upper()}", body, message_type=definition_pb2.NORMAL)


def handle_of(received: Any) -> str:
    return str(received.system_properties.receipt_handle)


@asynccontextmanager
async def wires_of(address: str) -> AsyncIterator[Wires]:
    wires = Wires(address)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield wires
    finally:
        await wires.net.close()


def play(address: str, story: Callable[[Wires], Coroutine[Any, Any, Any]]) -> Any:
    async def body() -> Any:
        async with wires_of(address) as wires:
            return await story(wires)

    return asyncio.run(body())


@pytest.fixture
async def wires(kept: Any) -> AsyncIterator[Wires]:
    async with wires_of(kept.address) as wires:
        yield wires


def alone(folder: Path, **settings: str) -> LocalCluster:
    """One broker and nothing else."""
    return LocalCluster(
        nameservers=0, rebalancer=False, folder=folder, broker_settings={"STORE__DISK_FREE_MIN_BYTES": "0", **settings}
    )


# ------------------------------------------------------------------------------------------------ names, bodies, handles


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    settings = {
        "AUTO_CREATE_TOPICS": "false",
        "AUTO_CREATE_GROUPS": "false",
        "BODY_BYTES_MAX": str(BODY_BYTES_MAX),
        "STORE__DISK_USED_MAX_RATIO": "1",
    }
    with alone(tmp_path_factory.mktemp("strict"), **settings) as cluster:
        play(cluster.endpoint, lambda wires: wires.create("kept"))
        play(cluster.endpoint, lambda wires: wires.create_group("billing"))
        yield cluster.brokers[0]


ACKNOWLEDGED: list[bytes] = []


@pytest.fixture
def kept(broker: Node) -> Iterator[Node]:
    """The broker, with something in it that the test must not harm, and no stack trace in its log."""

    async def publish(wires: Wires) -> None:
        bodies = [os.urandom(8).hex().encode() for _ in range(5)]
        assert (await wires.publish("kept", *bodies)).status.code == OK
        ACKNOWLEDGED.extend(bodies)

    play(broker.address, publish)
    yield broker
    assert play(broker.address, lambda wires: wires.bodies("kept")) == ACKNOWLEDGED
    assert "Traceback" not in broker.log_text()


async def test_an_unknown_topic_is_named_with_the_command_that_makes_it(wires: Wires, kept: Node) -> None:
    query = service_pb2.QueryRouteRequest()
    query.topic.name = "nowhere"
    query.endpoints.CopyFrom(ENDPOINTS)
    asked = data_pb2.QueryOffsetsRequest(topic="nowhere")
    statuses = [
        (await wires.send("nowhere", b"x")).status,
        (await wires.call(V2 + "QueryRoute", query, service_pb2.QueryRouteResponse)).status,
        (await wires.receive("nowhere", "billing"))[0].status,
        (await wires.publish("nowhere", b"x")).status,
        (await wires.pull("nowhere")).status,
        (await wires.call(DATA + "QueryOffsets", asked, data_pb2.QueryOffsetsResponse)).status,
    ]
    for status in statuses:
        assert status.code == 40402
        assert "no topic 'nowhere'" in status.message
        assert "evenq topic create nowhere" in status.message


async def test_an_unknown_group_is_named_with_the_command_that_makes_it(wires: Wires, kept: Node) -> None:
    commit = data_pb2.CommitOffsetsRequest(group="nobody")
    back = data_pb2.SendBackRequest(group="nobody", delay_level=-1)
    back.queue.topic = "kept"
    statuses = [
        (await wires.receive("kept", "nobody"))[0].status,
        (await wires.pull("kept", group="nobody")).status,
        (await wires.call(DATA + "CommitOffsets", commit, data_pb2.CommitOffsetsResponse)).status,
        (await wires.call(DATA + "SendBack", back, data_pb2.SendBackResponse)).status,
    ]
    for status in statuses:
        assert status.code == 40403
        assert "no consumer group 'nobody'" in status.message
        assert "evenq group create nobody" in status.message


@pytest.mark.parametrize(
    ("body", "code", "given"),
    [
        (b"", 41302, "empty"),
        (b"x" * (BODY_BYTES_MAX + 1), 41301, f"{BODY_BYTES_MAX + 1} bytes"),
    ],
)
async def test_a_body_that_is_empty_or_over_the_limit_is_refused_on_both_wires(
    wires: Wires, kept: Node, body: bytes, code: int, given: str
) -> None:
    sent = await wires.send("kept", body)
    assert [entry.status.code for entry in sent.entries] == [code]
    for status in (sent.status, (await wires.publish("kept", body)).status):
        assert status.code == code
        assert given in status.message
        assert code != 41301 or str(BODY_BYTES_MAX) in status.message


async def test_one_bad_message_keeps_its_whole_block_out_and_none_of_a_v2_batch_but_itself(
    wires: Wires, kept: Node
) -> None:
    assert (await wires.publish("kept", b"good", b"")).status.code == 41302
    request = service_pb2.SendMessageRequest(messages=[message("kept", b"good"), message("kept", b"")])
    mixed = await wires.call(V2 + "SendMessage", request, service_pb2.SendMessageResponse)
    assert [entry.status.code for entry in mixed.entries] == [OK, 41302]
    ACKNOWLEDGED.append(b"good")


async def test_a_request_larger_than_the_server_reads_is_refused_with_its_size(wires: Wires, kept: Node) -> None:
    with pytest.raises(PayloadTooLarge, match="larger than max"):
        await wires.send("kept", b"x" * (BODY_BYTES_MAX + 5 * MIB))


BAD_NAMES = ["", "two words", "../etc/passwd", "a/b", "ünï", "x" * 300, "nul\0", "new\nline", "a.b"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
async def test_a_bad_topic_name_is_refused_on_both_wires(wires: Wires, kept: Node, name: str) -> None:
    route = service_pb2.QueryRouteRequest()
    route.topic.name = name
    route.endpoints.CopyFrom(ENDPOINTS)
    statuses = [
        (await wires.send(name, b"x")).status,
        (await wires.call(V2 + "QueryRoute", route, service_pb2.QueryRouteResponse)).status,
        (await wires.receive(name, "billing"))[0].status,
        (await wires.publish(name, b"x")).status,
        (await wires.create(name)).status,
    ]
    for status in statuses:
        assert (status.code, "topic name" in status.message) == (40002, True), status
    assert (await wires.pull(name)).status.code in {40002, 40402}


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
async def test_a_bad_group_name_is_refused_on_both_wires(wires: Wires, kept: Node, name: str) -> None:
    statuses = [
        (await wires.receive("kept", name))[0].status,
        (await wires.create_group(name)).status,
        *([(await wires.pull("kept", group=name)).status] if name else []),  # no group: no progress
    ]
    for status in statuses:
        assert (status.code, "group name" in status.message) == (40003, True), status


async def test_the_brokers_own_topics_take_messages_from_nobody(wires: Wires, kept: Node) -> None:
    for topic in ("%DLQ%billing", "%RETRY%billing", "SCHEDULE_TOPIC_XXXX"):
        for status in ((await wires.send(topic, b"x")).status, (await wires.publish(topic, b"x")).status):
            assert status.code == 40300
            assert topic in status.message


async def test_handles_that_are_forged_malformed_or_expired_are_refused_and_echoed(wires: Wires, kept: Node) -> None:
    await wires.create("deliveries")
    await wires.create_group("other")
    await wires.publish("deliveries", b"one", b"two")
    first, second = await wires.received("deliveries", "billing", invisible_ms=300)
    good = handle_of(first)
    forged = good[:-1] + ("0" if good[-1] != "0" else "1")
    elsewhere = good.replace("broker-a", "broker-z")
    for bad in (forged, elsewhere, good[:-2], "", "nonsense", "x" * 5_000, "e1.broker-a." + "zz" * 60):
        acked = await wires.ack("deliveries", "billing", bad)
        assert (acked.status.code, acked.entries[0].status.code) == (40013, 40013), bad
        assert "was not made by this broker" in acked.status.message
        assert len(acked.status.message) < 300
        changed = await wires.change("deliveries", "billing", bad)
        assert (changed.status.code, changed.receipt_handle) == (40013, bad)
    foreign = await wires.ack("deliveries", "other", good)
    assert (foreign.status.code, "another consumer group" in foreign.status.message) == (40013, True)
    clock = SystemClock()
    again: list[Any] = []
    async with asyncio.timeout(60):
        while len(again) < 2:  # both invisible times pass
            again += await wires.received("deliveries", "billing", invisible_ms=60_000)
            await clock.sleep_ms(20)
    expired = await wires.ack("deliveries", "billing", good)
    assert (expired.status.code, "its invisible time has passed" in expired.status.message) == (40013, True)
    changed = await wires.change("deliveries", "billing", handle_of(second))
    assert (changed.status.code, changed.receipt_handle) == (40013, handle_of(second))
    too_long = await wires.change("deliveries", "billing", handle_of(again[0]), invisible_ms=10**9)
    assert (too_long.status.code, too_long.receipt_handle) == (40011, handle_of(again[0]))
    assert "43200000 ms" in too_long.status.message
    finished = await wires.ack("deliveries", "billing", *map(handle_of, again))
    assert finished.status.code == OK
    assert {one.body for one in again} == {b"one", b"two"}


# ------------------------------------------------------------------------------------------------ bytes on the port


async def test_a_request_that_is_no_message_and_a_method_that_is_none_are_told(wires: Wires, kept: Node) -> None:
    for method, response in (
        (V2 + "SendMessage", service_pb2.SendMessageResponse),
        (V2 + "AckMessage", service_pb2.AckMessageResponse),
        (DATA + "Publish", data_pb2.PublishResponse),
        (DATA + "Pull", data_pb2.PullResponse),
        (ADMIN + "CreateTopic", admin_pb2.CreateTopicResponse),
    ):
        answer = await wires.call(method, b"\xff\xff\xff", response)
        assert answer.status.code == 40000, method
        assert "3 bytes" in answer.status.message
    with pytest.raises(Unsupported, match=r"does not serve /evenq\.v1\.Data/Nothing"):
        await wires.call(DATA + "Nothing", b"", data_pb2.PullResponse)


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # a TLS hello
    random.Random(7).randbytes(100_000),
    HTTP2_PREFACE + random.Random(8).randbytes(10_000),
    HTTP2_PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x00",  # a frame of 16 MiB that never comes
    b"\0" * 100_000,
]


def test_garbage_on_the_ports_ends_that_connection_only(kept: Node) -> None:
    for port in (kept.port, kept.metrics_port):
        for bytes_sent in GARBAGE:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                try:
                    connection.sendall(bytes_sent)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):
                        pass
                except TimeoutError:
                    raise
                except OSError:
                    pass  # the server hung up at any moment, as it should
    assert kept.alive


async def test_clients_that_send_or_read_slowly_hold_up_nobody(wires: Wires, kept: Node) -> None:
    slow = [socket.create_connection(("127.0.0.1", kept.port), timeout=60) for _ in range(100)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall(HTTP2_PREFACE[: number % len(HTTP2_PREFACE)])
        await wires.create("large")
        for _ in range(8):
            assert (await wires.publish("large", *[b"x" * BODY_BYTES_MAX] * 16)).status.code == OK
        request = data_pb2.ScanRequest(start=0, end=128, block_bytes=MIB)
        request.queue.topic = "large"
        lazy = wires.net.stream(wires.address, DATA + "Scan", request.SerializeToString(), timeout_ms=None)
        first = data_pb2.ScanBlock.FromString(await anext(lazy))  # and then reads no more
        for _ in range(20):
            assert (await wires.publish("large", b"meanwhile")).status.code == OK
        seen = len(first.messages)
        async for frame in lazy:
            seen += len(data_pb2.ScanBlock.FromString(frame).messages)
        assert seen == 128
    finally:
        for connection in slow:
            connection.close()


# ------------------------------------------------------------------------------------------------ damaged files


SENT = [f"message {number}".encode() for number in range(200)]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[tuple[Node, Path]]:
    """A broker that acknowledged `SENT` on disk and died by SIGKILL, and its log file."""
    cluster = alone(tmp_path / "cluster", STORE__FLUSH="sync", STORE__DISK_USED_MAX_RATIO="1")
    with cluster:
        play(cluster.endpoint, lambda wires: wires.create("t"))

        async def story(wires: Wires) -> None:
            for body in SENT:
                assert (await wires.publish("t", body)).status.code == OK

        play(cluster.endpoint, story)
        node = cluster.brokers[0]
        node.kill()
        yield node, log_file(node)


def log_file(node: Node) -> Path:
    (found,) = (node.log_path.parents[1] / node.name / "commitlog").iterdir()
    return found


def refused(node: Node) -> str:
    """The one line that the process ends with; nothing is served."""
    before = len(node.log_text())
    with pytest.raises(ConnectionFailed, match="ended with exit code 1 "):
        node.restart()
    text = node.log_text()[before:]
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("evenq-broker:")]
    return line


def test_a_torn_tail_is_cut_and_everything_before_it_served(killed: tuple[Node, Path]) -> None:
    node, path = killed
    data = path.read_bytes()
    whole = data.rstrip(b"\0")
    last = whole.rindex(SENT[-1])
    start = whole.rindex(SENT[-2]) + 40  # somewhere in the last frame, whose first half goes behind the end again
    path.write_bytes(data + data[start:last])
    node.restart()
    assert play(node.address, lambda wires: wires.bodies("t")) == SENT
    assert "cut a torn tail" in node.log_text()
    assert play(node.address, lambda wires: wires.publish("t", b"next")).first_offset == len(SENT)


@pytest.mark.slow
def test_a_flipped_byte_in_the_middle_is_a_refusal_that_names_file_and_place(killed: tuple[Node, Path]) -> None:
    node, path = killed
    data = bytearray(path.read_bytes())
    place = data.index(SENT[100])
    data[place] ^= 1
    path.write_bytes(data)
    line = refused(node)
    assert str(path) in line
    result = re.search(r"at byte (\d+) \(log offset (\d+)\) is damaged", line)
    assert result is not None
    assert 0 < place - int(result[1]) < 500
    assert "restore the folder from a copy" in line
    assert path.read_bytes() == data, "a refusal changes nothing"
    data[place] ^= 1
    path.write_bytes(data)
    node.restart()
    assert play(node.address, lambda wires: wires.bodies("t")) == SENT


@pytest.mark.slow  # brokers that are killed, damaged and started again; the store's own tests do the same
def test_a_log_that_lost_acknowledged_messages_is_a_refusal(killed: tuple[Node, Path]) -> None:
    node, path = killed
    node.restart()
    assert node.stop() == 0
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    line = refused(node)
    assert str(path) in line
    assert "acknowledged messages are missing" in line


@pytest.mark.slow  # brokers that are killed, damaged and started again; the store's own tests do the same
async def test_damage_done_while_it_runs_is_found_by_its_reader_and_stops_nobody_else(
    killed: tuple[Node, Path],
) -> None:
    node, path = killed
    node.restart()
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(SENT[100]))
        file.write(b"M")

    async with wires_of(node.address) as wires:
        refusal = (await wires.pull("t", 100)).status
        assert refusal.code == 50001
        assert str(path.parent) not in refusal.message
        incident = re.search(r"internal error (\w+)", refusal.message)
        assert incident is not None
        (line,) = [line for line in node.log_text().splitlines() if incident[1] in line]
        assert path.name in line
        later = await wires.pull("t", 101)
        assert [one.body for one in later.messages] == SENT[101:]
        await wires.create_group("reader")
        await wires.create("u")
        await wires.publish("u", b"fine")
        assert [one.body for one in await wires.received("u", "reader")] == [b"fine"]


# ------------------------------------------------------------------------------------------------ folders, ports, settings


def program(name: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that is expected to end by itself."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("EVENQ_")}
    return subprocess.run(
        [sys.executable, "-m", f"evenq_{name}", *flags], env={**inherited, **environment}, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def told_by(done: subprocess.CompletedProcess[str]) -> str:
    """Its last line, which is all it may say beside logged JSON lines."""
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    return line


def test_a_second_broker_on_the_same_folder_ends_and_the_first_serves_on(kept: Node) -> None:
    folder = kept.log_path.parents[1] / kept.name
    done = program("broker", "--port=0", "--metrics-port=-1", f"--store.path={folder}")
    assert done.returncode == 1
    assert f"{folder} is in use by process {kept.pid}" in told_by(done)


def test_a_folder_of_another_broker_and_one_that_cannot_be_made_are_refused(kept: Node, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(kept.log_path.parents[1] / kept.name, folder)
    done = program("broker", "--port=0", "--metrics-port=-1", "--broker-name=broker-z", f"--store.path={folder}")
    assert done.returncode == 1
    assert "belongs to broker 'broker-a', this one is 'broker-z'" in told_by(done)
    (tmp_path / "file").write_text("")
    done = program("broker", "--port=0", "--metrics-port=-1", f"--store.path={tmp_path}/file/data")
    assert done.returncode == 1
    assert f"{tmp_path}/file/data cannot be created" in told_by(done)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.slow
def test_a_port_in_use_is_told_with_the_flag_that_changes_it(kept: Node, name: str) -> None:
    done = program(name, f"--port={kept.port}", "--metrics-port=-1")
    assert done.returncode == 2
    assert f"port {kept.port} on 127.0.0.1 is in use" in told_by(done)
    assert "--port" in told_by(done)
    done = program(name, "--port=0", f"--metrics-port={kept.metrics_port}")
    assert done.returncode == 2
    assert f"metrics port {kept.metrics_port}" in told_by(done)
    assert "--metrics-port" in told_by(done)


# The three load their settings with the same code.
LOADING = [PROGRAMS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS[1:])]


@pytest.mark.parametrize("name", LOADING)
@pytest.mark.slow
def test_unknown_and_impossible_settings_are_told_with_the_nearest_name_or_the_bounds(name: str) -> None:
    prefix = f"EVENQ_{name.upper()}_"
    for flags, environment, value in (
        (["--drain-mss=1"], {}, "unknown flag --drain-mss; did you mean --drain-ms?"),
        ([], {f"{prefix}DRAIN_MSS": "1"}, f"{prefix}DRAIN_MSS; did you mean {prefix}DRAIN_MS?"),
        (["--drain-ms=-1"], {}, "--drain-ms = '-1'"),
        (["--drain-ms=-1"], {}, "allowed: 0 .. 600000"),
        ([], {f"{prefix}PORT": "70000"}, f"{prefix}PORT = '70000'"),
        (["--log-level=LOUD"], {}, "one of DEBUG, INFO, WARNING, ERROR"),
        (["--port"], {}, "flag --port needs a value"),
        (["--host=no.such.host.invalid", "--port=0"], {}, "no.such.host.invalid"),
    ):
        done = program(name, *flags, **environment)
        assert done.returncode == 2, done.stderr
        assert value in told_by(done)


@pytest.mark.slow  # eight programs; tests/unit/evenq_broker/test_settings.py has the rules
def test_settings_that_only_together_are_wrong_are_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    tls = ["--tls.port=0", f"--tls.certificate={broken}", f"--tls.key={broken}"]
    for flags, value in (
        (["--tls.port=0"], "tls.port is set without tls.certificate and tls.key"),
        ([f"--tls.key={broken}"], "belong together"),
        (tls, "they must be PEM, belong together"),
        ([*tls[:2], f"--tls.key={tmp_path}/none.pem"], "none.pem"),
        (["--advertise=far=host:1"], "open one with `listeners`"),
        (["--listeners=far"], "listeners holds 'far'; write name=host:port"),
        (["--advertise=here"], "advertise holds 'here'; write host:port"),
        (["--broker-name=a b"], "broker name 'a b'"),
    ):
        done = program("broker", "--port=0", "--metrics-port=-1", *flags)
        assert done.returncode == 2, done.stderr
        assert value in told_by(done)


# ------------------------------------------------------------------------------------------------ a full disk


async def until_refused(wires: Wires, body: bytes) -> tuple[int, Any]:
    """Send until the broker refuses: how many were acknowledged, and the refusal."""
    sent = 0
    while True:
        status = (await wires.send("t", body)).status
        if status.code != OK:
            return sent, status
        sent += 1


async def until_taken(wires: Wires, body: bytes) -> None:
    clock = SystemClock()
    async with asyncio.timeout(60):
        while (await wires.send("t", body)).status.code != OK:
            await clock.sleep_ms(50)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB with a file `ballast` on it that leaves 16."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        skip_or_fail(f"no small disk can be mounted: {mounted.stderr.strip()}")
    try:
        (folder / "ballast").write_bytes(b"\0" * (8 * MIB))
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def beside(disk: Path, free_min_bytes: int) -> LocalCluster:
    """A broker whose data are on that disk, with an eye on it each 20 ms."""
    return alone(
        disk.parent / "cluster", STORE__PATH=str(disk / "data"), STORE__SEGMENT_BYTES=str(MIB), STORE__CACHE_BYTES="0",
        STORE__DISK_USED_MAX_RATIO="1", STORE__DISK_FREE_MIN_BYTES=str(free_min_bytes), STORE__FLUSH_INTERVAL_MS="20",
    )  # fmt: skip


BLOCK = b"x" * 20_000


@pytest.mark.slow  # fills a disk; test_store_bad_input.py does it, too
def test_sends_stop_before_a_disk_is_full_acks_and_reads_go_on_and_sends_resume(disk: Path) -> None:
    free_min_bytes = 6 * MIB

    async def fill(wires: Wires) -> int:
        await wires.create("t")
        await wires.create_group("g")
        sent, refusal = await until_refused(wires, BLOCK)
        assert refusal.code == 42900
        assert re.search(rf"disk has \d+ bytes free, messages are refused under {free_min_bytes}", refusal.message)
        assert str(disk) not in refusal.message
        assert (await wires.publish("t", BLOCK)).status.code == 42900
        usage = os.statvfs(disk)
        assert usage.f_bavail * usage.f_frsize > free_min_bytes - 3 * MIB, "it stopped before the disk was full"
        got = await wires.received("t", "g")
        assert len(got) == 32
        assert (await wires.ack("t", "g", *map(handle_of, got))).status.code == OK
        return sent

    with beside(disk, free_min_bytes) as cluster:
        sent = play(cluster.endpoint, fill)
        assert sent > 50
        (disk / "ballast").unlink()
        play(cluster.endpoint, lambda wires: until_taken(wires, b"resumed"))
        node = cluster.brokers[0]
        node.kill()
        node.restart()
        assert play(cluster.endpoint, lambda wires: wires.bodies("t")) == [BLOCK] * sent + [b"resumed"]
        again = play(cluster.endpoint, lambda wires: wires.received("t", "g"))
        assert min(one.system_properties.queue_offset for one in again) == 32, "acks survived"
        assert "refusing messages: " in node.log_text()
        assert "accepting messages again" in node.log_text()


@pytest.mark.slow  # fills a disk; test_store_bad_input.py does it, too
def test_a_disk_that_is_full_to_the_last_byte_loses_nothing_acknowledged(disk: Path) -> None:
    async def fill(wires: Wires) -> int:
        await wires.create("t")
        sent, refusal = await until_refused(wires, BLOCK)
        assert refusal.code == 42900
        assert "disk" in refusal.message
        assert "free space" in refusal.message
        assert len(await wires.bodies("t")) == sent
        return sent

    with beside(disk, 0) as cluster:
        sent = play(cluster.endpoint, fill)
        assert sent > 50
        (disk / "ballast").unlink()
        play(cluster.endpoint, lambda wires: until_taken(wires, b"resumed"))
        node = cluster.brokers[0]
        assert node.alive
        node.kill()
        node.restart()
        assert play(cluster.endpoint, lambda wires: wires.bodies("t")) == [BLOCK] * sent + [b"resumed"]
