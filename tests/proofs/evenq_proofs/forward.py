"""A port that leads to another, as `kubectl port-forward`, a load balancer or a NAT makes it: bytes go on, names and
addresses do not.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


class Forward:
    """One forwarded port; close it when the test ends."""

    def __init__(self, *ports: int, late_s: float = 0) -> None:
        """To `ports` of this machine, with each connection to the next of them that answers. `late_s`: how long the
        bytes of the server take, as over a distant link.
        """
        self._late_s = late_s
        self._targets = deque(ports)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        """Where clients come."""
        self.connections = 0
        """That came so far."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                incoming, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            outgoing = self._connected()
            if outgoing is None:
                incoming.close()
                continue
            for source, target, late_s in ((incoming, outgoing, 0.0), (outgoing, incoming, self._late_s)):
                threading.Thread(target=self._copy, args=(source, target, late_s), daemon=True).start()

    def lead_to(self, *ports: int) -> None:
        """New connections go to these from now on."""
        self._targets = deque(ports)

    def _connected(self) -> socket.socket | None:
        targets = self._targets
        for _ in range(len(targets)):
            targets.rotate(-1)
            try:
                return socket.create_connection(("127.0.0.1", targets[-1]))
            except OSError:
                continue
        return None

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, late_s: float) -> None:
        try:
            while data := source.recv(65_536):
                time.sleep(late_s)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, target):
                one.close()

    def close(self) -> None:
        """Take no new connections."""
        self._listening.close()


class SilentPort:
    """A port of Linux that answers no SYN, as a machine that vanished or a link that loses packets."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.port: int = listening.getsockname()[1]

    def dropped(self) -> bool:
        """True while a client waits for the answer to its SYN."""
        sent, remote = "02", f":{self.port:04X}"
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(line[2].endswith(remote) and line[3] == sent for line in lines)

    def answer(self) -> socket.socket:
        """Accepts from now on: the next SYN is answered. Returns the first connection of a client."""
        while True:
            accepted, _ = self._listening.accept()
            if accepted.recv(1, socket.MSG_PEEK) != FILLER:
                return accepted
            accepted.close()


FILLER = b"."


@contextmanager
def silent_port() -> Iterator[SilentPort]:
    """The kernel takes one connection more than the backlog; then it drops each SYN."""
    with socket.socket() as listening, ExitStack() as stack:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        silent = SilentPort(listening)
        filler = stack.enter_context(socket.create_connection(listening.getsockname()))
        filler.sendall(FILLER)
        yield silent
