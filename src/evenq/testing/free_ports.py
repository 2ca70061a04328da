"""Ports that no other process uses, for test servers that must keep their port over a restart.

Use port 0 where possible. Otherwise this reserves ports below the system's range for outgoing connections. A file lock
per port keeps concurrent test runs on one machine apart. A foreign process may still take a port between the check and
the server's start.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import IO

from evenq.errors import PortInUse
from evenq.runtime.closing import Closing

__all__ = ["FreePorts", "port_is_free"]

_FIRST, _LAST = 20_000, 31_999  # below net.ipv4.ip_local_port_range of Linux, 32768 to 60999


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Returns whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class FreePorts(Closing):
    """Reservations of ports, until `close`."""

    def __init__(self) -> None:
        self._locks: list[IO[str]] = []
        self._folder = Path(tempfile.gettempdir()) / f"evenq-ports-{os.getuid()}"
        self._folder.mkdir(exist_ok=True)
        self._next = _FIRST + os.getpid() * 7 % (_LAST - _FIRST)

    def take(self, count: int = 1) -> int:
        """Returns a loopback port that is free now, and reserves it among users of this class; with `count`, the first
        of that number of adjacent ports. Raises PortInUse if there is none.
        """
        for _ in range(_LAST - _FIRST):
            port = self._next
            self._next = _FIRST + (port + 1 - _FIRST) % (_LAST - _FIRST)
            if self._reserve(range(port, port + count)):
                return port
        raise PortInUse(f"No port from {_FIRST} to {_LAST} is free on 127.0.0.1.")

    def reserve(self, port: int) -> bool:
        """Reserves this port. False: another user of this class has it, or a server."""
        return self._reserve(range(port, port + 1))

    def _reserve(self, ports: range) -> bool:
        locks: list[IO[str]] = []
        for port in ports:
            lock = (self._folder / str(port)).open("w")
            locks.append(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = port_is_free(port)
            except OSError:
                free = False
            if not free:
                for one in locks:
                    one.close()
                return False
        self._locks += locks
        return True

    def close(self) -> None:
        for lock in self._locks:
            lock.close()
        self._locks.clear()
