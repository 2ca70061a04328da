"""A client's end gives back what only its life held."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq_broker.loops.liveness import RELEASE_MS, SWEEP_MS, end_client

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def holding(stage: Any, **settings: Any) -> Any:
    """Client `c` lives and holds offset 0 of one queue without a timer."""
    broker = await stage.broker(**settings)
    broker.clients.seen("c", broker.now_ms())
    broker.progress.start(1, 1, 0, 0)
    queue = broker.progress.queue(1, 1, 0)
    broker.progress.deliver(queue, [0], 1, deadline_ms=broker.now_ms() + 10**9, client_id="c")
    return broker


def test_a_goodbye_makes_its_deliveries_ready_after_a_moment_for_a_last_ack(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await holding(stage)
        queue = broker.progress.queue(1, 1, 0)
        ended = broker.now_ms()
        end_client(broker, "c")
        assert broker.clients.get("c") is None
        await stage.until(lambda: queue.ready == [0])
        assert RELEASE_MS <= broker.now_ms() - ended <= RELEASE_MS + 20

    run(story)


def test_a_client_is_dropped_after_its_silence_and_not_before(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await holding(stage, client_silence_ms=5_000)
        queue = broker.progress.queue(1, 1, 0)
        started = broker.now_ms()
        await stage.until(lambda: broker.clients.get("c") is None)
        assert 5_000 <= broker.now_ms() - started <= 5_000 + SWEEP_MS
        await stage.until(lambda: queue.ready == [0])

    run(story)


def test_a_client_without_a_name_ends_nobody(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await holding(stage)
        end_client(broker, "")
        assert broker.clients.get("c") is not None
        assert broker.progress.clients() == {"c"}

    run(story)
