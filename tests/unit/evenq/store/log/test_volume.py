"""Sizes that follow from the volume, and which ones cannot work."""

import pytest

from evenq.store.io.disk import Usage
from evenq.store.log import volume
from evenq.store.log.options import StoreOptions

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("total", "segment", "reserve"),
    [
        (64 * MIB, 16 * MIB, 64 * MIB // 20),
        (GIB, 64 * MIB, GIB // 20),
        (GIB - 20 * MIB, 32 * MIB, (GIB - 20 * MIB) // 20),
        (10 * GIB, 512 * MIB, GIB // 2),
        (100 * GIB, GIB, GIB),
        (4096 * GIB, GIB, GIB),
    ],
)
def test_sizes_follow_from_the_volume_unless_they_are_said(total: int, segment: int, reserve: int) -> None:
    usage = Usage(total, total)
    assert volume.segment_bytes(StoreOptions(), usage) == segment
    assert volume.reserve_bytes(StoreOptions(), usage) == reserve
    said = StoreOptions(segment_bytes=1 << 20, disk_free_min_bytes=7)
    assert (volume.segment_bytes(said, usage), volume.reserve_bytes(said, usage)) == (1 << 20, 7)
    assert volume.problem(StoreOptions(), segment, usage) == ""


@pytest.mark.parametrize("options", [StoreOptions(), StoreOptions(disk_free_min_bytes=GIB)])
@pytest.mark.parametrize("size", [MIB, 64 * MIB, GIB])
def test_the_advice_of_a_refusal_works(options: StoreOptions, size: int) -> None:
    text = volume.problem(options, size, Usage(size, size))
    assert "two log files" in text
    needed = int(text.partition("at least ")[2].partition(" MiB")[0])
    assert volume.problem(options, size, Usage(needed * MIB, 0)) == ""
    assert volume.problem(options, size, Usage((needed - 2) * MIB, 0)) != ""
    if "segment_bytes to " in text:
        smaller = int(text.partition("segment_bytes to ")[2].partition(" ")[0])
        assert volume.problem(options, smaller, Usage(size, size)) == ""


def test_messages_are_refused_by_the_limit_that_leaves_more() -> None:
    usage = Usage(1_000 * MIB, 0)
    by_reserve = StoreOptions(disk_used_max_ratio=0.99)
    assert volume.free_min_bytes(by_reserve, usage) == 50 * MIB
    assert volume.free_min_bytes(by_reserve, usage, blocks=False) == pytest.approx(10 * MIB, abs=1)
    assert volume.free_min_bytes(StoreOptions(disk_used_max_ratio=0.8), usage) == pytest.approx(200 * MIB, abs=1)
