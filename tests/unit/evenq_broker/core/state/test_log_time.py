"""Deadlines by the log's time."""

from __future__ import annotations

import pytest
from evenq_broker.core.state.log_time import in_log_time
from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible, Op

DELIVERED = Delivered(1, 2, 3, 9, 50_000, "", (7, 8), (1, 1), (1, 2))
INVISIBLE = Invisible(1, 2, 3, 7, 4, 2, 50_000)


@pytest.mark.parametrize("op", [DELIVERED, INVISIBLE])
def test_a_deadline_is_what_is_left_from_the_logs_time_on(op: Delivered | Invisible) -> None:
    for ahead_ms, deadline_ms in ((0, 50_000), (20_000, 30_000), (-20_000, 70_000), (90_000, 1)):
        shifted = in_log_time(op, ahead_ms)
        assert isinstance(shifted, Delivered | Invisible)
        assert shifted.deadline_ms == deadline_ms
        assert type(op)(**{name: getattr(shifted, name) for name in op.__slots__} | {"deadline_ms": 50_000}) == op


@pytest.mark.parametrize(
    "op", [Acked(1, 2, 3, 4), Committed(1, 2, 3, 4), Delivered(1, 2, 3, 9, 0, "client", (7,), (1,), (1,))]
)
def test_what_has_no_deadline_stays(op: Op) -> None:
    assert in_log_time(op, 20_000) is op
