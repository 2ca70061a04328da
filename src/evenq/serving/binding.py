"""Sockets to listen on, and the sentences for those that cannot be had. Used by both fronts.

A name or a wildcard may stand for several addresses; all get one port. Always true: either all are bound, or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from evenq import errors

__all__ = ["UNIX", "bind", "close_listening", "port_in_use", "resolve"]

UNIX = "unix:"
"""In front of a path: a socket of this machine, instead of host and port."""
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # nosec B104 - only compared with
TRIES = 5


def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """The addresses of a host of this machine, as `socket.getaddrinfo` gives them. Raises SettingsError."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError) as error:
        raise errors.SettingsError(
            f"cannot listen on {host!r} port {port}: {error}; give an address of this machine"
        ) from error


def bind(host: str, port: int) -> list[socket.socket]:
    """Bound, not listening yet. Raises PortInUse, SettingsError."""
    if host.startswith(UNIX):
        return [_bind_unix(host.removeprefix(UNIX))]
    if host in WILDCARDS:
        both = _bind_both(port)
        if both is not None:
            return [both]
    for _ in range(TRIES - 1):
        with contextlib.suppress(errors.PortInUse):
            return _bind_all(host, port)
        if port:
            break
    return _bind_all(host, port)  # port 0: another one may be free for all addresses


async def close_listening(servers: Iterable[asyncio.Server]) -> None:
    """Close the ports; they are free when it returns, a turn of the loop later. Connections that came before are open.

    asyncio makes a connection in the turn after the one in which it accepts it. If the server is closed between the
    two, the connection is lost without being closed, and its client waits (Python 3.11; uvloop is not affected).
    """
    loop, closed = asyncio.get_running_loop(), list(servers)
    for server in closed:
        for bound in server.sockets:
            with contextlib.suppress(RuntimeError):  # uvloop accepts by itself
                loop.remove_reader(bound.fileno())
    turn = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn
    for server in closed:
        server.close()


def _bind_all(host: str, port: int) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in resolve(host, port):
            one = socket.socket(family, kind, protocol)
            bound.append(one)
            _bind(one, (address[0], port, *address[2:]), host)
            port = port or one.getsockname()[1]
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound


def _bind(one: socket.socket, address: Any, host: str) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if one.family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        one.bind(address)
    except (OSError, OverflowError) as error:
        raise _cannot(error, host, address[1]) from error


def _bind_both(port: int) -> socket.socket | None:
    """One socket for IPv4 and IPv6, as gRPC binds a wildcard; None: this machine has no IPv6."""
    try:
        one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        one.bind(("::", port))
    except (OSError, OverflowError) as error:
        one.close()
        if getattr(error, "errno", None) in {errno.EADDRINUSE, errno.EACCES}:
            raise _cannot(error, "::", port) from error
        return None
    return one


def _bind_unix(path: str) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).is_socket() and not _answers(path):
            Path(path).unlink()  # left by a process that is gone
        one.bind(path)
    except OSError as error:
        one.close()
        raise errors.SettingsError(f"cannot listen on {UNIX}{path}: {error}; give another path") from error
    return one


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _cannot(error: Exception, host: str, port: int) -> errors.Error:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return port_in_use(host, port)
    return errors.SettingsError(f"cannot listen on {host}:{port}: {error}; choose another host or port")


def port_in_use(host: str, port: int) -> errors.PortInUse:
    """The sentence for it."""
    return errors.PortInUse(
        f"port {port} on {host} is in use by another process; stop it, or choose another with --port (0 = any free)"
    )
