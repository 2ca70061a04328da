"""Options out of bounds are refused with the bound."""

from __future__ import annotations

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
