"""Who is left alone, for how long, and how much still goes there."""

import pytest

from evenq.client.core.sending.faults import AVOID_MS, KEPT_SHARE, LATENCY_MS, FaultTable


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"), [(0, 0), (549, 0), (550, 30_000), (1_500, 60_000), (99_999, 600_000)]
)
def test_a_slow_answer_means_a_pause_by_its_latency(latency_ms: int, pause_ms: int) -> None:
    faults = FaultTable()
    faults.answered("a", latency_ms, 1_000)
    assert faults.avoided("a", 1_000 + pause_ms - 1) is (pause_ms > 0)
    assert not faults.avoided("a", 1_000 + pause_ms)


def test_the_table_is_the_classic_one() -> None:
    assert list(zip(LATENCY_MS, AVOID_MS, strict=True)) == [
        (50, 0), (100, 0), (550, 30_000), (1_000, 60_000), (2_000, 120_000), (3_000, 180_000), (15_000, 600_000),
    ]  # fmt: skip


def test_failures_in_a_row_mean_growing_pauses_and_a_quick_answer_ends_them() -> None:
    faults = FaultTable()
    pauses = []
    for _ in range(8):
        faults.failed("a", 0)
        pauses.append(next(ms for ms in (0, *sorted(set(AVOID_MS))) if not faults.avoided("a", ms)))
    assert pauses == [0, 30_000, 60_000, 120_000, 180_000, 600_000, 600_000, 600_000]
    faults.answered("a", 10, 0)
    assert not faults.avoided("a", 0)


def test_an_avoided_broker_keeps_its_share() -> None:
    faults = FaultTable()
    faults.answered("a", 1_000, 0)
    assert sum(faults.admits("a", 1) for _ in range(KEPT_SHARE * 20)) == 20
    assert all(faults.admits("b", 1) for _ in range(20))


def test_when_all_are_avoided_the_one_whose_pause_ends_first_is_taken() -> None:
    faults = FaultTable()
    faults.answered("a", 3_000, 0)
    faults.answered("b", 600, 0)
    assert faults.soonest(["a", "b"]) == "b"
    assert faults.soonest(["a", "c"]) == "c"
