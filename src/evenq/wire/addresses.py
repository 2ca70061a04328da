"""The only parser of addresses: `host:port`, after `evenqs://` for TLS or `evenq://` for plain text.

Nets, SDK, command line and servers' settings use it. `;` or `,` separate several addresses.
"""

from __future__ import annotations

from typing import NamedTuple

from evenq.errors import IllegalAccessPoint

TLS, PLAIN = "evenqs://", "evenq://"
BROKER_HEADER = "x-evenq-broker"
"""Header of a call to an address that may lead to any broker: the name of the intended broker."""


class Target(NamedTuple):
    target: str
    """`host:port`, an IPv6 host in brackets, as in gRPC."""
    tls: bool | None
    """True or False by the scheme; None: without a scheme."""


def target_of(address: str) -> Target:
    """Parses one address. Raises IllegalAccessPoint."""
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
    """Splits a `Target.target`; the host is without brackets."""
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


def address_for(broker_name: str, address: str) -> str:
    """Returns an address that leads to any broker, marked for calls to one of them; `address` may be empty."""
    return f"{address}#{broker_name}"


def meant_broker(address: str) -> tuple[str, str]:
    """Returns the address alone and the name of the intended broker; empty if the address is the broker's own."""
    alone, _, broker_name = address.partition("#")
    return alone, broker_name


def split_addresses(text: str) -> list[str]:
    """Returns `a:1;b:2` or `a:1,b:2` as a list without blanks and duplicates."""
    parts = (part.strip() for part in text.replace(";", ",").split(","))
    return list(dict.fromkeys(part for part in parts if part))
