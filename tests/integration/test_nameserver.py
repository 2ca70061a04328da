"""A real nameserver process: brokers come, go silent and leave; signals, bad settings, a port in use."""

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from evenq.errors import ConnectionFailed, PreconditionFailed
from evenq.runtime.clock import SystemClock
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import registry_pb2

SERVICE = "/evenq.v1.Registry/"
EXPIRY_MS = 1_500


@contextmanager
def process(*flags: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "evenq_nameserver", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()


@contextmanager
def nameserver(*flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    times = (f"--expiry-ms={EXPIRY_MS}", "--heartbeat-interval-ms=200")
    with process("--port=0", "--metrics-port=-1", *times, *flags) as started:
        assert started.stderr is not None
        ready = json.loads(started.stderr.readline())
        assert ready["event"] == "nameserver ready"
        yield started, ready["address"]


def register(name: str, *, incarnation: str = "i1", start_ms: int = 1) -> bytes:
    state = registry_pb2.BrokerState(data_version=1)
    state.broker.name, state.broker.incarnation, state.broker.start_ms = name, incarnation, start_ms
    state.broker.listeners.add(name="default", host="127.0.0.1", port=8081)
    state.topics.add(name="t", read_queues=4, write_queues=4)
    return registry_pb2.RegisterRequest(state=state).SerializeToString()


async def registered(net: GrpcNet, address: str, request: bytes) -> None:
    answer = await net.unary(address, SERVICE + "Register", request, timeout_ms=60_000)
    check(registry_pb2.RegisterResponse.FromString(answer).status)


async def event(frames: AsyncIterator[bytes]) -> registry_pb2.RouteEvent:
    return registry_pb2.RouteEvent.FromString(await asyncio.wait_for(anext(frames), 60))


async def change(frames: AsyncIterator[bytes]) -> registry_pb2.RouteEvent:
    """The next step of the table; the whole one that a young nameserver sends when it has settled comes between."""
    while (step := await event(frames)).snapshot:
        pass
    return step


async def test_a_silent_broker_is_dropped_after_the_expiry_and_a_leaving_one_at_once(net: GrpcNet) -> None:
    with nameserver() as (_, address):
        clock = SystemClock()
        frames = net.stream(address, SERVICE + "WatchRoutes", b"", timeout_ms=None)
        assert (await event(frames)).snapshot
        silent_since = clock.monotonic_ms()
        await registered(net, address, register("silent"))
        assert (await change(frames)).brokers[0].broker.name == "silent"
        await registered(net, address, register("leaving"))
        assert (await change(frames)).brokers[0].broker.name == "leaving"
        leave = registry_pb2.UnregisterRequest(broker_name="leaving", incarnation="i1").SerializeToString()
        before = clock.monotonic_ms()
        await net.unary(address, SERVICE + "Unregister", leave, timeout_ms=60_000)
        assert list((await change(frames)).removed) == ["leaving"]
        assert clock.monotonic_ms() - before < EXPIRY_MS // 2
        assert list((await change(frames)).removed) == ["silent"]
        assert EXPIRY_MS <= clock.monotonic_ms() - silent_since < 4 * EXPIRY_MS


async def test_a_nameserver_that_was_stopped_keeps_brokers_that_it_could_not_hear(net: GrpcNet) -> None:
    with nameserver() as (started, address):
        frames = net.stream(address, SERVICE + "WatchRoutes", b"", timeout_ms=None)
        assert (await event(frames)).snapshot
        await registered(net, address, register("here"))
        assert (await change(frames)).brokers[0].broker.name == "here"
        started.send_signal(signal.SIGSTOP)
        await SystemClock().sleep_ms(2 * EXPIRY_MS)
        started.send_signal(signal.SIGCONT)
        beat = registry_pb2.RegistryHeartbeatRequest(broker_name="here", incarnation="i1", data_version=1)
        for _ in range(5):
            await net.unary(address, SERVICE + "Heartbeat", beat.SerializeToString(), timeout_ms=60_000)
            await SystemClock().sleep_ms(EXPIRY_MS // 10)
        await registered(net, address, register("next"))
        assert (await change(frames)).brokers[0].broker.name == "next", "nothing was dropped before"


async def test_the_older_twin_is_told_who_holds_its_name(net: GrpcNet) -> None:
    with nameserver() as (_, address):
        await registered(net, address, register("a", incarnation="new", start_ms=2))
        with pytest.raises(PreconditionFailed, match="incarnation new"):
            await registered(net, address, register("a", incarnation="old", start_ms=1))


async def test_sigterm_ends_the_watches_with_an_error_and_the_process_with_0(net: GrpcNet) -> None:
    with nameserver() as (started, address):
        frames = net.stream(address, SERVICE + "WatchRoutes", b"", timeout_ms=None)
        await event(frames)
        started.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionFailed):
            await event(frames)
        assert started.wait(60) == 0


def test_a_port_in_use_ends_with_one_line_that_says_what_to_do() -> None:
    with nameserver() as (_, address), process("--port", address.rpartition(":")[2]) as second:
        assert second.wait(60) == 2
        assert second.stderr is not None
        (line,) = second.stderr.read().splitlines()
        assert "is in use" in line
        assert "--port" in line


def test_metrics_and_probes_are_served() -> None:
    with process("--port=0", "--metrics-port=0", "--log-level=DEBUG") as started:
        assert started.stderr is not None
        port = next(line["metrics_port"] for text in started.stderr if "metrics_port" in (line := json.loads(text)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        assert "evenq_nameserver_brokers{" in text
        assert "evenq_build_info{" in text
        assert "rocketmq_rpc_latency_bucket{" not in text, "calls that were never made have no series"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
            assert answer.status == 200
