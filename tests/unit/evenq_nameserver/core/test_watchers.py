"""Bounded watches."""

import pytest
from evenq_nameserver.core.watchers import Watchers

from evenq.errors import TooManyRequests


def test_all_watchers_get_each_event_in_order() -> None:
    watchers = Watchers(watchers_max=2, behind_max=10)
    one, two = watchers.join("1"), watchers.join("2")
    watchers.tell(b"a")
    watchers.tell(b"b")
    assert list(one.pending) == list(two.pending) == [b"a", b"b"]


def test_a_watcher_that_does_not_read_is_cut_off_and_the_others_are_not() -> None:
    watchers = Watchers(watchers_max=2, behind_max=2)
    slow, good = watchers.join("slow"), watchers.join("good")
    for event in (b"a", b"b", b"c"):
        cut = watchers.tell(event)
        good.pending.clear()
    assert cut == [slow]
    assert (slow.cut_off, list(slow.pending), watchers.cut_off_count, len(watchers)) == (True, [], 1, 1)
    assert not good.cut_off


def test_watches_are_bounded_and_leaving_makes_room() -> None:
    watchers = Watchers(watchers_max=1, behind_max=2)
    first = watchers.join("1")
    with pytest.raises(TooManyRequests, match="1 watches"):
        watchers.join("2")
    watchers.leave(first)
    watchers.leave(first)
    watchers.join("2")
