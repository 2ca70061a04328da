"""The plan of `evenq up`, from its command line; checks limits and ports."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from evenq.cli.console_options import CONSOLE_PORT
from evenq.cli.topic.options import MESSAGE_TYPES
from evenq.cli.values import DIGITS_MAX
from evenq.errors import PortInUse, SettingsError
from evenq.model import topic_problem
from evenq.model.topic import QUEUES_MAX
from evenq.runtime.extras import EXTRA_OF, is_installed, missing
from evenq.testing.free_ports import FreePorts, port_is_free

HOST = "127.0.0.1"
METRICS_PORT = 5557  # the default of the services
BROKERS_MAX = 26
REBALANCERS_MAX = 9
REPLICAS_MAX = 9
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTopic:
    """A topic of the option `--topic`."""

    name: str
    queues: int = 0
    message_type: str = "NORMAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """The processes and topics to start."""

    ports: tuple[int, ...]
    """One per broker or copy; 0 = any free port."""
    data: Path | None
    topics: tuple[StartTopic, ...]
    sync: bool
    metrics_port: int
    """Of the first broker; 0 = any free port, -1 = off."""
    rebalancers: int = 1
    auto_create_topics: bool = True
    tls: bool = False
    """True: no port of plain text."""
    replicas: int = 1
    """Copies of each broker, each in its own process."""
    console_port: int = -1
    """0 = any free port, -1 = no console."""
    console_port_fixed: bool = True
    """False: any free port if that one is in use."""
    allow_changes: bool = False
    """True: the console may change the cluster."""
    tables: str = ""
    """Folder or URL of the tables; empty: none are written."""

    def broker_name(self, index: int) -> str:
        """Returns `broker-a`, `broker-b` ..."""
        return f"broker-{_LETTERS[index]}"


def parse_topic(text: str) -> StartTopic:
    """Parses `NAME[:QUEUES[:TYPE]]`. Raises SettingsError."""
    name, *rest = text.split(":")
    queues = rest[0] if rest else "0"
    message_type = rest[1].upper() if len(rest) > 1 else "NORMAL"
    if not name or not queues.isdecimal() or message_type not in MESSAGE_TYPES or len(rest) > 2:
        raise SettingsError(f"--topic {text} is not NAME[:QUEUES[:TYPE]] with TYPE one of {', '.join(MESSAGE_TYPES)}")
    problem = topic_problem(name)
    if problem is not None:
        raise SettingsError(f"--topic: {problem}")
    if len(queues) > DIGITS_MAX or int(queues) > QUEUES_MAX:
        raise SettingsError(f"--topic {text:.80} has more than {QUEUES_MAX} queues; give 1 to {QUEUES_MAX}")
    return StartTopic(name=name, queues=int(queues), message_type=message_type)


def plan_of(options: argparse.Namespace, stack: ExitStack) -> UpPlan:
    """Checks the options. Raises SettingsError, or PortInUse, which names a free port.

    The default metrics port is reserved until `stack` ends: another start must not choose it before this one binds it.
    """
    count: int = options.brokers
    if count > BROKERS_MAX:
        raise SettingsError(
            f"--brokers {count} is above {BROKERS_MAX}; for a larger cluster use Kubernetes (helm/evenq)"
        )
    if options.rebalancers > REBALANCERS_MAX:
        raise SettingsError(f"--rebalancers {options.rebalancers} is above {REBALANCERS_MAX}; only one of them leads")
    if options.sync and options.data is None:
        raise SettingsError("--sync needs --data DIR: in memory there is nothing to fsync")
    replicas: int = options.replicas
    if replicas > 1 and options.data is None:
        raise SettingsError("--replicas needs --data DIR: copies are kept in files")
    if not 1 <= replicas <= REPLICAS_MAX:
        raise SettingsError(f"--replicas {replicas} is outside 1 to {REPLICAS_MAX}; three are usual")
    count *= replicas
    ports = tuple(options.port + index if options.port else 0 for index in range(count))
    if ports[-1] > 65_535:
        raise SettingsError(f"--port {options.port} leaves fewer than {count} ports up to 65535 for {count} brokers")
    for port in ports:
        if port and not port_is_free(port, HOST):
            raise PortInUse(_port_hint(port, count))
    return UpPlan(
        ports=ports,
        data=options.data,
        topics=tuple(parse_topic(text) for text in options.topic),
        sync=options.sync,
        metrics_port=_metrics_port(options.metrics_port, stack),
        rebalancers=options.rebalancers,
        auto_create_topics=options.auto_create_topics,
        tls=options.tls,
        replicas=replicas,
        console_port=_console_port(options.console_port),
        console_port_fixed=options.console_port is not None,
        allow_changes=options.allow_changes,
        tables=_tables(options.tables),
    )


def _metrics_port(port: int | None, stack: ExitStack) -> int:
    """Returns the given port, otherwise the default port, or 0 if that is in use."""
    if port is not None:
        return port
    try:
        free = stack.enter_context(FreePorts()).reserve(METRICS_PORT)
    except OSError:  # no folder for temporary files
        free = port_is_free(METRICS_PORT, HOST)
    return METRICS_PORT if free else 0


def _console_port(port: int | None) -> int:
    """Returns the given port, otherwise the default port; -1 without the console's packages."""
    if port is not None:
        return port
    if not all(is_installed(package) for package, extra in EXTRA_OF.items() if extra == "console"):
        return -1
    return CONSOLE_PORT


def _tables(place: str | None) -> str:
    """Raises SettingsError without the packages that write Parquet files."""
    if place is None:
        return ""
    for package in ("pyarrow", "numpy"):
        if not is_installed(package):
            raise SettingsError(missing("--tables", package))
    return place


def _port_hint(port: int, count: int) -> str:
    start = port + 1
    while start + count < 65_536 and not all(port_is_free(start + index, HOST) for index in range(count)):
        start += 1
    return f"port {port} on {HOST} is in use, perhaps by another `evenq up`; stop it, or run `evenq up --port {start}`"
