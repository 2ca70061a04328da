"""Number of file descriptors in use: each connection needs one, and gRPC has no own limit for them.

Runs in every server (`evenq.serving.program.run`). The limit of a process bounds its connections: at the limit gRPC
accepts none and tries again each second, and the system queues or refuses the others. So a warning is logged before,
once, and a line when it has passed. The figures are also the metrics `process_open_fds` and `process_max_fds`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from pathlib import Path

from evenq.runtime.clock import Clock

log = logging.getLogger(__name__)

LOOK_MS = 5_000
MANY = 0.9
FEWER = 0.8
FOLDER = Path("/proc/self/fd")  # linux only; elsewhere descriptors are not counted


def open_files() -> tuple[int, int]:
    """Returns the descriptors in use and the limit; (0, limit) where they cannot be counted."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return len(os.listdir(FOLDER)), limit
    except OSError as error:
        return (limit if error.errno == errno.EMFILE else 0), limit


async def watch_open_files(clock: Clock) -> None:
    """Logs when few are left, and when there are enough again. Never ends."""
    scarce = False
    while True:
        await clock.sleep_ms(LOOK_MS)
        used, limit = await asyncio.to_thread(open_files)
        if not scarce and used >= MANY * limit:
            scarce = True
            log.warning(
                "%d of %d file descriptors are in use, each connection takes one: at the limit no clients can connect "
                "any more; raise it (ulimit -n, LimitNOFILE) or spread the clients",
                used,
                limit,
            )
        elif scarce and used < FEWER * limit:
            scarce = False
            log.info("%d of %d file descriptors are in use: enough again", used, limit)
