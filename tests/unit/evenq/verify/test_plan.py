"""What may be asked of a verification."""

from __future__ import annotations

import pytest

from evenq.errors import BadRequest
from evenq.verify.plan import Kind, Plan


def test_all_kinds_unless_told():
    assert Plan(endpoint="a:1").kinds == tuple(Kind)


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": 0}, {"rate": 10_001}, {"body_bytes": 8}, {"kinds": ()}, {"delay_min_ms": 9_000}, {"seconds": 604_800}],
)
def test_a_plan_that_cannot_be_is_refused_with_its_limit(wrong):
    with pytest.raises(BadRequest, match=r"range|chosen|above|the limit is 10,000,000"):
        Plan(endpoint="a:1", **wrong)
