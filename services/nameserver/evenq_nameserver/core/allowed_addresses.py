"""From which addresses a nameserver takes what brokers say of themselves.

A registration decides where clients send their messages, so without signatures the caller's address is all there is to
judge by. Parsed once from the setting `register_from`, asked by `rpc.registry` for each call of a broker.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from evenq.errors import BadRequest

__all__ = ["ANY", "LOOPBACK", "AllowedAddresses"]

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
        """Is this caller's address allowed? A caller without an IP address is allowed by `*` only."""
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
        raise BadRequest(f"{text!r} is no address; write 10.0.0.7, a network like 10.0.0.0/8, or {ANY}") from error
