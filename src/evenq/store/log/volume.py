"""How a store fits its volume: the default sizes of log files and reserve, and which sizes cannot work. Pure.

Used when a store is opened and whenever its space is checked; a volume may have grown since. The log is deleted file by
file, never the newest one, and the next one is reserved while that is written: a volume without space for two of them
fills up once and then refuses messages for ever.
"""

from __future__ import annotations

from typing import Final

from evenq.store.io.disk import Usage
from evenq.store.log.options import StoreOptions

SEGMENT_MAX: Final = 1 << 30
SEGMENT_MIN: Final = 16 << 20
"""Several times the size of the largest send."""
FILES_MIN: Final = 16
"""Log files that a volume should hold by default: old messages are deleted in steps of one."""
RESERVE_MAX: Final = 1 << 30
RESERVE_PART: Final = 20
"""The reserve is the volume's size divided by this."""
MIB: Final = 1 << 20


def segment_bytes(options: StoreOptions, usage: Usage) -> int:
    """Returns the size of a new folder's log files, bytes: a power of two near 1/16 of the volume, unless it is set."""
    if options.segment_bytes is not None:
        return options.segment_bytes
    return min(SEGMENT_MAX, max(SEGMENT_MIN, _power_of_two(usage.total // FILES_MIN)))


def reserve_bytes(options: StoreOptions, usage: Usage) -> int:
    """Returns the free bytes under which messages are refused: 1/20 of the volume, at most 1 GiB, unless it is set."""
    if options.disk_free_min_bytes is not None:
        return options.disk_free_min_bytes
    return min(RESERVE_MAX, usage.total // RESERVE_PART)


def free_min_bytes(options: StoreOptions, usage: Usage, *, blocks: bool = True) -> int:
    """Returns the free bytes under which messages are refused, by both limits; memory (not `blocks`) has no reserve."""
    by_ratio = int(usage.total * (1 - options.disk_used_max_ratio))
    return max(by_ratio, reserve_bytes(options, usage)) if blocks else by_ratio


def problem(options: StoreOptions, size: int, usage: Usage) -> str:
    """Returns why log files of `size` bytes cannot work on the volume, with figures and advice; empty if they can."""
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
