"""How a store fits its volume: the size of a log file and the reserve without a setting, and which sizes cannot work.

Called when a store is opened and whenever it looks at its space; a volume may have grown since. The log goes file by
file, never the newest one, and the next one is set aside while it is written: a volume that has no room for two of them
fills up once and then refuses messages for ever. Pure.
"""

from __future__ import annotations

from typing import Final

from evenq.store.io.disk import Usage
from evenq.store.log.options import StoreOptions

__all__ = ["free_min_bytes", "problem", "reserve_bytes", "segment_bytes"]

SEGMENT_MAX: Final = 1 << 30
SEGMENT_MIN: Final = 16 << 20
"""Room for the largest send, some times over."""
FILES_MIN: Final = 16
"""Log files that a volume should hold, where their size is chosen by it: what is old goes in steps of one."""
RESERVE_MAX: Final = 1 << 30
RESERVE_PART: Final = 20
"""The reserve is the volume's size divided by this."""
MIB: Final = 1 << 20


def segment_bytes(options: StoreOptions, usage: Usage) -> int:
    """Size of the log files of a new folder, bytes: a power of two near 1/16 of the volume, unless it is said."""
    if options.segment_bytes is not None:
        return options.segment_bytes
    return min(SEGMENT_MAX, max(SEGMENT_MIN, _power_of_two(usage.total // FILES_MIN)))


def reserve_bytes(options: StoreOptions, usage: Usage) -> int:
    """Free bytes under which messages are refused: 1/20 of the volume and at most 1 GiB, unless it is said."""
    if options.disk_free_min_bytes is not None:
        return options.disk_free_min_bytes
    return min(RESERVE_MAX, usage.total // RESERVE_PART)


def free_min_bytes(options: StoreOptions, usage: Usage, *, blocks: bool = True) -> int:
    """Free bytes under which messages are refused, by both limits. `blocks` False: the store is in memory, which has no
    reserve.
    """
    by_ratio = int(usage.total * (1 - options.disk_used_max_ratio))
    return max(by_ratio, reserve_bytes(options, usage)) if blocks else by_ratio


def problem(options: StoreOptions, size: int, usage: Usage) -> str:
    """Why log files of `size` bytes cannot work on the volume, with the figures and what to change; empty: they can."""
    reserve = reserve_bytes(options, usage)
    usable = min(int(usage.total * options.disk_used_max_ratio), usage.total - reserve)
    if usable >= 2 * size:
        return ""
    smaller = _power_of_two(max(1, usable // 4))
    advice = [f"give it a volume of at least {_mib(_needed(options, size))} MiB"]
    if smaller >= 1 << 16:
        advice.append(f"set segment_bytes to {smaller} or less")
    if options.disk_free_min_bytes is not None and usage.total - usage.total // RESERVE_PART >= 2 * size:
        advice.append("leave disk_free_min_bytes empty, so that the reserve follows from the volume")
    return (
        f"the volume has {_mib(usage.total)} MiB, of which messages may use {_mib(max(0, usable))} MiB "
        f"(disk_free_min_bytes {reserve}, disk_used_max_ratio {options.disk_used_max_ratio}); two log files of "
        f"{_mib(size)} MiB do not fit, so it would fill up and refuse messages for ever: {', or '.join(advice)}"
    )


def _needed(options: StoreOptions, size: int) -> int:
    by_ratio = 2 * size / options.disk_used_max_ratio
    if options.disk_free_min_bytes is not None:
        return int(max(by_ratio, 2 * size + options.disk_free_min_bytes))
    return int(max(by_ratio, min(2 * size * RESERVE_PART / (RESERVE_PART - 1), 2 * size + RESERVE_MAX)))


def _power_of_two(size: int) -> int:
    return 1 << max(0, size.bit_length() - 1)


def _mib(size: int) -> int:
    return -(-size // MIB)
