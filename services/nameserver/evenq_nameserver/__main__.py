"""`evenq-nameserver`: one nameserver in a process of its own."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING

from evenq.runtime.clock import SystemClock
from evenq.runtime.extras import sentence
from evenq.runtime.quiet_grpc import quiet_grpc

if TYPE_CHECKING:
    from evenq_nameserver.settings import NameserverSettings

__all__ = ["main"]


async def serve(settings: NameserverSettings, stop: asyncio.Event) -> None:
    """Run until `stop` is set."""
    from evenq_nameserver.app import Nameserver

    await Nameserver(settings, clock=SystemClock(), rng=random.Random()).run(stop)  # noqa: S311  identity, not a secret


def main() -> None:
    """Read settings, serve, exit; or say that the extra `server` is missing."""
    quiet_grpc()
    try:
        from evenq.serving.program.run import run_program
        from evenq_nameserver.settings import NameserverSettings
    except ModuleNotFoundError as error:
        sys.exit(sentence("evenq-nameserver", error))
    sys.exit(run_program("nameserver", NameserverSettings, serve))


if __name__ == "__main__":
    main()
