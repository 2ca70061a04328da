"""The broker's composition: what ends the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evenq.errors import StorePoisoned

Run = Callable[[Any], None]


def test_a_poisoned_store_ends_the_broker(run: Run) -> None:
    """What is on disk is unknown, so the process must stop and recover, never go on refusing."""

    async def story(stage: Any) -> None:
        broker = await stage.broker()
        assert broker.failed is not None
        assert not broker.failed.done()
        broker.store._appender.poison("writing the commit log at offset 0 failed: EIO")
        assert isinstance(broker.failed.result(), StorePoisoned)

    run(story)
