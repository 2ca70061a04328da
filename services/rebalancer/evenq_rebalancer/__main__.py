"""`evenq-rebalancer`: the rebalancer in its own process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from evenq.runtime.clock import SystemClock
from evenq.runtime.extras import sentence
from evenq.runtime.quiet_grpc import quiet_grpc

if TYPE_CHECKING:
    from evenq_rebalancer.settings import RebalancerSettings


async def _serve(settings: RebalancerSettings, stop: asyncio.Event) -> None:
    from evenq_rebalancer.app import Rebalancer

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
    """Runs until SIGTERM or SIGINT and returns the exit code. Exits with a message if the extra `server` is missing."""
    quiet_grpc()
    try:
        from evenq.serving.program.run import run_program
        from evenq_rebalancer.settings import RebalancerSettings
    except ModuleNotFoundError as error:
        sys.exit(sentence("evenq-rebalancer", error))
    return run_program("rebalancer", RebalancerSettings, _serve, argv)


if __name__ == "__main__":
    sys.exit(main())
