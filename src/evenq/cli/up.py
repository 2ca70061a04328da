"""`evenq up`: a whole cluster with one command, for work on one machine.

By default nameserver, brokers and rebalancer share this process and one loop; with `--processes` each is a process of
its own. Either way the line `ready HOST:PORT ...` is printed once clients are served, and SIGINT or SIGTERM stops
everything in order, exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from evenq.cli.parser import MESSAGE_TYPES
from evenq.cli.topics import create_topic
from evenq.client.async_admin import Admin
from evenq.errors import BadRequest, Error, PortInUse, RequestTimeout, SettingsError, StoreError, StoreLocked
from evenq.runtime.clock import Clock, SystemClock
from evenq.serving.logs import setup_logs
from evenq.serving.run import run as run_loop
from evenq.testing.free_ports import port_is_free

__all__ = ["Plan", "StartTopic", "announce", "lock_folder", "parse_topic", "plan_of", "run", "wait_served"]

HOST = "127.0.0.1"
METRICS_PORT = 5557  # as the services have it
BROKERS_MAX = 26
REBALANCERS_MAX = 9
DEFAULT_QUEUES = 8
READY_MS_MAX = 30_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTopic:
    """A topic named on the command line."""

    name: str
    queues: int = 0
    message_type: str = "NORMAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start."""

    ports: tuple[int, ...]
    """One per broker; 0 = any free one."""
    data: Path | None
    topics: tuple[StartTopic, ...]
    sync: bool
    metrics_port: int
    """Of the first broker; 0 = any free one, -1 = off."""
    rebalancers: int = 1
    """Of several one leads."""
    auto_create_topics: bool = True
    """True: a topic is made by its first message."""
    tls: bool = False
    """TLS and no plain text."""

    def broker_name(self, index: int) -> str:
        """`broker-a`, `broker-b` ..."""
        return f"broker-{_LETTERS[index]}"


def parse_topic(text: str) -> StartTopic:
    """`NAME[:QUEUES[:TYPE]]`. Raises SettingsError."""
    name, *rest = text.split(":")
    queues = rest[0] if rest else "0"
    message_type = rest[1].upper() if len(rest) > 1 else "NORMAL"
    if not name or not queues.isdecimal() or message_type not in MESSAGE_TYPES or len(rest) > 2:
        raise SettingsError(f"--topic {text} is not NAME[:QUEUES[:TYPE]] with TYPE one of {', '.join(MESSAGE_TYPES)}")
    return StartTopic(name=name, queues=int(queues), message_type=message_type)


def plan_of(options: argparse.Namespace) -> Plan:
    """Check the options. Raises SettingsError, and PortInUse that names a free port to take instead."""
    count: int = options.brokers
    if count > BROKERS_MAX:
        raise SettingsError(
            f"--brokers {count} is over {BROKERS_MAX}; a bigger cluster belongs on Kubernetes (helm/evenq)"
        )
    if options.rebalancers > REBALANCERS_MAX:
        raise SettingsError(
            f"--rebalancers {options.rebalancers} is over {REBALANCERS_MAX}; one leads, the others wait"
        )
    if options.sync and options.data is None:
        raise SettingsError("--sync needs --data DIR: in memory there is nothing to fsync")
    ports = tuple(options.port + index if options.port else 0 for index in range(count))
    if ports[-1] > 65_535:
        raise SettingsError(f"--port {options.port} leaves no room for {count} brokers below 65536")
    for port in ports:
        if port and not port_is_free(port, HOST):
            raise PortInUse(_port_hint(port, count))
    return Plan(
        ports=ports,
        data=options.data,
        topics=tuple(parse_topic(text) for text in options.topic),
        sync=options.sync,
        metrics_port=_metrics_port(options.metrics_port),
        rebalancers=options.rebalancers,
        auto_create_topics=options.auto_create_topics,
        tls=options.tls,
    )


def _metrics_port(asked: int | None) -> int:
    """What was asked for; else the usual port, or any free one where that is taken."""
    if asked is not None:
        return asked
    return METRICS_PORT if port_is_free(METRICS_PORT, HOST) else 0


def _port_hint(port: int, count: int) -> str:
    start = port + 1
    while start + count < 65_536 and not all(port_is_free(start + index, HOST) for index in range(count)):
        start += 1
    return (
        f"port {port} on {HOST} is in use, perhaps by another `evenq up`; stop that, or run `evenq up --port {start}`"
    )


def lock_folder(folder: Path, stack: ExitStack) -> None:
    """Make the data folder ours until `stack` ends. Raises StoreLocked that names the folder and the process in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context((folder / "up.lock").open("a+", encoding="utf-8"))
    except OSError as error:
        raise StoreError(
            f"the data folder {folder} cannot be used: {error.strerror}; choose another with --data"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        raise StoreLocked(
            f"the data folder {folder.resolve()} is in use by another `evenq up`, process {owner}; "
            "stop it, or choose another folder with --data"
        ) from error
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()


def run(options: argparse.Namespace) -> int:
    """`evenq up`."""
    plan = plan_of(options)
    setup_logs(options.log_level, program="up")
    if options.processes:
        from evenq.cli.up_processes import serve as serve_processes

        work = serve_processes
    else:
        from evenq.cli.up_one import serve as serve_one

        work = serve_one
    failures: list[Error] = []

    async def guarded(stop: asyncio.Event) -> None:
        try:
            await work(plan, stop, SystemClock())
        except Error as error:
            failures.append(error)

    with ExitStack() as stack:
        if plan.data is not None:
            lock_folder(plan.data, stack)
        code = run_loop(guarded)
    if failures:
        raise failures[0]
    return code


async def wait_served(admin: Admin, *, brokers: int, clock: Clock) -> None:
    """Wait until the access point knows all brokers and the rebalancer. Raises RequestTimeout after 30 s."""
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
            raise RequestTimeout(f"the cluster is not whole after {READY_MS_MAX} ms: {seen}")
        await clock.sleep_ms(10)


async def make_topics(admin: Admin, plan: Plan) -> None:
    """Create the topics of the command line."""
    for topic in plan.topics:
        await create_topic(admin, topic.name, queues=topic.queues, message_type=topic.message_type)


def announce(plan: Plan, endpoint: str, *, metrics_port: int, brokers: int, where: str, ca: Path | None = None) -> None:
    """Print the line `ready ...` and what to type next; `ca`: with TLS, the authority's file."""
    kept = f"data in {plan.data}" if plan.data is not None else "data in memory"
    sys.stdout.write(f"ready {endpoint} ({brokers} broker{'s' * (brokers != 1)}, {where}, {kept})\n")
    option = "" if endpoint == f"{HOST}:8081" else f" --endpoint {endpoint}"
    lines = [
        f"evenq topic create orders --queues 8{option}",
        f"evenq produce orders --body hello{option}",
        f"evenq consume orders --group billing --from first --max 1{option}",
        f"evenq group show billing{option}",
    ]
    if ca is not None:
        from evenq.cli.up_tls import how_to

        target = endpoint.removeprefix("evenqs://")
        lines = [*how_to(ca, target), "", *(line.removesuffix(option) for line in lines)]
    if metrics_port > 0:
        lines.append(f"curl http://{HOST}:{metrics_port}/metrics")
    width = max(map(len, lines))
    title = " Now type in another terminal (Ctrl-C here stops evenq) "
    width = max(width, len(title))
    sys.stdout.write("╭" + title.center(width + 2, "─") + "╮\n")
    sys.stdout.writelines(f"│ {line:<{width}} │\n" for line in lines)
    sys.stdout.write("╰" + "─" * (width + 2) + "╯\n")
    sys.stdout.flush()
