"""A client's end gives back what only its life held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evenq_broker.loops.clients import connected as module
from evenq_broker.loops.clients.connected import RELEASE_MS
from evenq_broker.loops.groups.departures import SWEEP_MS
from evenq_broker.loops.wire.telemetry import TelemetryCommand

from evenq.errors import NotFound, RequestTimeout, TooManyRequests


async def holding(stage: Any, **settings: Any) -> Any:
    """Client `c` lives and holds offset 0 of one queue without a timer."""
    broker = await stage.broker(**settings)
    broker.clients.table.seen("c", broker.runtime.now_ms())
    broker.ledger.progress.start(1, 1, 0, 0)
    queue = broker.ledger.progress.queue(1, 1, 0)
    broker.ledger.progress.deliver(queue, [0], 1, deadline_ms=broker.runtime.now_ms() + 10**9, client_id="c")
    return broker


async def test_a_goodbye_makes_its_deliveries_ready_after_a_moment_for_a_last_ack(stage: Any) -> None:
    broker = await holding(stage)
    queue = broker.ledger.progress.queue(1, 1, 0)
    ended = broker.runtime.now_ms()
    broker.clients.end("c")
    assert broker.clients.table.get("c") is None
    await stage.until(lambda: queue.ready == [0])
    assert RELEASE_MS <= broker.runtime.now_ms() - ended <= RELEASE_MS + 20


async def test_a_client_is_dropped_after_its_silence_and_not_before(stage: Any) -> None:
    broker = await holding(stage, client_silence_ms=5_000)
    queue = broker.ledger.progress.queue(1, 1, 0)
    started = broker.runtime.now_ms()
    await stage.until(lambda: broker.clients.table.get("c") is None)
    assert 5_000 <= broker.runtime.now_ms() - started <= 5_000 + SWEEP_MS
    await stage.until(lambda: queue.ready == [0])


async def test_a_client_without_a_name_ends_nobody(stage: Any) -> None:
    broker = await holding(stage)
    broker.clients.end("")
    assert broker.clients.table.get("c") is not None
    assert broker.ledger.progress.clients() == {"c"}


def question(nonce: str) -> TelemetryCommand:
    command = TelemetryCommand()
    command.print_thread_stack_trace_command.nonce = nonce
    return command


def answer(nonce: str, text: str = "") -> TelemetryCommand:
    command = TelemetryCommand()
    command.thread_stack_trace.nonce = nonce
    command.thread_stack_trace.thread_stack_trace = text
    return command


async def test_the_answer_is_the_one_with_the_nonce_from_the_client_that_was_asked(stage: Any) -> None:
    commands = (broker := await stage.broker()).clients.commands
    stream = broker.clients.streams.open("c")
    asking = asyncio.ensure_future(commands.ask("c", "n", question("n")))
    assert await stream.take() == [question("n").SerializeToString()]
    commands.answered("other", answer("n", "not mine"))
    commands.answered("c", answer("m", "not asked"))
    assert len(commands) == 1
    commands.answered("c", answer("n", "main"))
    commands.answered("c", answer("n", "too late"))
    reply = await stage.during(asking)
    assert reply.thread_stack_trace.thread_stack_trace == "main"
    assert len(commands) == 0


async def test_a_client_that_is_silent_is_given_up_and_its_late_answer_dropped(stage: Any) -> None:
    broker = await stage.broker(client_answer_ms=2_000)
    broker.clients.streams.open("c")
    with pytest.raises(RequestTimeout, match="2000 ms"):
        await stage.during(broker.clients.commands.ask("c", "n", question("n")))
    broker.clients.commands.answered("c", answer("n"))
    assert len(broker.clients.commands) == 0


async def test_a_client_without_a_stream_and_one_question_too_many_are_refused(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = (broker := await stage.broker()).clients.commands
    with pytest.raises(NotFound, match="'c' has no open telemetry stream"):
        await commands.ask("c", "n", question("n"))
    assert len(commands) == 0, "nothing is left of it"
    monkeypatch.setattr(module, "ASKED_MAX", 1)
    broker.clients.streams.open("c")
    first = asyncio.ensure_future(commands.ask("c", "1", question("1")))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match="the limit is 1"):
        await commands.ask("c", "2", question("2"))
    commands.answered("c", answer("1"))
    await stage.during(first)
