"""The exposition and the page that serves it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from evenq.errors import PortInUse
from evenq.serving.latency import BOUNDS_MS, MethodStats
from evenq.serving.program.metrics import Metric, MetricKind, Sample, call_metrics, exposition, gathered
from evenq.serving.program.page import HEAD_BYTES_MAX, MetricsPage, open_page


def test_metrics_carry_their_labels_and_the_constant_ones() -> None:
    metric = Metric(
        name="rocketmq_messages_in_total",
        kind=MetricKind.COUNTER,
        unit="messages",
        labels=("topic",),
        help="Messages stored.",
        read=lambda: [(("a",), 3)],
    )
    text = exposition([metric], {"cluster": "c"}).decode()
    assert 'rocketmq_messages_in_total{cluster="c",topic="a"} 3.0' in text
    assert "process_resident_memory_bytes" in text


def test_latencies_have_the_buckets_of_rocketmq() -> None:
    stats = MethodStats()
    for duration_ms in (0, 1, 2, 100, 5_000):
        stats.add(duration_ms)
    stats.failed(42900)
    text = exposition(call_metrics(lambda: {"/a.B/Send": stats})).decode()
    line = 'rocketmq_rpc_latency_bucket{le="%s",protocol_type="grpc",request_code="Send"} %s'
    for bound, count in ((1, 2), (3, 3), (100, 4), (3000, 4), ("+Inf", 5)):
        shown = f"{bound}.0" if isinstance(bound, int) else bound
        assert line % (bound, f"{count}.0") in text or line % (shown, f"{count}.0") in text
    assert 'rocketmq_rpc_latency_sum{protocol_type="grpc",request_code="Send"} 5103.0' in text
    assert 'evenq_rpc_errors_total{request_code="Send",response_code="42900"} 1.0' in text
    assert len(stats.buckets) == len(BOUNDS_MS) + 1


async def request(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def running() -> AsyncIterator[tuple[MetricsPage, list[bool]]]:
    ready = [True]
    page = await open_page(host="127.0.0.1", port=0, metrics=lambda: b"up 1\n", ready=lambda: ready[0])
    assert page is not None
    async with asyncio.timeout(60):
        yield page, ready
    await page.close()


async def test_the_page_answers_scrapes_and_probes() -> None:
    async with running() as (page, ready):
        answer = await request(page.port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nup 1\n")
        assert b" 200 " in await request(page.port, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert b" 200 " in await request(page.port, b"GET /readyz HTTP/1.1\r\n\r\n")
        ready[0] = False
        assert b" 503 " in await request(page.port, b"GET /readyz HTTP/1.1\r\n\r\n")
        assert b" 404 " in await request(page.port, b"GET /etc/passwd HTTP/1.1\r\n\r\n")
        assert b" 405 " in await request(page.port, b"POST /metrics HTTP/1.1\r\n\r\n")


async def test_a_request_that_is_too_long_is_dropped() -> None:
    async with running() as (page, _ready):
        with contextlib.suppress(ConnectionError):  # the other side may close before it has read all
            assert await request(page.port, b"GET /" + b"x" * (3 * HEAD_BYTES_MAX)) == b""
        assert b" 200 " in await request(page.port, b"GET /healthz HTTP/1.1\r\n\r\n")


async def test_a_port_in_use_is_named_and_minus_one_means_no_page() -> None:
    async with running() as (page, _ready):
        with pytest.raises(PortInUse, match=f"{page.port}.*--metrics-port"):
            await open_page(host="127.0.0.1", port=page.port, metrics=bytes, ready=lambda: True)
        assert await open_page(host="127.0.0.1", port=-1, metrics=bytes, ready=lambda: True) is None


def test_what_is_gathered_is_read_at_once_and_written_later() -> None:
    numbers: list[Sample] = [((), 1)]
    metric = Metric(name="m", kind=MetricKind.GAUGE, unit="things", help="x", read=lambda: iter(numbers))
    text = gathered([metric], {"cluster": "c"})
    numbers.clear()
    assert b'm{cluster="c"} 1.0' in text()
