"""Time fields: milliseconds survive, signs follow protobuf's rules, presence is what the docstrings say."""

import pytest
from google.protobuf import duration_pb2, timestamp_pb2

from evenq.wire.convert import duration_ms_of, ms_of, set_duration_ms, set_ms
from evenq.wire.stubs import pool
from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import CustomizedBackoff, SystemProperties

TIMES_MS = [0, 1, 999, 1000, 1_700_000_000_123, -1, -1000, -1501]


@pytest.mark.parametrize("ms", TIMES_MS)
def test_timestamp_keeps_ms(ms: int) -> None:
    properties = SystemProperties()
    set_ms(properties.store_timestamp, ms)
    assert ms_of(properties.store_timestamp) == ms
    assert 0 <= properties.store_timestamp.nanos < 1_000_000_000
    assert properties.store_timestamp.SerializeToString() == _official_timestamp(ms)


@pytest.mark.parametrize("ms", TIMES_MS)
def test_duration_keeps_ms(ms: int) -> None:
    properties = SystemProperties()
    set_duration_ms(properties.invisible_duration, ms)
    assert duration_ms_of(properties.invisible_duration) == ms
    assert properties.invisible_duration.SerializeToString() == _official_duration(ms)


def test_zero_is_present_and_reading_is_not() -> None:
    properties = SystemProperties()
    assert ms_of(properties.store_timestamp) == 0
    assert not properties.HasField("store_timestamp")
    set_ms(properties.store_timestamp, 0)
    assert properties.HasField("store_timestamp")
    set_duration_ms(properties.invisible_duration, 0)
    assert properties.HasField("invisible_duration")


def test_finer_than_ms_is_cut() -> None:
    assert ms_of(pool.Timestamp(seconds=1, nanos=1_999_999)) == 1001
    assert duration_ms_of(pool.Duration(nanos=1_999_999)) == 1
    assert duration_ms_of(pool.Duration(nanos=-1_999_999)) == -1


def test_repeated_durations_are_filled_in_place() -> None:
    backoff = CustomizedBackoff()
    for ms in (1000, 5000):
        set_duration_ms(backoff.next.add(), ms)
    assert [duration_ms_of(wait) for wait in backoff.next] == [1000, 5000]


def test_times_of_the_default_pool_are_read_but_not_taken() -> None:
    official = timestamp_pb2.Timestamp(seconds=7)
    assert ms_of(official) == 7000
    # The error is a TypeError or an AttributeError, depending on the runtime.
    with pytest.raises((TypeError, AttributeError)):
        SystemProperties(born_timestamp=official)  # type: ignore[arg-type]


def _official_timestamp(ms: int) -> bytes:
    timestamp = timestamp_pb2.Timestamp()
    timestamp.FromMilliseconds(ms)
    return timestamp.SerializeToString()


def _official_duration(ms: int) -> bytes:
    duration = duration_pb2.Duration()
    duration.FromMilliseconds(ms)
    return duration.SerializeToString()
