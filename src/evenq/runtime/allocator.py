"""The amount of freed memory that the C library keeps for later allocations.

For processes that allocate and free blocks of a megabyte continuously: servers and Spark's workers. By default glibc
returns such a block to the system immediately, and the system clears every page of the next one. Measured with scans:
0.5 us for each KiB, more than all other work of a broker on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

KEPT_BYTES = 32 << 20
"""Unused memory that an arena may keep at its end."""
MAPPED_BYTES = 8 << 20
"""Size from which an allocation has its own pages, which are returned to the system immediately."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


_done = False


def keep_freed_memory() -> None:
    """Applies to this process and its children. Does nothing with limits in the environment, or without glibc."""
    global _done  # noqa: PLW0603  once per process
    if _done or any(name in os.environ for name in _SETTINGS):
        return
    _done = True
    with contextlib.suppress(OSError, AttributeError):  # another C library, or another allocator in front of it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def use_one_arena() -> None:
    """Lets all threads of this process allocate from one arena: what one thread freed serves the others.

    For programs whose threads take turns with large blocks, such as an export: each arena may keep its own. Does
    nothing with a limit in the environment, or without glibc.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "GLIBC_TUNABLES" in os.environ:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
