"""Conversion between integers of milliseconds, used everywhere else, and protobuf's time fields.

Our messages live in a private descriptor pool (`stubs/pool.py`), so a `Timestamp` or `Duration` from `google.protobuf`
cannot be put into them. Instead the field is filled in place; protobuf creates it on first access:

    set_ms(message.system_properties.born_timestamp, now_ms)
    ms_of(message.system_properties.born_timestamp)

Reading does not make a field present, and an absent one reads as 0: check `HasField` where that matters. The parameters
are protocols, so the classes of protobuf's default pool work too.
"""

from typing import Protocol

from evenq.errors import BadRequest

NANOS_PER_MS = 1_000_000
NANOS_MAX = 999_999_999
SECONDS_MIN, SECONDS_MAX = -62_135_596_800, 253_402_300_799  # google.protobuf.Timestamp: years 1 to 9999


class SecondsAndNanos(Protocol):
    """A readable `Timestamp` or `Duration` of any pool."""

    @property
    def seconds(self) -> int: ...
    @property
    def nanos(self) -> int: ...


class TimeField(Protocol):
    """A field of type `Timestamp` or `Duration` that is filled in place."""

    seconds: int
    nanos: int

    def SetInParent(self) -> None: ...  # noqa: N802  protobuf's name


def set_ms(timestamp: TimeField, ms: int) -> None:
    """Sets a Timestamp field to `ms` since the epoch. The field is present afterwards, also for 0."""
    seconds, rest = divmod(ms, 1000)  # a Timestamp requires that the rest is not negative
    _fill(timestamp, seconds, rest)


def ms_of(timestamp: SecondsAndNanos) -> int:
    """Returns milliseconds since the epoch, rounded down. 0 if the field is absent."""
    return timestamp.seconds * 1000 + timestamp.nanos // NANOS_PER_MS


def requested_ms_of(timestamp: SecondsAndNanos, name: str, error: type[BadRequest] = BadRequest) -> int:
    """Returns `ms_of` for the field `name` of a caller. Raises `error` for a time that is not valid in protobuf:
    Java and Spark fail wherever they read it.
    """
    seconds, nanos = timestamp.seconds, timestamp.nanos
    if not (0 <= nanos <= NANOS_MAX and SECONDS_MIN <= seconds <= SECONDS_MAX):
        raise error(
            f"{name} has {seconds} seconds and {nanos} nanoseconds, which is not a valid time; the seconds must be "
            f"within the years 1 to 9999 and the nanoseconds from 0 to {NANOS_MAX}"
        )
    return seconds * 1000 + nanos // NANOS_PER_MS


def set_duration_ms(duration: TimeField, ms: int) -> None:
    """Sets a Duration field to `ms`. The field is present afterwards, also for 0."""
    seconds, rest = divmod(abs(ms), 1000)
    sign = -1 if ms < 0 else 1  # both parts of a Duration have the same sign
    _fill(duration, sign * seconds, sign * rest)


def duration_ms_of(duration: SecondsAndNanos) -> int:
    """Returns milliseconds, rounded towards zero. 0 if the field is absent."""
    nanos = duration.seconds * 1_000_000_000 + duration.nanos
    return nanos // NANOS_PER_MS if nanos >= 0 else -(-nanos // NANOS_PER_MS)


def _fill(field: TimeField, seconds: int, ms: int) -> None:
    field.seconds = seconds
    field.nanos = ms * NANOS_PER_MS
    field.SetInParent()
