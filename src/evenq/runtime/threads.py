"""How a loop without a rest lets the threads beside it run.

A loop that has work at once again gives the interpreter away for the microseconds of a look at its sockets, and takes
it back before a thread that waits has woken: the system wakes threads more slowly than that. Each such look also begins
the thread's wait for `sys.getswitchinterval` anew, so it may wait for tens of turns.
"""

from __future__ import annotations

import time

__all__ = ["let_threads_run"]

REST_S = 20e-6
"""With what the system adds, 70 microseconds."""


def let_threads_run() -> None:
    """Rest long enough that a thread which waits for the interpreter gets it. Blocks the loop: for loops under a crowd
    only, once in some milliseconds.
    """
    time.sleep(REST_S)
