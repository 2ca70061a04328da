"""The access points of a client: a text with one or several `host:port`, all with TLS or all without.

It also states whether the client can reach only them. Used by `client.wiring` and the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.errors import IllegalAccessPoint
from evenq.wire.addresses import PLAIN, TLS, split_addresses, target_of

DEFAULT_ENDPOINT = "127.0.0.1:8081"
ENDPOINT_VARIABLE = "EVENQ_ENDPOINT"
ONE_ADDRESS = "?one-address"


@dataclass(frozen=True, slots=True)
class AccessPoints:
    """One or several access points."""

    targets: tuple[str, ...]
    """`host:port`, in the order in which they are tried."""
    tls: bool | None
    """By their scheme; None: they have none."""
    one_address: bool = False
    """True: no other address can be reached, so each call is sent there and names its broker."""

    @property
    def endpoint(self) -> str:
        """The targets as one text."""
        return ";".join(self.targets) + (ONE_ADDRESS if self.one_address else "")

    @property
    def addresses(self) -> list[str]:
        """The targets as a `Net` takes them, with their scheme."""
        scheme = "" if self.tls is None else TLS if self.tls else PLAIN
        return [scheme + target for target in self.targets]


def access_points(text: str) -> AccessPoints:
    """Parses `a:8081;b:8081` or `a:8081,b:8081`. Raises IllegalAccessPoint.

    `evenqs://` before one of them means TLS for all, `evenq://` plain text. `?one-address` after one of them means that
    no other address can be reached.
    """
    parts = [part.partition("?") for part in split_addresses(text)]
    options = {question + option for _, question, option in parts if question}
    if options - {ONE_ADDRESS}:
        raise IllegalAccessPoint(
            f"the endpoint {text!r} has the option {min(options - {ONE_ADDRESS})!r}; the only one is {ONE_ADDRESS}"
        )
    addressed = [target_of(address) for address, _, _ in parts]
    if not addressed:
        raise IllegalAccessPoint(f"the endpoint is empty; give {DEFAULT_ENDPOINT}, for example")
    schemes = {one.tls for one in addressed if one.tls is not None}
    if len(schemes) > 1:
        raise IllegalAccessPoint(
            f"the endpoint {text!r} mixes evenqs:// and evenq://; give the same scheme for all access points"
        )
    targets = tuple(dict.fromkeys(one.target for one in addressed))
    return AccessPoints(targets, schemes.pop() if schemes else None, one_address=bool(options))
