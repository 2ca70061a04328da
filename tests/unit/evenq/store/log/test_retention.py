"""Which files of the log may go: time, hour, topics, the disk's marks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenq.store.log.retention import RetentionFacts, RetentionHold, SegmentFact, plan

HOUR = 3_600_000
NOW = 100 * 24 * HOUR + 4 * HOUR  # 04:00 UTC
SIZE = 100
FACTS = RetentionFacts(
    now_ms=NOW, retention_ms=72 * HOUR, retention_hour=4, clean_ratio=0.75, force_ratio=0.85, used_ratio=0.5,
    disk_bytes=10_000, segment_bytes=SIZE,
    segments=[SegmentFact(number * SIZE, NOW - (80 - 5 * number) * HOUR) for number in range(5)],
)  # fmt: skip


def begin(**changes):
    found = plan(replace(FACTS, **changes))
    return found.log_start if found is not None else 0


def test_files_go_that_are_older_than_the_retention_at_the_hour():
    assert begin() == 2 * SIZE  # 80 h and 75 h old; 70 h stays
    assert len(plan(FACTS).reasons) == 2
    assert "288000000 ms old, 259200000 ms are kept" in plan(FACTS).reasons[0]


def test_nothing_goes_at_another_hour_unless_any_hour_will_do_or_the_disk_fills():
    later = NOW + 2 * HOUR
    assert begin(now_ms=later) == 0
    assert begin(now_ms=later, retention_hour=-1) == 2 * SIZE
    assert begin(now_ms=later, used_ratio=0.75) == 2 * SIZE


def test_what_no_queue_keeps_goes_at_any_hour_and_from_a_store_that_keeps_for_ever():
    later = NOW + 2 * HOUR
    assert begin(now_ms=later, unneeded_before=2 * SIZE - 1) == SIZE
    assert begin(now_ms=later, unneeded_before=2 * SIZE) == 2 * SIZE
    assert begin(retention_ms=0, unneeded_before=3 * SIZE) == 3 * SIZE
    assert begin(retention_ms=0, unneeded_before=100 * SIZE) == 4 * SIZE, "never the newest"
    assert begin(retention_ms=0, unneeded_before=3 * SIZE, keep_from=150) == SIZE
    assert begin(unneeded_before=SIZE) == 2 * SIZE, "the others go by time"
    assert plan(replace(FACTS, unneeded_before=SIZE)).reasons[0] == "no queue keeps anything in it any more"


def test_the_newest_file_never_goes():
    old = [SegmentFact(number * SIZE, 0) for number in range(3)]
    assert begin(segments=old) == 2 * SIZE
    assert begin(segments=old[:1]) == 0
    assert begin(segments=old, used_ratio=1.0) == 2 * SIZE
    assert begin(segments=[]) == 0


@pytest.mark.parametrize(("used", "files"), [(0.8499, 0), (0.85, 1), (0.8599, 1), (0.8701, 3), (0.99, 4)])
def test_over_the_upper_mark_so_many_go_as_bring_it_down_whatever_their_age(used, files):
    young = [SegmentFact(number * SIZE, NOW) for number in range(5)]
    assert begin(segments=young, used_ratio=used) == files * SIZE
    if files:
        assert (
            "from 85.0% on files are deleted at any age"
            in plan(replace(FACTS, segments=young, used_ratio=used)).reasons[0]
        )


def test_a_topic_that_keeps_longer_holds_the_files_with_its_messages():
    assert begin(holds=[RetentionHold(150, 76 * HOUR)]) == SIZE
    assert begin(holds=[RetentionHold(150, 74 * HOUR)]) == 2 * SIZE
    assert begin(holds=[RetentionHold(200, 76 * HOUR)]) == 2 * SIZE
    assert begin(holds=[RetentionHold(0, 0)]) == 0


def test_for_ever_is_for_ever_even_on_a_full_disk():
    assert begin(retention_ms=0) == 0
    assert begin(retention_ms=0, used_ratio=1.0) == 0
    assert begin(holds=[RetentionHold(150, 0)], used_ratio=1.0) == SIZE
    assert begin(holds=[RetentionHold(150, 99 * HOUR)], used_ratio=1.0) == 4 * SIZE


def test_what_the_newest_snapshot_needs_stays_if_no_other_can_be_taken():
    assert begin(keep_from=199) == SIZE
    assert begin(keep_from=0) == 0
    assert begin(keep_from=0, used_ratio=1.0) == 0
