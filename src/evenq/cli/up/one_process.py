"""`evenq up` in one process: nameserver, rebalancer and brokers on one loop.

They call each other over gRPC on loopback addresses, as in production. The first service that fails ends all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from evenq_broker.app import BrokerApp
from evenq_broker.settings import BrokerSettings, StoreSettings
from evenq_nameserver.app import Nameserver
from evenq_nameserver.settings import NameserverSettings
from evenq_rebalancer.app import Rebalancer
from evenq_rebalancer.settings import RebalancerSettings

from evenq.cli.up.plan import HOST, UpPlan
from evenq.cli.up.ready import announce, console_of, make_topics, tables_of, wait_served
from evenq.cli.up.tls import Certificates, make_certificates
from evenq.client.async_admin import Admin
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.tls import TlsSettings
from evenq.wire.net import GrpcNet

_DRAIN_MS = 1_000
_DISK_FREE_MIN_BYTES = 64 << 20  # small, as the disks of laptops may be nearly full
_MEMORY_CACHE_BYTES = 2 << 20


async def serve(plan: UpPlan, stop: asyncio.Event, clock: Clock) -> None:
    """Starts all, announces the access point, waits for `stop` or a failure, and stops all in reverse order."""
    async with AsyncExitStack() as stack:
        certificates = make_certificates(plan.data, stack) if plan.tls else None
        tls = certificates.settings() if certificates is not None else None
        net = GrpcNet() if tls is None else GrpcNet(tls=tls.for_peers())
        stack.push_async_callback(net.close)
        brokers = await _start(plan, clock, net, stack, certificates)
        endpoint = f"evenqs://{HOST}:{brokers[0].port}" if tls is not None else f"{HOST}:{brokers[0].port}"
        admin_tls = tls.for_peers() if tls is not None else False  # EVENQ_TLS_* does not apply here
        admin = await stack.enter_async_context(Admin(endpoint=endpoint, tls=admin_tls))
        await wait_served(admin, brokers=len(brokers), clock=clock)
        await make_topics(admin, plan)
        ca = certificates.ca if certificates is not None else None
        console = await stack.enter_async_context(console_of(plan, endpoint, admin_tls, clock))
        await stack.enter_async_context(tables_of(plan, endpoint, ca))
        announce(
            plan,
            endpoint,
            metrics_port=brokers[0].metrics_port,
            brokers=len(brokers),
            where="one process",
            ca=ca,
            console=console,
        )
        await _first(stop.wait, *(broker.wait for broker in brokers))


async def _start(
    plan: UpPlan, clock: Clock, net: GrpcNet, stack: AsyncExitStack, certificates: Certificates | None
) -> list[BrokerApp]:
    rng = random.SystemRandom()  # source of the keys of receipt handles
    quiet: dict[str, object] = {"host": HOST, "port": 0, "metrics_port": -1, "drain_ms": _DRAIN_MS}
    if certificates is not None:
        quiet |= {"port": -1, "tls": certificates.settings()}
    nameserver = Nameserver(NameserverSettings.model_validate(quiet), clock=clock, rng=rng)
    await nameserver.start()
    stack.push_async_callback(nameserver.close)
    rebalancers = await _start_rebalancers(plan, quiet, clock, stack)
    brokers = []
    for index, port in enumerate(plan.ports):
        settings = BrokerSettings(
            broker_name=plan.broker_name(index),
            host=HOST,
            port=-1 if certificates is not None else port,
            tls=certificates.settings(port) if certificates is not None else TlsSettings(),
            metrics_port=plan.metrics_port if index == 0 else -1,
            nameservers=nameserver.address,
            rebalancer=",".join(rebalancer.address for rebalancer in rebalancers),
            auto_create_topics=plan.auto_create_topics,
            drain_ms=_DRAIN_MS,
            route_settle_ms=0,  # the nameserver and all brokers start together
            store=_store(plan, plan.broker_name(index)),
        )
        broker = BrokerApp(settings, clock=clock, rng=rng, net=net)
        await broker.start()
        stack.push_async_callback(broker.close)
        brokers.append(broker)
    return brokers


async def _start_rebalancers(
    plan: UpPlan, quiet: dict[str, object], clock: Clock, stack: AsyncExitStack
) -> list[Rebalancer]:
    lease = "none"
    if plan.rebalancers > 1:
        folder = plan.data or Path(stack.enter_context(TemporaryDirectory(prefix="evenq-up-")))
        # A lease of a killed cluster would delay the election; no server holds it, as the folder is locked.
        (folder / "rebalancer.lease").unlink(missing_ok=True)
        lease = f"file:{folder / 'rebalancer.lease'}"
    rebalancers = []
    for _ in range(plan.rebalancers):
        rebalancer = Rebalancer(RebalancerSettings.model_validate({**quiet, "lease": lease}), clock=clock)
        await rebalancer.start()
        stack.push_async_callback(rebalancer.close)
        rebalancers.append(rebalancer)
    return rebalancers


def _store(plan: UpPlan, name: str) -> StoreSettings:
    if plan.data is None:  # the log is in memory, so that a cache saves nothing
        return StoreSettings(path=None, cache_bytes=_MEMORY_CACHE_BYTES)
    return StoreSettings(
        path=plan.data / name, flush="sync" if plan.sync else "async", disk_free_min_bytes=_DISK_FREE_MIN_BYTES
    )


async def _first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Returns when the first of `waits` ends, or raises its error; the others are cancelled."""

    async def one(wait: Callable[[], Awaitable[object]]) -> None:
        await wait()

    tasks = [spawn(one(wait), name="quick start") for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
