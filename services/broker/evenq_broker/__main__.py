"""`evenq-broker`: loads settings, sets up logs and signals, and runs one broker until SIGTERM."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import TYPE_CHECKING

from evenq.runtime.accelerator import accelerator
from evenq.runtime.clock import SystemClock
from evenq.runtime.extras import sentence
from evenq.runtime.quiet_grpc import quiet_grpc
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq_broker.settings import BrokerSettings


async def serve(settings: BrokerSettings, stop: asyncio.Event) -> None:
    """Runs one broker until `stop`, or until it fails."""
    accelerator().must_be_right()  # copies make the app only when they lead
    from evenq.wire.net import GrpcNet
    from evenq_broker.app import BrokerApp
    from evenq_broker.replica.replicated_app import ReplicatedApp

    net = GrpcNet(tls=settings.tls.for_peers(), encrypted=settings.tls.peers)
    # Random numbers of the system: the key of receipt handles must be unpredictable.
    kind = ReplicatedApp if settings.replication.members else BrokerApp
    app = kind(settings, clock=SystemClock(), rng=random.SystemRandom(), net=net)
    stopped = spawn(stop.wait(), name="the signal")
    try:
        starting = spawn(app.start(), name="the broker's start")
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # it may wait for nameservers, copies or a group record that do not answer
            starting.cancel()
            await asyncio.wait({starting})  # it closes what it has opened
        if starting.cancelled():
            return
        starting.result()
        failed = spawn(app.wait(), name="the broker's loops")
        done, _ = await asyncio.wait({failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if failed not in done:
            failed.cancel()
        await app.close()
        if failed in done:
            failed.result()
    finally:
        stopped.cancel()
        await net.close()


def main() -> int:
    """Runs the console script. Packages of the extra `server` are imported here: a missing one gets a clear error."""
    quiet_grpc()
    try:
        from evenq.serving.program.run import run_program
        from evenq_broker.settings import BrokerSettings
    except ModuleNotFoundError as error:
        sys.exit(sentence("evenq-broker", error))
    return run_program("broker", BrokerSettings, serve)


if __name__ == "__main__":
    sys.exit(main())
