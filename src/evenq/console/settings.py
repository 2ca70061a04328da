"""Settings of the console."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evenq.wire.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Where the console listens, and what it may do."""

    endpoint: str = ""
    """Access points of the cluster, as for `evenq.Producer`; empty: EVENQ_ENDPOINT, or the default."""
    tls: Tls | bool | None = None
    """How the console calls the cluster, as for `evenq.Producer`."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free port."""
    prefix: str = ""
    """Path of the console behind a proxy, such as `/evenq`; without a slash at its end."""
    allow_changes: bool = False
    """False: every action that changes the cluster is refused."""
    names: tuple[str, ...] = ()
    """Host names under which browsers reach the console, besides IP addresses and `localhost`."""
    certificate: Path | None = None
    """PEM files for HTTPS; None: plain HTTP."""
    key: Path | None = None
    https: bool = False
    """True: browsers use HTTPS, here or at a proxy, so cookies are marked as secure."""
