"""The access points of a client: one text with one or several `host:port`, all with TLS or all without, and whether
they are all that the client can reach.

Used by `client.wiring` and the command line. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.errors import IllegalAccessPoint
from evenq.wire.addresses import PLAIN, TLS, split_addresses, target_of

__all__ = ["DEFAULT_ENDPOINT", "ENDPOINT_VARIABLE", "ONE_ADDRESS", "AccessPoints", "access_points"]

DEFAULT_ENDPOINT = "127.0.0.1:8081"
ENDPOINT_VARIABLE = "EVENQ_ENDPOINT"
ONE_ADDRESS = "?one-address"


@dataclass(frozen=True, slots=True)
class AccessPoints:
    """At least one."""

    targets: tuple[str, ...]
    """`host:port`, in the order in which they are tried."""
    tls: bool | None
    """What their scheme says; None: they have none."""
    one_address: bool = False
    """True: no other address can be reached, so each call goes there and names the broker that it is for."""

    @property
    def endpoint(self) -> str:
        """The targets in one text."""
        return ";".join(self.targets) + (ONE_ADDRESS if self.one_address else "")

    @property
    def addresses(self) -> list[str]:
        """The targets as a `Net` takes them, with their scheme."""
        scheme = "" if self.tls is None else TLS if self.tls else PLAIN
        return [scheme + target for target in self.targets]


def access_points(text: str) -> AccessPoints:
    """`a:8081;b:8081` or `a:8081,b:8081`; `evenqs://` in front of one of them means TLS for all, `evenq://` plain text,
    `?one-address` behind one of them that a client reaches nothing else.

    Raises IllegalAccessPoint.
    """
    parts = [part.partition("?") for part in split_addresses(text)]
    options = {question + option for _, question, option in parts if question}
    if options - {ONE_ADDRESS}:
        raise IllegalAccessPoint(
            f"the endpoint {text!r} has the option {min(options - {ONE_ADDRESS})!r}; the only one is {ONE_ADDRESS}"
        )
    addressed = [target_of(address) for address, _, _ in parts]
    if not addressed:
        raise IllegalAccessPoint(f"the endpoint is empty; give for example {DEFAULT_ENDPOINT}")
    schemes = {one.tls for one in addressed if one.tls is not None}
    if len(schemes) > 1:
        raise IllegalAccessPoint(
            f"the endpoint {text!r} mixes evenqs:// and evenq://; a client speaks to all access points in the same way"
        )
    targets = tuple(dict.fromkeys(one.target for one in addressed))
    return AccessPoints(targets, schemes.pop() if schemes else None, one_address=bool(options))
