"""Spans reach a real collector; one that is away or slow costs spans and nothing else, and every lost span is counted."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest
from evenq_broker.core.diagnosis.message_spans import MessageSpan
from evenq_broker.loops.diagnosis.span_export import SpanExport
from evenq_broker.metrics.broker_metrics import span_metrics
from evenq_broker.settings import TracingSettings
from evenq_proofs.otlp import Collector, fields
from evenq_proofs.waiting import until_async

from evenq.errors import SettingsError
from evenq.serving.program.metrics import exposition
from evenq.testing.free_ports import FreePorts

WAIT_S = 60


def spans(count: int, *, first: int = 0, error: str = "", text: str = "") -> list[MessageSpan]:
    return [
        MessageSpan(
            name=f"deliver t{number}", trace_id=0xABC, parent_id=0xDEF, start_ms=1_000, end_ms=1_500, error=error,
            attributes={"evenq.message.delivery_attempt": 2, "keys": ("a", "b"), "text": text},
        )
        for number in range(first, first + count)
    ]  # fmt: skip


def export_to(endpoint: str, **settings: Any) -> SpanExport:
    made = SpanExport(TracingSettings(otlp_endpoint=endpoint, **settings), cluster="c1", broker_name="a")
    made.start()
    return made


@pytest.fixture
def collector() -> Any:
    made = Collector()
    yield made
    made.stop()


async def test_a_span_arrives_with_all_that_it_says(collector: Collector) -> None:
    export = export_to(collector.endpoint)
    export.add(spans(1, error="retried"))
    await until_async(lambda: export.exported == 1)
    await export.close()
    [span] = collector.named("deliver t0")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert len(set(span.span_id)) > 1
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_000_000_000, 1_500_000_000)
    assert span.kind == span.SPAN_KIND_INTERNAL
    assert span.status.code == span.status.STATUS_CODE_ERROR
    known = fields(span)
    assert (known["evenq.message.delivery_attempt"], known["error.type"]) == (2, "retried")
    assert [one.string_value for one in known["keys"].values] == ["a", "b"]
    assert set(collector.services.values()) == {"evenq-broker"}


async def test_a_collector_that_is_away_loses_spans_which_are_counted_and_its_return_is_noticed(caplog: Any) -> None:
    caplog.set_level("INFO")
    with FreePorts() as ports:
        port = ports.take()
        export = export_to(f"http://127.0.0.1:{port}", timeout_ms=200)
        export.add(spans(3))
        await until_async(lambda: export.failed == 3)
        collector = Collector(port)
        try:
            number = 3
            async with asyncio.timeout(WAIT_S):
                while not export.exported:
                    export.add(spans(1, first=number))
                    number += 1
                    await asyncio.sleep(0.2)
            await export.close()
        finally:
            collector.stop()
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("evenq")]
    assert len(ours) == 2, ours
    assert "spans do not reach http://127.0.0.1" in ours[0]
    assert "again" in ours[1]
    assert not [one for one in caplog.records if one.name.startswith("opentelemetry")]


@pytest.mark.parametrize("limit", [{"queue_spans": 10}, {"queue_bytes": 20_000}])
async def test_the_queue_is_bounded_in_spans_and_bytes_and_counts_what_it_drops(
    collector: Collector, limit: dict[str, int]
) -> None:
    collector.open.clear()
    export = export_to(collector.endpoint, flush_ms=0, **limit)
    export.add(spans(1))
    await until_async(lambda: collector.calls == 1)  # this one waits at the collector, the queue is empty
    export.add(spans(100, first=1, text="x" * 1_000))
    waiting = len(export)
    assert 0 < waiting <= 12
    assert export.dropped == 100 - waiting
    text = exposition(span_metrics(span_export=export, span_follower=None), {}).decode()
    assert f'evenq_broker_spans_total{{result="dropped"}} {float(100 - waiting)}' in text
    assert f"evenq_broker_spans_waiting {float(waiting)}" in text
    await export.close()


async def test_the_end_sends_what_waits(collector: Collector) -> None:
    export = export_to(collector.endpoint, flush_ms=60_000)
    export.add(spans(1_200))
    await export.close()
    assert (export.exported, export.dropped, len(collector.spans)) == (1_200, 0, 1_200)


async def test_the_end_does_not_wait_longer_than_its_bound_for_a_slow_collector(
    collector: Collector, caplog: Any
) -> None:
    collector.open.clear()
    export = export_to(collector.endpoint, flush_ms=300, timeout_ms=60_000)
    export.add(spans(1_000))
    await until_async(lambda: collector.calls == 1)
    began = time.monotonic()
    await export.close()
    assert time.monotonic() - began < 30, "the call to the collector may last for a minute"
    await until_async(lambda: export.failed == 512)  # the call was ended
    assert export.dropped == 1_000 - 512
    assert "tracing.flush_ms (300 ms)" in caplog.text
    await until_async(lambda: "evenq-span-export" not in {one.name for one in threading.enumerate()})


def test_without_the_packages_the_extra_is_named(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with pytest.raises(SettingsError, match=r'tracing.otlp_endpoint needs .* pip install "evenq\[otlp\]"'):
        SpanExport(TracingSettings(otlp_endpoint="http://127.0.0.1:4317"), cluster="c1", broker_name="a")
