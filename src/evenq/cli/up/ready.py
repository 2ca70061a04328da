"""The last steps of `evenq up`: wait until clients are served, create the topics, print the next commands."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from evenq.cli.output import complain, print_lines
from evenq.cli.topic.commands import create_topic
from evenq.cli.up.plan import HOST, UpPlan
from evenq.client.async_admin import Admin
from evenq.console.settings import ConsoleSettings
from evenq.errors import BadRequest, Error, PortInUse, RequestTimeout
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.program.run import PARENT
from evenq.wire.tls import Tls

READY_MS_MAX = 30_000
TABLES_END_S = 30
"""Longest time for the file that is being written at the end."""


async def wait_served(admin: Admin, *, brokers: int, clock: Clock) -> None:
    """Waits until all brokers and the rebalancer answer at the access point. Raises RequestTimeout after 30 s."""
    deadline_ms = clock.monotonic_ms() + READY_MS_MAX
    seen = "nothing"
    while True:
        try:
            view = await admin.describe_cluster()
            answering = sum(broker.answered for broker in view.brokers)
            seen = f"{answering} of {brokers} brokers, rebalancer {'answers' if view.rebalancer_answers else 'silent'}"
            if answering >= brokers and view.rebalancer_answers:
                return
        except BadRequest:
            raise
        except Error as error:
            seen = str(error)
        if clock.monotonic_ms() > deadline_ms:
            raise RequestTimeout(f"the cluster is not complete after {READY_MS_MAX} ms: {seen}")
        await clock.sleep_ms(10)


async def make_topics(admin: Admin, plan: UpPlan) -> None:
    for topic in plan.topics:
        await create_topic(admin, topic.name, queues=topic.queues, message_type=topic.message_type)


@asynccontextmanager
async def console_of(plan: UpPlan, endpoint: str, tls: Tls | bool, clock: Clock) -> AsyncIterator[str]:
    """Serves the console of the plan and yields its URL, empty without one."""
    if plan.console_port < 0:
        yield ""
        return
    from evenq.console.server import ConsoleServer

    settings = ConsoleSettings(endpoint=endpoint, tls=tls, port=plan.console_port, allow_changes=plan.allow_changes)
    try:
        server = ConsoleServer(settings, clock)
    except PortInUse:
        if plan.console_port_fixed:
            raise
        server = ConsoleServer(replace(settings, port=0), clock)
    async with server:
        yield server.url


@asynccontextmanager
async def tables_of(plan: UpPlan, endpoint: str, ca: Path | None) -> AsyncIterator[None]:
    """Runs the program that writes the tables of the plan: its work must not delay the brokers. `ca`: with TLS."""
    if not plan.tables:
        yield
        return
    words = ["table", "follow", "--to", plan.tables, "--endpoint", endpoint]
    words += [] if ca is None else ["--tls-ca", str(ca)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENQ_")}
    environment[PARENT] = str(os.getpid())
    # In a session of its own, as Ctrl-C in a terminal would end it too, and be taken for a failure.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "evenq", *words, env=environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )

    async def watch() -> None:
        code = await process.wait()
        complain(f"no table is written any more: exit code {code}. Start it again: evenq {shlex.join(words)}")

    watcher = spawn(watch(), name="program of the tables")
    try:
        yield
    finally:
        watcher.cancel()
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), TABLES_END_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def announce(
    plan: UpPlan,
    endpoint: str,
    *,
    metrics_port: int,
    brokers: int,
    where: str,
    ca: Path | None = None,
    console: str = "",
) -> None:
    """Prints the line `ready ...` and the next commands. `ca`: with TLS, the authority's file; `console`: its URL."""
    kept = f"data in {plan.data}" if plan.data is not None else "data in memory"
    shown = f"; console {console}" if console else ""
    print_lines(f"ready {endpoint} ({brokers} broker{'s' * (brokers != 1)}, {where}, {kept}){shown}")
    quoted = f"'{endpoint}'" if ";" in endpoint else endpoint
    option = "" if endpoint == f"{HOST}:8081" else f" --endpoint {quoted}"
    lines = [
        f"evenq topic create orders --queues 8{option}",
        f"evenq produce orders --body hello{option}",
        f"evenq consume orders --group billing --from first --max 1{option}",
        f"evenq group show billing{option}",
    ]
    if ca is not None:
        from evenq.cli.up.tls import how_to

        lines = [*how_to(ca, endpoint), "", *(line.removesuffix(option) for line in lines)]
    if metrics_port > 0:
        lines.append(f"curl http://{HOST}:{metrics_port}/metrics")
    width = max(map(len, lines))
    title = " Now type in another terminal (Ctrl-C here stops evenq) "
    width = max(width, len(title))
    print_lines(
        "╭" + title.center(width + 2, "─") + "╮",
        *(f"│ {line:<{width}} │" for line in lines),
        "╰" + "─" * (width + 2) + "╯",
    )
