"""Knobs have bounds."""

import pytest

from evenq.client.options import ProducerOptions, PushOptions, SimpleOptions
from evenq.errors import BadRequest


def test_a_value_outside_its_bounds_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match=r"ProducerOptions\.linger_ms is 5000, the range is 0 to 1000"):
        ProducerOptions(linger_ms=5_000)
    with pytest.raises(BadRequest, match="pull_batch"):
        PushOptions(pull_batch=0)
    with pytest.raises(BadRequest, match="slice_ms"):
        SimpleOptions(slice_ms=0)
