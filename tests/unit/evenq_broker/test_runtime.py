"""What ends the process, and time that does not jump."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq.errors import (
    StorePoisoned,
)

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_the_end_of_a_loop_that_should_never_end_is_told(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()

        async def broken() -> None:
            raise RuntimeError("a mistake of ours")

        broker.runtime.spawn(broken(), name="broken")
        error = await stage.during(broker.runtime.failed)
        assert str(error) == "a mistake of ours"

    run(story)


def test_times_that_are_journalled_do_not_jump_with_the_wall_clock(run: Run) -> None:
    async def story(stage: Any) -> None:
        broker = await stage.broker()
        before = broker.runtime.now_ms()
        stage.clock.jump_wall(-3_600_000)
        await stage.clock.advance(50)
        assert broker.runtime.now_ms() == before + 50

    run(story)


def test_a_poisoned_store_ends_the_broker(run: Run) -> None:
    """What is on disk is unknown, so the process must stop and recover, never go on refusing."""

    async def story(stage: Any) -> None:
        broker = await stage.broker()
        assert not broker.runtime.failed.done()
        broker.ledger.store._state.poison("writing the commit log at offset 0 failed: EIO")
        assert isinstance(broker.runtime.failed.result(), StorePoisoned)

    run(story)
