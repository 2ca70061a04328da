"""Waiting for an election: with several access points, a command waits while none of them answers.

The copies of a broker that has just died elect another leader within seconds; a script should not fail meanwhile.
"""

from __future__ import annotations

import socket
import threading

from evenq.cli.output import complain
from evenq.client.core.routes.access_points import access_points
from evenq.runtime.clock import SystemClock
from evenq.wire.addresses import host_and_port

ELECTION_S = 10.0
"""An election takes about 3 s; the new leader reads its log before it opens its port."""
LOOK_S = 0.2
CONNECT_S = 2.0


def await_election(endpoint: str, *, within_s: float = ELECTION_S) -> None:
    """Waits until one of several access points accepts connections, at most `within_s`. Raises IllegalAccessPoint."""
    targets = [host_and_port(target) for target in access_points(endpoint).targets]
    if len(targets) < 2:
        return
    clock, pause, said = SystemClock(), threading.Event(), False
    until_ms = clock.monotonic_ms() + int(within_s * 1000)
    while not any(map(_listens, targets)) and clock.monotonic_ms() < until_ms:
        if not said:
            said = True
            complain(
                f"evenq: no broker answers at {endpoint} yet; waiting up to {within_s:.0f} s for another copy to lead"
            )
        pause.wait(LOOK_S)


def _listens(target: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(target, timeout=CONNECT_S):
            return True
    except OSError:
        return False
