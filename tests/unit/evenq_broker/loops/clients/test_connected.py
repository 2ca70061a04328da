"""A client's end gives back what only its life held."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq_broker.loops.clients.connected import RELEASE_MS
from evenq_broker.loops.groups.departures import SWEEP_MS

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


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
