"""Options out of bounds are refused with the bound."""

from __future__ import annotations

from dataclasses import fields

import pytest

from evenq.store import StoreOptions


@pytest.mark.parametrize(
    ("name", "value"),
    [("segment_bytes", 4095), ("segment_bytes", 1 << 32), ("flush_bytes", 0), ("read_threads", 0), ("disk_used_max_ratio", 0.0),
     ("disk_used_max_ratio", 1.1), ("append_queue_max", -1)],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} {value} is"):
        StoreOptions(**{name: value})


def test_a_refusal_says_the_bound_the_usual_value_and_what_the_option_means():
    with pytest.raises(ValueError, match=r"retention_ms -1 is under 0; 259200000 is usual: How long .*; 0 = for ever"):
        StoreOptions(retention_ms=-1)


def test_every_option_says_what_it_means_and_its_default_is_inside_its_bounds():
    StoreOptions()
    for one in fields(StoreOptions):
        assert str(one.metadata["description"]).endswith("."), one.name
