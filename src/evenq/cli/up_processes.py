"""`evenq up --processes`: each service its own process, as in production; this one only watches over them.

A server that ends by itself ends the whole: a quick start that limps would only confuse.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from evenq.cli.up import DEFAULT_QUEUES, Plan, announce, make_topics, wait_served
from evenq.client.async_admin import Admin
from evenq.errors import InternalError
from evenq.runtime.clock import Clock
from evenq.testing.local_cluster import LocalCluster

__all__ = ["serve"]

_LOOK_MS = 200


async def serve(plan: Plan, stop: asyncio.Event, clock: Clock) -> None:
    """Start the processes, announce, wait for `stop` or for one of them to end."""
    folder = plan.data if plan.data is not None else Path(tempfile.mkdtemp(prefix="evenq-up-"))
    settings = {"DEFAULT_QUEUES": str(DEFAULT_QUEUES), "AUTO_CREATE_TOPICS": "true", "AUTO_CREATE_GROUPS": "true"}
    if plan.data is None:
        settings["STORE__PATH"] = ""
    if plan.sync:
        settings["STORE__FLUSH"] = "sync"
    cluster = LocalCluster(
        brokers=len(plan.ports),
        rebalancers=plan.rebalancers,
        broker_ports=plan.ports,
        folder=folder,
        broker_settings=settings,
    )
    try:
        await asyncio.to_thread(cluster.start)
        async with Admin(endpoint=cluster.endpoint) as admin:
            await wait_served(admin, brokers=len(plan.ports), clock=clock)
            await make_topics(admin, plan)
        metrics_port = cluster.brokers[0].metrics_port
        announce(
            plan,
            cluster.endpoint,
            metrics_port=metrics_port,
            brokers=len(plan.ports),
            where=f"a process each, logs in {folder / 'logs'}",
        )
        await _watch(cluster, stop, clock)
    finally:
        await asyncio.to_thread(cluster.stop)
        if plan.data is None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _watch(cluster: LocalCluster, stop: asyncio.Event, clock: Clock) -> None:
    while not stop.is_set():
        for node in cluster.nodes:
            if not node.alive:
                raise InternalError(f"{node.name} ended with exit code {node.exit_code}; its log is {node.log_path}")
        await clock.sleep_ms(_LOOK_MS)
