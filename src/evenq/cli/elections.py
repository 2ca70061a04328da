"""Commands that were given several access points wait while none of them is served: copies of a broker that has just
died elect another leader within seconds, and a script should not fail for that.
"""

from __future__ import annotations

import socket
import threading

from evenq.cli.output import complain
from evenq.client.core.routes.access_points import access_points
from evenq.runtime.clock import SystemClock
from evenq.wire.addresses import host_and_port

__all__ = ["ELECTION_S", "await_election"]

ELECTION_S = 10.0
"""An election takes about 3 s, and the new leader opens its port when its log is read."""
LOOK_S = 0.2
CONNECT_S = 2.0


def await_election(endpoint: str, *, within_s: float = ELECTION_S) -> None:
    """Return when one of the access points takes connections, or after `within_s`; at once if there is only one. What
    is wrong then, the command's first call tells. Raises IllegalAccessPoint.
    """
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
