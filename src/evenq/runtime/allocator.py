"""How much freed memory the C library keeps for the next request.

Called once by processes that make and free blocks of a megabyte all the time: servers, and Spark's workers. By default
glibc gives such a block back to the system as soon as it is free, and for the next one the system clears every page
anew: seen with scans, 0.5 us for each KiB, more than all else that a broker does with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

__all__ = ["KEPT_BYTES", "keep_freed_memory"]

KEPT_BYTES = 32 << 20
"""What an arena may keep at its end unused."""
MAPPED_BYTES = 8 << 20
"""From this size on a request has pages of its own, which go back at once."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


_done = False


def keep_freed_memory() -> None:
    """For this process and its children from now on; does nothing where the C library cannot, or the environment says
    something else. Costs nothing when called again.
    """
    global _done  # noqa: PLW0603  once per process
    if _done or any(name in os.environ for name in _SETTINGS):
        return
    _done = True
    with contextlib.suppress(OSError, AttributeError):  # another C library, or another allocator before it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
