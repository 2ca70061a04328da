"""Knobs have bounds."""

import pytest

from evenq.client.options import ProducerOptions, PullOptions, PushOptions, SimpleOptions
from evenq.errors import BadRequest


def test_a_value_outside_its_bounds_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match=r"ProducerOptions\.linger_ms is 5000, the range is 0 to 1000"):
        ProducerOptions(linger_ms=5_000)
    with pytest.raises(BadRequest, match="pull_batch"):
        PushOptions(pull_batch=0)
    with pytest.raises(BadRequest, match="slice_ms"):
        SimpleOptions(slice_ms=0)
    with pytest.raises(BadRequest, match="'broker' or 'local'"):
        PushOptions(retry="never")
    with pytest.raises(BadRequest, match=r"PushOptions\.zone is .*; give at most 255 printable"):
        PullOptions(zone="a\tb")
    with pytest.raises(BadRequest, match=r"PushOptions\.capacity is 0, it must be above 0"):
        PushOptions(capacity=0)


def test_what_push_and_pull_consumers_share_has_the_same_bounds_and_defaults() -> None:
    with pytest.raises(BadRequest, match="drain_ms"):
        PullOptions(drain_ms=-1)
    assert PullOptions(pull_batch=7).engine() == PushOptions(pull_batch=7)
