"""Sockets to listen on, and the errors if they cannot be bound. Used by both fronts.

Problem: one setting `host` may mean several addresses: a name has IPv4 and IPv6 addresses, and a wildcard means all of
the machine. All must have the same port, also a port that the system chooses. A path of a Unix socket may still exist
after its process ended. And a connection must not be lost when a port is closed.

Idea: `bind` returns bound sockets. Those of ports do not listen yet, so a server accepts connections only when all are
bound.
- A wildcard, also `0.0.0.0`, is one IPv6 socket that accepts IPv4 too. Without IPv6 it is bound like a name.
- A name is bound address by address. The first socket fixes the port for the others. If the system chose the port and
  another process has it at a later address, all sockets are closed and bound again, `TRIES` times in total.
- A Unix socket is unlinked only if it refuses connections: its process has ended. Between its `bind` and `listen` a
  living one refuses them, too. So it listens when `bind` returns, and starts in one folder do this one after another,
  by a lock on the folder.

Invariants:
- Either all sockets of a call are bound, or none stays open.
- All sockets of one call have the same port.
- An error names host, port or path, and what to change.

Example: `bind("localhost", 0)` gets 127.0.0.1 and ::1. The system chooses 40123 for the first address. If another
process listens on [::1]:40123, both are closed and the next attempt may get 40124. `bind("localhost", 8081)` is tried
twice and then raises PortInUse.

Reference: RFC 3493 5.3 (IPV6_V6ONLY); SO_REUSEADDR allows a restart while old connections of the port are in TIME_WAIT.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evenq import errors
from evenq.model.route import WILDCARDS

UNIX = "unix:"  # prefix of a path: a socket of this machine, instead of host and port
UNIX_PATH_MAX = 107  # bytes, of sun_path on Linux less its zero
BACKLOG = 4_096
"""Thousands of clients connect together after a restart; the default of asyncio is 100."""
FOLDER_WAITS = 200
FOLDER_WAIT_S = 0.005
TRIES = 5  # attempts to find a port that is free at all addresses


def resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """Returns the addresses of a host of this machine, as `socket.getaddrinfo`. Raises SettingsError."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError) as error:
        raise errors.SettingsError(
            f"cannot listen on {host!r} port {port}: {error}; give an address of this machine"
        ) from error


def bind(host: str, port: int) -> list[socket.socket]:
    """Returns bound sockets; only a Unix socket listens already. Raises PortInUse, SettingsError."""
    if host.startswith(UNIX):
        return [_bind_unix(host.removeprefix(UNIX))]
    if host in WILDCARDS:
        both = _bind_both(port)
        if both is not None:  # None: no IPv6, so the wildcard is bound like a name
            return [both]
    for _ in range(TRIES - 1):
        with contextlib.suppress(errors.PortInUse):
            return _bind_all(host, port)
        if port:  # a fixed port: one more attempt, whose error is raised
            break
    return _bind_all(host, port)


async def close_listening(servers: Iterable[asyncio.Server]) -> None:
    """Closes the ports, which are free when it returns, a turn of the loop later. Accepted connections stay open.

    asyncio makes a connection one turn after it accepted it. If the server is closed between the two turns, the
    connection is lost without being closed, and its client waits (Python 3.11; uvloop is not affected).
    """
    loop, closed = asyncio.get_running_loop(), list(servers)
    for server in closed:
        for bound in server.sockets:
            with contextlib.suppress(RuntimeError):  # uvloop accepts without a reader
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
            port = port or one.getsockname()[1]  # the port of the first address, for all
    except BaseException:  # one address failed: none stays bound
        for one in bound:
            one.close()
        raise
    return bound


def _bind(one: socket.socket, address: Any, host: str) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if one.family == socket.AF_INET6:  # its IPv4 addresses are sockets of their own
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        one.bind(address)
    except (OSError, OverflowError) as error:
        raise _cannot(error, host, address[1]) from error


def _bind_both(port: int) -> socket.socket | None:
    """Returns one socket for IPv4 and IPv6, as gRPC binds a wildcard; None: this machine has no IPv6."""
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
        # The port is taken, or not allowed, at some address: that is an error with IPv4 alone too.
        if getattr(error, "errno", None) in {errno.EADDRINUSE, errno.EACCES}:
            raise _cannot(error, "::", port) from error
        return None  # IPv6 is switched off
    return one


def _bind_unix(path: str) -> socket.socket:
    size = len(os.fsencode(path))
    if not 0 < size <= UNIX_PATH_MAX:
        raise errors.SettingsError(
            f"the path of {UNIX}{path} has {size} bytes, the range is 1 to {UNIX_PATH_MAX} (a limit of the operating "
            "system); give a shorter path"
        )
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(Path(path).parent):
            if Path(path).is_socket():
                if not _is_left(path):
                    raise errors.PortInUse(
                        f"another process uses the socket {path}; stop it, or give another path. If it has ended, "
                        "remove the file"
                    )
                Path(path).unlink()
            one.bind(path)
            one.listen(BACKLOG)
    except OSError as error:
        one.close()
        in_use = error.errno == errno.EADDRINUSE  # by a file that is not a socket
        reason = "a file that is not a socket has this name" if in_use else error.strerror or str(error)
        raise errors.SettingsError(f"cannot listen on {UNIX}{path}: {reason}; give another path") from error
    except BaseException:
        one.close()
        raise
    return one


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Holds the lock of the folder. A folder that another program keeps locked for longer is used without it."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # `bind` reports the reason
        yield
        return
    try:
        for _ in range(FOLDER_WAITS):
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(FOLDER_WAIT_S)  # noqa: TID251 - another process is about to end its step
        yield
    finally:
        os.close(handle)


def _is_left(path: str) -> bool:
    """Returns whether the process that made the socket has ended. A socket of another user, or of a busy process, is
    not left although nothing answers.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full queue of connections would block
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _cannot(error: Exception, host: str, port: int) -> errors.Error:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return port_in_use(host, port)
    return errors.SettingsError(f"cannot listen on {host}:{port}: {error}; choose another host or port")


def port_in_use(host: str, port: int) -> errors.PortInUse:
    return errors.PortInUse(
        f"port {port} on {host} is in use by another process; stop it, or choose another with --port (0 = any free)"
    )
