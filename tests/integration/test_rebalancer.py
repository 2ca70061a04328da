"""A real rebalancer process, spoken to over gRPC by brokers that are only streams of reports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from evenq_proofs.waiting import until_async

from evenq.errors import BadRequest, Error, IllegalGroup, IllegalTopic, PreconditionFailed
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import assignment_pb2 as pb

GRACE_MS = 400
SERVICE = "/evenq.v1.Assignment"


class Cluster:
    """The process and a way to talk to it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, metrics_port: int) -> None:
        self.process = process
        self.address = f"127.0.0.1:{port}"
        self.metrics_port = metrics_port
        self.net = GrpcNet()

    async def call(self, name, request, response):
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answer = response.FromString(await self.net.unary(self.address, f"{SERVICE}/{name}", data, timeout_ms=60_000))
        check(answer.status)
        return answer

    async def ask(self, client_id, group="g", topic="T"):
        request = pb.AssignmentRequest(group=group, topic=topic, client_id=client_id)
        return await self.call("Query", request, pb.AssignmentResponse)

    async def ids(self, client_id):
        return [row.queue.queue_id for row in (await self.ask(client_id)).queues]

    async def page(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        return text


class FakeBroker:
    """A report stream."""

    def __init__(self, cluster: Cluster, name: str = "broker-a") -> None:
        self._name = name
        self._reports: asyncio.Queue[bytes] = asyncio.Queue()
        self._stream = cluster.net.stream(cluster.address, f"{SERVICE}/Report", self._requests(), timeout_ms=None)

    async def _requests(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._reports.get()

    def tell(self, *ids: str, queues: int = 8, group: str = "g", full: bool = False) -> None:
        report = pb.BrokerReport(broker_name=self._name, full=full)
        report.topics.add(name="T", read_queues=queues, write_queues=queues)
        facts = report.groups.add(group=group, strategy="AVG")
        for own in ids:
            facts.members.add(client_id=own).subscriptions.add(topic="T")
        self._reports.put_nowait(report.SerializeToString())

    async def decision(self) -> pb.Decision:
        async with asyncio.timeout(60):
            while not (decision := pb.Decision.FromString(await anext(self._stream))).group:
                pass  # a sign of life
            return decision

    async def drained(self) -> None:
        async with asyncio.timeout(60):
            async for _ in self._stream:
                pass

    async def close(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def running(**settings):
    flags = {"port": 0, "metrics-port": 0, "warm-up-ms": 0, "grace-ms": GRACE_MS, "drain-ms": 0} | settings
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "evenq_rebalancer",
        *[f"--{name}={value}" for name, value in flags.items()],
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    ports = asyncio.get_running_loop().create_future()
    readers = [asyncio.ensure_future(_read(stream, ports)) for stream in (process.stdout, process.stderr)]
    try:
        async with asyncio.timeout(60):
            facts = await ports
        cluster = Cluster(process, facts["port"], facts["metrics_port"])
        try:
            yield cluster
        finally:
            await cluster.net.close()
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(60):
            await process.wait()
        await asyncio.gather(*readers)


async def _read(stream, ports) -> None:
    while line := await stream.readline():
        if b'"rebalancer listens at' in line:
            ports.set_result(json.loads(line))


async def test_three_members_share_eight_queues_and_a_fourth_makes_a_new_generation() -> None:
    async with running() as cluster:
        broker = FakeBroker(cluster)
        broker.tell("c1", "c2", "c3", full=True)
        first = await broker.decision()
        assert (first.group, first.topic) == ("g", "T")
        assert [await cluster.ids(own) for own in ("c1", "c2", "c3")] == [[0, 1, 2], [3, 4, 5], [6, 7]]  # AL-7
        assert not (await cluster.ask("c4")).known
        broker.tell("c1", "c2", "c3", "c4")
        second = await broker.decision()
        assert second.generation.epoch == first.generation.epoch
        assert second.generation.counter == first.generation.counter + 1
        answers = [await cluster.ask(own) for own in ("c1", "c2", "c3", "c4")]
        assert {answer.generation.counter for answer in answers} == {second.generation.counter}
        assert [[row.queue.queue_id for row in answer.queues] for answer in answers] == [
            [0, 1],
            [2, 3],
            [4, 5],
            [6, 7],
        ]
        explained = await cluster.call("Explain", pb.ExplainRequest(group="g", topic="T"), pb.ExplainResponse)
        moved = [(row.queue.queue_id, row.previous_owner, row.owner) for row in explained.queues if row.previous_owner]
        assert moved == [(2, "c1", "c2"), (4, "c2", "c3"), (5, "c2", "c3"), (6, "c3", "c4"), (7, "c3", "c4")]
        assert {row.reason for row in explained.queues if row.previous_owner} == {"c4 joined"}
        page = await cluster.page()
        (moves,) = [line for line in page.splitlines() if line.startswith("evenq_rebalance_moves_total{")]
        assert moves.endswith(" 5.0")
        assert 'consumer_group="g"' in moves
        assert 'topic="T"' in moves
        await broker.close()


async def test_a_second_broker_gets_what_stands_and_hears_of_changes_told_by_the_first() -> None:
    async with running() as cluster:
        one, two = FakeBroker(cluster, "broker-a"), FakeBroker(cluster, "broker-b")
        one.tell("c1")
        await one.decision()
        two.tell("c1")
        newest = 0
        while newest < 2:
            newest = (await two.decision()).generation.counter
        one.tell("c1", "c2")
        assert (await two.decision()).generation.counter == 3
        queues = [(row.queue.broker_name, row.queue.queue_id) for row in (await cluster.ask("c2")).queues]
        assert queues == [("broker-b", number) for number in range(8)]
        await one.close()
        await two.close()


async def test_the_facts_of_a_broker_that_died_are_kept_for_the_grace_and_then_dropped() -> None:
    async with running() as cluster:
        broker = FakeBroker(cluster)
        broker.tell("c1")
        first = await broker.decision()
        await broker.close()
        assert await cluster.ids("c1") == list(range(8))
        back = FakeBroker(cluster)
        back.tell("c1", full=True)
        assert (await back.decision()).generation == first.generation, "the same facts, so the same decision"
        clock = asyncio.get_running_loop().time
        await back.close()
        closed_at = clock()

        async def forgotten() -> bool:
            return not (await cluster.ask("c1")).known

        await until_async(forgotten)
        assert clock() - closed_at >= GRACE_MS / 1000 - 0.05
        assert "evenq_rebalance_brokers{" in await cluster.page()


@pytest.mark.parametrize(
    ("call", "request_", "response", "error"),
    [
        ("Query", pb.AssignmentRequest(group="a b", topic="T", client_id="c"), pb.AssignmentResponse, IllegalGroup),
        ("Query", pb.AssignmentRequest(group="g", topic="../T", client_id="c"), pb.AssignmentResponse, IllegalTopic),
        (
            "Query",
            pb.AssignmentRequest(group="g", topic="T", client_id="c", strategy="X"),
            pb.AssignmentResponse,
            BadRequest,
        ),
        ("Query", b"\xff\xff\xff", pb.AssignmentResponse, BadRequest),
        (
            "SetMessageRequestMode",
            pb.SetMessageRequestModeRequest(topic="T"),
            pb.SetMessageRequestModeResponse,
            IllegalGroup,
        ),
        (
            "GetMessageRequestMode",
            pb.GetMessageRequestModeRequest(group="g"),
            pb.GetMessageRequestModeResponse,
            IllegalTopic,
        ),
        ("Explain", pb.ExplainRequest(group="\x00"), pb.ExplainResponse, IllegalGroup),
        ("Simulate", pb.SimulateRequest(group="g", topic="x" * 128), pb.SimulateResponse, IllegalTopic),
    ],
)
def test_garbage_is_refused_with_its_code(call, request_, response, error, garbage_cluster) -> None:
    with pytest.raises(Error) as raised:
        garbage_cluster(lambda cluster: cluster.call(call, request_, response))
    assert type(raised.value) is error


def test_a_garbage_report_ends_its_stream_with_the_code_and_an_older_stream_gives_way(garbage_cluster) -> None:
    async def story(cluster: Cluster) -> None:
        bad = FakeBroker(cluster, "b x")
        bad.tell("c1")
        with pytest.raises(BadRequest, match="broker name"):
            await bad.decision()
        worse = FakeBroker(cluster)
        worse.tell("c1", group="a b")
        with pytest.raises(IllegalGroup):
            await worse.decision()
        old, new = FakeBroker(cluster), FakeBroker(cluster)
        old.tell("c1")
        await old.decision()
        new.tell("c1", "c2")
        while (await new.decision()).generation.counter < 2:
            pass
        old.tell("c9")
        with pytest.raises(PreconditionFailed):
            await old.drained()
        await new.close()

    garbage_cluster(story)


@pytest.fixture(scope="module")
def garbage_cluster():
    """One process for all questions that change nothing; its loop turns while a test runs."""
    with asyncio.Runner() as runner:
        context = running()
        cluster = runner.run(context.__aenter__())
        try:
            yield lambda story: runner.run(_in(story, cluster))
        finally:
            runner.run(context.__aexit__(None, None, None))


async def _in(story, cluster):
    return await story(cluster)
