"""Addresses from which brokers may register (setting `register_from`).

A registration decides where clients send their messages. Without signed calls, the caller's address is the only check.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from evenq.errors import BadRequest

ANY, LOOPBACK = "*", "127.0.0.0/8,::1"
NETWORKS_MAX = 100


class AllowedAddresses:
    """Networks, or all addresses."""

    def __init__(self, text: str) -> None:
        """`text`: addresses and networks (CIDR), comma-separated; `*` = any. Raises BadRequest."""
        self.text = text
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts or len(parts) > NETWORKS_MAX:
            raise BadRequest(f"{len(parts)} addresses; give 1 to {NETWORKS_MAX}, comma-separated, or {ANY}")
        self._any = ANY in parts
        self._networks = [_network(part) for part in parts if part != ANY]

    def hold(self, host: str) -> bool:
        """True if this caller's address is allowed; a caller without an IP address is allowed by `*` only."""
        if self._any:
            return True
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise BadRequest(f"{text!r} is not an address; write 10.0.0.7, a network like 10.0.0.0/8, or {ANY}") from error
