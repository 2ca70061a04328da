"""`evenq-nameserver`: the nameserver in its own process."""

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


async def serve(settings: NameserverSettings, stop: asyncio.Event) -> None:
    from evenq_nameserver.app import Nameserver

    await Nameserver(settings, clock=SystemClock(), rng=random.Random()).run(stop)  # noqa: S311  identity, not a secret


def main() -> None:
    """Reads settings, serves, and exits; without the extra `server` it exits with a message."""
    quiet_grpc()
    try:
        from evenq.serving.program.run import run_program
        from evenq_nameserver.settings import NameserverSettings
    except ModuleNotFoundError as error:
        sys.exit(sentence("evenq-nameserver", error))
    sys.exit(run_program("nameserver", NameserverSettings, serve))


if __name__ == "__main__":
    main()
