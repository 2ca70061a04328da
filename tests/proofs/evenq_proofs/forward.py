"""A port that leads to another, as `kubectl port-forward`, a load balancer or a NAT makes it: bytes go on, names and
addresses do not.
"""

from __future__ import annotations

import socket
import threading
from collections import deque


class Forward:
    """One forwarded port; close it when the test ends."""

    def __init__(self, *ports: int) -> None:
        """To `ports` of this machine, with each connection to the next of them that answers."""
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
            for source, target in ((incoming, outgoing), (outgoing, incoming)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

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
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, target):
                one.close()

    def close(self) -> None:
        """Take no new connections."""
        self._listening.close()
