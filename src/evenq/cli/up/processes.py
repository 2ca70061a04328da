"""`evenq up --processes`: each service in its own process, as in production; this process supervises them.

A server that ends by itself is restarted, as Kubernetes would, with a line on standard error. A server that keeps
ending stops the whole cluster: a cluster that works only in part would mislead.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from evenq.cli.output import complain
from evenq.cli.up.plan import UpPlan
from evenq.cli.up.ready import announce, console_of, make_topics, tables_of, wait_served
from evenq.client.async_admin import Admin
from evenq.errors import Error, InternalError
from evenq.runtime.clock import Clock
from evenq.testing.local_cluster import LocalCluster

_LOOK_MS = 200
_RESTARTS_MAX = 5
_RESTARTS_MS = 60_000
"""Most restarts of one server within this time."""


async def serve(plan: UpPlan, stop: asyncio.Event, clock: Clock) -> None:
    """Starts the processes, announces the access point and supervises until `stop`."""
    folder = plan.data if plan.data is not None else Path(tempfile.mkdtemp(prefix="evenq-up-"))
    settings = {
        "AUTO_CREATE_TOPICS": str(plan.auto_create_topics).lower(),
        "AUTO_CREATE_GROUPS": "true",
    }
    if plan.data is None:
        settings["STORE__PATH"] = ""
    if plan.sync:
        settings["STORE__FLUSH"] = "sync"
    brokers = len(plan.ports) // plan.replicas
    cluster = LocalCluster(
        brokers=brokers,
        replicas=plan.replicas,
        rebalancers=plan.rebalancers,
        broker_ports=plan.ports,
        folder=folder,
        broker_settings=settings,
        tls=plan.tls,
        metrics_port=plan.metrics_port,
    )
    copies = f"{plan.replicas} copies of each, " if plan.replicas > 1 else ""
    try:
        await asyncio.to_thread(cluster.start)
        endpoint = cluster.endpoint if plan.replicas == 1 else cluster.endpoints
        tls = cluster.client_tls or False
        ca = cluster.authority.ca.resolve() if cluster.authority is not None else None
        async with (
            Admin(endpoint=endpoint, tls=tls) as admin,
            console_of(plan, endpoint, tls, clock) as console,
            tables_of(plan, endpoint, ca),
        ):
            await wait_served(admin, brokers=brokers, clock=clock)
            await make_topics(admin, plan)
            announce(
                plan,
                endpoint,
                metrics_port=cluster.brokers[0].metrics_port,
                brokers=brokers,
                where=f"{copies}a process each, logs in {folder / 'logs'}",
                ca=ca,
                console=console,
            )
            await _watch(cluster, plan, admin, stop, clock)
    finally:
        await asyncio.to_thread(cluster.stop)
        if plan.data is None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _watch(cluster: LocalCluster, plan: UpPlan, admin: Admin, stop: asyncio.Event, clock: Clock) -> None:
    """Restarts ended processes until `stop`. Raises InternalError if one does not stay up."""
    restarts: dict[str, list[int]] = {node.name: [] for node in cluster.nodes}
    emptied = False
    while not stop.is_set():
        for node in cluster.nodes:
            if node.alive:
                continue
            now_ms = clock.monotonic_ms()
            recent = [at_ms for at_ms in restarts[node.name] if now_ms - at_ms < _RESTARTS_MS]
            if len(recent) >= _RESTARTS_MAX:
                raise InternalError(
                    f"{node.name} {node.end_text}, after {_RESTARTS_MAX} restarts within a minute; its log is "
                    f"{node.log_path}"
                )
            restarts[node.name] = [*recent, now_ms]
            in_memory = plan.data is None and node in cluster.brokers
            emptied = emptied or in_memory
            complain(
                f"{node.name} {node.end_text}; started again, {len(recent) + 1} of {_RESTARTS_MAX} times within a "
                f"minute{'; its messages were in memory and are lost' if in_memory else ''}; its log is "
                f"{node.log_path}"
            )
            node.start()
        if emptied and all(node.alive for node in cluster.nodes):
            emptied = not await _topics_again(admin, plan)
        await clock.sleep_ms(_LOOK_MS)


async def _topics_again(admin: Admin, plan: UpPlan) -> bool:
    """Creates the topics again on brokers that lost their memory; False: one does not answer yet."""
    try:
        await make_topics(admin, plan)
    except Error:
        return False
    return True
