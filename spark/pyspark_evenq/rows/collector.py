"""Exclusion of imported libraries from garbage collection, in Spark's workers.

After each task a worker runs a full collection. The objects of pyarrow, grpc, numpy and protobuf make it cost some ms
of CPU, as much as the rest of a task with one row. Called by readers and writers after a task's rows, when all of its
libraries are loaded.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_NOTHING: Final = (0, 0)
_frozen = _NOTHING
"""Process and number of modules at the last call."""


def freeze_libraries() -> None:
    """Excludes all present objects from later collections. Does nothing if no module was loaded since the last call."""
    global _frozen  # noqa: PLW0603  of the process
    now = os.getpid(), len(sys.modules)
    if _frozen != now:
        gc.collect()
        gc.freeze()
        _frozen = now
