"""`evenq-rebalancer`: the rebalancer as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from evenq.runtime.clock import SystemClock
from evenq.serving.run import run_program
from evenq_rebalancer.app import Rebalancer
from evenq_rebalancer.settings import Settings

__all__ = ["main"]


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    rebalancer = Rebalancer(settings, clock=SystemClock())
    await rebalancer.start()
    try:
        async with asyncio.TaskGroup() as group:
            broken = group.create_task(rebalancer.wait(), name="loops")
            await stop.wait()
            broken.cancel()
    finally:
        await rebalancer.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit code."""
    return run_program("rebalancer", Settings, _serve, argv)


if __name__ == "__main__":
    sys.exit(main())
