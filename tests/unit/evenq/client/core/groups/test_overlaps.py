"""When a queue that another member holds is worth a word."""

from evenq.client.core.groups.overlaps import OVERLAP_MS, Overlaps
from evenq.model import MessageQueue

ONE, TWO = MessageQueue("t", "b", 1), MessageQueue("u", "b", 1)


def test_a_queue_that_is_refused_for_two_minutes_is_told_of_once() -> None:
    overlaps = Overlaps()
    times = (5, OVERLAP_MS + 4, OVERLAP_MS + 5, OVERLAP_MS + 6, 9 * OVERLAP_MS)
    assert [overlaps.refused(ONE, now_ms) for now_ms in times] == [False, False, True, False, False]


def test_each_queue_counts_for_itself_and_from_the_last_time_that_it_was_ours_or_not_wanted() -> None:
    overlaps = Overlaps()
    assert not overlaps.refused(ONE, 0)
    assert not overlaps.refused(TWO, OVERLAP_MS // 2)
    overlaps.assigned("u", [])
    overlaps.assigned("t", [ONE])
    assert overlaps.refused(ONE, OVERLAP_MS)
    assert not overlaps.refused(TWO, 2 * OVERLAP_MS)
    overlaps.over(ONE)
    assert not overlaps.refused(ONE, 3 * OVERLAP_MS)
    assert overlaps.refused(ONE, 4 * OVERLAP_MS)
