"""What `evenq up` is to start, read from its command line; ports that are taken are noticed here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from evenq.cli.parser import MESSAGE_TYPES
from evenq.errors import PortInUse, SettingsError
from evenq.testing.free_ports import port_is_free

__all__ = ["HOST", "StartTopic", "UpPlan", "parse_topic", "plan_of"]

HOST = "127.0.0.1"
METRICS_PORT = 5557  # as the services have it
BROKERS_MAX = 26
REBALANCERS_MAX = 9
REPLICAS_MAX = 9
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTopic:
    """A topic named on the command line."""

    name: str
    queues: int = 0
    message_type: str = "NORMAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """What to start."""

    ports: tuple[int, ...]
    """One per broker, or per copy of one; 0 = any free one."""
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
    replicas: int = 1
    """Copies of each broker's data, each a process."""

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


def plan_of(options: argparse.Namespace) -> UpPlan:
    """Check the options. Raises SettingsError, and PortInUse that names a free port to take instead."""
    count: int = options.brokers
    if count > BROKERS_MAX:
        raise SettingsError(
            f"--brokers {count} is over {BROKERS_MAX}; for a bigger cluster use Kubernetes (helm/evenq)"
        )
    if options.rebalancers > REBALANCERS_MAX:
        raise SettingsError(
            f"--rebalancers {options.rebalancers} is over {REBALANCERS_MAX}; one leads, the others wait"
        )
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
        metrics_port=_metrics_port(options.metrics_port),
        rebalancers=options.rebalancers,
        auto_create_topics=options.auto_create_topics,
        tls=options.tls,
        replicas=replicas,
    )


def _metrics_port(port: int | None) -> int:
    """What was asked for; else the usual port, or any free one where that is taken."""
    if port is not None:
        return port
    return METRICS_PORT if port_is_free(METRICS_PORT, HOST) else 0


def _port_hint(port: int, count: int) -> str:
    start = port + 1
    while start + count < 65_536 and not all(port_is_free(start + index, HOST) for index in range(count)):
        start += 1
    return (
        f"port {port} on {HOST} is in use, perhaps by another `evenq up`; stop that, or run `evenq up --port {start}`"
    )
