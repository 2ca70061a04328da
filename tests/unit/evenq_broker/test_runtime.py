"""What ends the process, and time that does not jump."""

from typing import Any

from evenq.errors import (
    StorePoisoned,
)


async def test_the_end_of_a_loop_that_should_never_end_is_told(stage: Any) -> None:
    broker = await stage.broker()

    async def broken() -> None:
        raise RuntimeError("a mistake of ours")

    broker.runtime.spawn(broken(), name="broken")
    error = await stage.during(broker.runtime.failed)
    assert str(error) == "a mistake of ours"


async def test_times_that_are_journalled_do_not_jump_with_the_wall_clock(stage: Any) -> None:
    broker = await stage.broker()
    before = broker.runtime.now_ms()
    stage.clock.jump_wall(-3_600_000)
    await stage.clock.advance(50)
    assert broker.runtime.now_ms() == before + 50


async def test_a_poisoned_store_ends_the_broker(stage: Any) -> None:
    """What is on disk is unknown, so the process must stop and recover, never go on refusing."""
    broker = await stage.broker()
    assert not broker.runtime.failed.done()
    broker.ledger.store._state.poison("writing the commit log at offset 0 failed: EIO")
    assert isinstance(broker.runtime.failed.result(), StorePoisoned)
