"""On and off: `instrument` works for clients that exist already, is idempotent, and names the extra that is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import evenq
from evenq.client.core.clients.observer import OBSERVED
from evenq.errors import Unsupported
from evenq.runtime.extras import EXTRA_OF


def test_clients_that_exist_already_are_recorded_until_the_end(traced: Any) -> None:
    traced.create("t")
    evenq.otel.uninstrument()
    assert not evenq.otel.is_instrumented()
    producer = traced.make(evenq.Producer)
    producer.send(evenq.Message(topic="t", body=b"1"))
    assert traced.spans() == []
    traced.instrument()
    assert evenq.otel.is_instrumented()
    producer.send(evenq.Message(topic="t", body=b"2"))
    evenq.otel.uninstrument()
    producer.send(evenq.Message(topic="t", body=b"3"))
    assert len(traced.spans("send t")) == 1


def test_a_second_call_does_nothing(traced: Any) -> None:
    first = OBSERVED.observer
    evenq.otel.instrument()
    assert OBSERVED.observer is first
    evenq.otel.uninstrument()
    evenq.otel.uninstrument()


def test_without_an_sdk_the_message_stays_as_it_is(traced: Any) -> None:
    """The global providers of the API record nothing, and there is no context to carry."""
    traced.create("t")
    evenq.otel.uninstrument()
    evenq.otel.instrument()
    traced.make(evenq.Producer).send(evenq.Message(topic="t", body=b"1"))
    with traced.make(evenq.SimpleConsumer, group="g", subscriptions={"t": "*"}) as consumer:
        (got,) = consumer.receive(wait_ms=5_000)
    assert (got.properties, got.trace_context) == ({}, None)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EXTRA_OF["opentelemetry"] == "otel"
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    calls = (evenq.otel.instrument, lambda: evenq.otel.processing([]), lambda: evenq.otel.context_of(None))  # type: ignore[arg-type]
    for call in calls:
        with pytest.raises(Unsupported, match=r'pip install "evenq\[otel\]"'):
            call()
    assert not evenq.otel.is_instrumented()


def test_the_sdk_does_not_import_opentelemetry() -> None:
    program = "import sys, evenq, evenq.aio, evenq.otel; evenq.Producer; print('opentelemetry' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
