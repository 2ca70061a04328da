"""Ports of a broker beside its two usual ones, and the address that it advertises for each listener.

`parse_listeners` reads the setting `listeners`, `advertised` the setting `advertise`. Pure. Always true: each listener
has exactly one address, and that of the first listener comes first. `any-copy` and `internal`, which need no listener
of their own, come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from evenq.errors import SettingsError
from evenq.model import PLAIN_LISTENER, TLS_LISTENER, BrokerAddress, Listener
from evenq.model.names import broker_problem
from evenq.model.route import WILDCARDS

INTERNAL = "internal"
"""Name of the address that other servers call; it needs no listener of its own."""
ANY_COPY = "any-copy"
"""Name of the address at which any copy of the broker's group answers, for clients that do not look for the leader.
They come through the first listener.
"""
LISTENERS_MAX = 13
"""With the usual listeners, `any-copy` and `internal` this is the limit of nameservers."""
_RESERVED = frozenset({PLAIN_LISTENER.name, TLS_LISTENER.name, ANY_COPY, INTERNAL})


class Spot(NamedTuple):
    """One entry of the setting `listeners`."""

    listener: Listener
    host: str
    port: int


def parse_listeners(text: str) -> list[Spot]:
    """Parses `name=host:port` (plain) or `name+tls=host:port` (TLS), comma-separated. Raises SettingsError."""
    spots: list[Spot] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, target = part.partition("=")
        name, plus, scheme = name.strip().partition("+")
        host, port = _host_and_port(target)
        if not host or port < 0 or scheme != ("tls" if plus else "") or not _is_name(name):
            raise SettingsError(
                f"listeners holds {part!r}; write name=host:port, or name+tls=host:port for TLS; a name has letters, "
                "digits, - and _"
            )
        if name in _RESERVED or name in {spot.listener.name for spot in spots}:
            raise SettingsError(
                f"listeners names {name!r} twice, or by a reserved name ({', '.join(sorted(_RESERVED))}); "
                "choose another name"
            )
        spots.append(Spot(Listener(name, tls=bool(plus)), host, port))
    if len(spots) > LISTENERS_MAX:
        raise SettingsError(f"listeners holds {len(spots)} listeners, the maximum is {LISTENERS_MAX}")
    return spots


def check_shared(names: Iterable[str], spots: Iterable[Spot]) -> None:
    """Raises SettingsError for a name without a listener."""
    known = {PLAIN_LISTENER.name, TLS_LISTENER.name, *(spot.listener.name for spot in spots)}
    for name in names:
        if name not in known:
            raise SettingsError(
                f"shared_listeners names {name!r}, which is not a listener; name one of {', '.join(sorted(known))}"
            )


def advertised(
    text: str,
    ports: Mapping[Listener, int],
    *,
    hosts: Mapping[str, str],
    peers_tls: bool = False,
    broker_name: str = "",
) -> list[BrokerAddress]:
    """Returns the addresses that clients receive, by the listener that they came through.

    `text`: `[broker/][listener=]host:port`, comma-separated; entries of another broker than `broker_name` are left out.
    `ports`: port of each listener, the first one first; `hosts`: the bound hosts, by name. An entry without a name is
    the first listener's; port 0 stands for the bound port. A listener without an entry gets its own port and the host
    of the first one, of `internal`, or the bound one. Raises SettingsError for an entry that is malformed or names no
    listener, so that no client could ever receive it.
    """
    first = next(iter(ports))
    given = _entries(text, first.name, broker_name)
    known = {listener.name for listener in ports} | {ANY_COPY, INTERNAL}
    for name in given:
        if name not in known:
            raise SettingsError(
                f"advertise names the listener {name!r}, through which no call can come; open one with "
                f"`listeners` ({name}=0.0.0.0:PORT), or name one of {', '.join(sorted(known))}"
            )
    usual = given.get(first.name) or given.get(INTERNAL)
    addresses = [_address(listener, port, given.get(listener.name), usual, hosts) for listener, port in ports.items()]
    if ANY_COPY in given:
        host, port = given[ANY_COPY]
        addresses.append(BrokerAddress(ANY_COPY, host, port or addresses[0].port, addresses[0].tls))
    if INTERNAL in given:
        called = _called_by_peers(addresses, peers_tls)
        host, port = given[INTERNAL]
        addresses.append(BrokerAddress(INTERNAL, host, port or called.port, called.tls))
    return addresses


def _called_by_peers(addresses: list[BrokerAddress], peers_tls: bool) -> BrokerAddress:
    return next((address for address in addresses if address.tls == peers_tls), addresses[0])


def _address(
    listener: Listener, port: int, own: tuple[str, int] | None, usual: tuple[str, int] | None, hosts: Mapping[str, str]
) -> BrokerAddress:
    if own is not None:
        return BrokerAddress(listener.name, own[0], own[1] or port, listener.tls)
    bound = hosts[listener.name]
    host = usual[0] if usual is not None else "127.0.0.1" if bound in WILDCARDS else bound
    return BrokerAddress(listener.name, host, port, listener.tls)


def _entries(text: str, first: str, broker_name: str) -> dict[str, tuple[str, int]]:
    entries: dict[str, tuple[str, int]] = {}
    for part in text.split(",") if text.strip() else ():
        broker, slash, entry = part.strip().rpartition("/")
        name, equals, target = entry.rpartition("=")
        host, port = _host_and_port(target)
        if not host or port < 0 or (equals and not name) or (slash and broker_problem(broker)):
            raise SettingsError(
                f"advertise holds {part.strip()!r}; write host:port or listener=host:port, with BROKER/ in front for "
                "one broker alone"
            )
        if slash and broker != broker_name:
            continue
        name = name or first
        if name in entries:
            raise SettingsError(f"advertise names the listener {name!r} twice; give one address for each")
        entries[name] = host, port
    return entries


def _host_and_port(target: str) -> tuple[str, int]:
    """Returns host and port; "" and -1 if they are not valid. An IPv6 host may have brackets."""
    host, _, number = target.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "://" in host or not number.isascii() or not number.isdigit() or not int(number) <= 65_535:
        return "", -1
    return host, int(number)


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 63 and name.isascii() and all(c.isalnum() or c in "-_" for c in name)
