"""Libraries out of the garbage collector's way, in Spark's workers.

After each task a worker runs a full collection. Over what pyarrow, grpc, numpy and protobuf bring with them that costs
some ms of CPU, each time for nothing: as much as all else that a task with one row does. Called by readers and writers
when a task's rows are through, for only then is loaded what it needs.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

__all__ = ["freeze_libraries"]

_NOTHING: Final = (0, 0)
_frozen = _NOTHING
"""The process in which that was done, and how many modules it had."""


def freeze_libraries() -> None:
    """Leave out of later collections what is there now. Does nothing if no module was loaded since the last time."""
    global _frozen  # noqa: PLW0603  of the process
    now = os.getpid(), len(sys.modules)
    if _frozen != now:
        gc.collect()
        gc.freeze()
        _frozen = now
