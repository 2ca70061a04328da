"""Addresses as people write them: `host:port`, with `evenqs://` in front for TLS or `evenq://` for plain text; several
with `;` or `,` between.

The only parser of them: `Net`s, the SDK, the command line and the servers' settings use it.
"""

from __future__ import annotations

from typing import NamedTuple

from evenq.errors import IllegalAccessPoint

__all__ = [
    "BROKER_HEADER",
    "PLAIN",
    "TLS",
    "Target",
    "address_for",
    "host_and_port",
    "meant_broker",
    "split_addresses",
    "target_of",
]

TLS, PLAIN = "evenqs://", "evenq://"
BROKER_HEADER = "x-evenq-broker"
"""Header of a call to an address that leads to any broker: the name of the broker that the call is for."""


class Target(NamedTuple):
    """One address."""

    target: str
    """`host:port`, an IPv6 host in brackets, as gRPC takes it."""
    tls: bool | None
    """What its scheme says; None: it has none."""


def target_of(address: str) -> Target:
    """Read one address. Raises IllegalAccessPoint."""
    rest, tls = address.strip(), None
    for scheme, secure in ((TLS, True), (PLAIN, False)):
        if rest[: len(scheme)].lower() == scheme:
            rest, tls = rest[len(scheme) :].rstrip("/"), secure
    host, colon, port = rest.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if "://" in rest:
        raise IllegalAccessPoint(
            f"address {address!r} has an unknown scheme; write host:port, evenqs://host:port for TLS, or "
            "evenq://host:port for plain text"
        )
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not colon or not bare or not 1 <= number <= 65_535 or any(c.isspace() or c in "/[]@" for c in bare):
        raise IllegalAccessPoint(
            f"address {address!r} is not host:port with a port of 1 to 65535; give for example 127.0.0.1:8081"
        )
    return Target(f"[{bare}]:{number}" if ":" in bare else f"{bare}:{number}", tls)


def host_and_port(target: str) -> tuple[str, int]:
    """Of a `Target.target`; the host without brackets."""
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


def address_for(broker_name: str, address: str) -> str:
    """How a client writes an address that leads to any broker, for calls to one of them; `address` may be empty, for
    its access point.
    """
    return f"{address}#{broker_name}"


def meant_broker(address: str) -> tuple[str, str]:
    """The address alone, and the broker that is meant; empty if the address is the broker's own."""
    alone, _, broker_name = address.partition("#")
    return alone, broker_name


def split_addresses(text: str) -> list[str]:
    """`a:1;b:2` or `a:1,b:2` as a list without blanks and repeats."""
    parts = (part.strip() for part in text.replace(";", ",").split(","))
    return list(dict.fromkeys(part for part in parts if part))
