"""The access points of a client: one text with one or several `host:port`, all with TLS or all without.

Used by `client.wiring` and the command line. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.errors import IllegalAccessPoint
from evenq.wire.addresses import PLAIN, TLS, split_addresses, target_of

__all__ = ["DEFAULT_ENDPOINT", "ENDPOINT_VARIABLE", "AccessPoints", "access_points"]

DEFAULT_ENDPOINT = "127.0.0.1:8081"
ENDPOINT_VARIABLE = "EVENQ_ENDPOINT"


@dataclass(frozen=True, slots=True)
class AccessPoints:
    """At least one."""

    targets: tuple[str, ...]
    """`host:port`, in the order in which they are tried."""
    tls: bool | None
    """What their scheme says; None: they have none."""

    @property
    def endpoint(self) -> str:
        """The targets in one text."""
        return ";".join(self.targets)

    @property
    def addresses(self) -> list[str]:
        """The targets as a `Net` takes them, with their scheme."""
        scheme = "" if self.tls is None else TLS if self.tls else PLAIN
        return [scheme + target for target in self.targets]


def access_points(text: str) -> AccessPoints:
    """`a:8081;b:8081` or `a:8081,b:8081`; `evenqs://` in front of one of them means TLS for all, `evenq://` plain text.

    Raises IllegalAccessPoint.
    """
    found = [target_of(part) for part in split_addresses(text)]
    if not found:
        raise IllegalAccessPoint(f"the endpoint is empty; give for example {DEFAULT_ENDPOINT}")
    schemes = {one.tls for one in found if one.tls is not None}
    if len(schemes) > 1:
        raise IllegalAccessPoint(
            f"the endpoint {text!r} mixes evenqs:// and evenq://; a client speaks to all access points alike"
        )
    targets = tuple(dict.fromkeys(one.target for one in found))
    return AccessPoints(targets, schemes.pop() if schemes else None)
