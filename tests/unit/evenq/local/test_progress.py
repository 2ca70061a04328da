"""Offsets and occupation, with time as an argument."""

from __future__ import annotations

import pytest

from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.local import progress
from evenq.local.progress import FolderProgress, LocalGroupProgress

KEY = ("T", 0)


def handed_out(group, client, count, now=0):
    claim = group.claim(client, KEY, now)
    start = claim.next
    claim.next += count
    claim.pending.update(dict.fromkeys(range(start, claim.next)))
    return claim


def test_progress_moves_up_to_the_first_message_that_is_not_finished():
    group = LocalGroupProgress("g", 100)
    claim = handed_out(group, "a", 5)
    for offset, stored in ((1, -1), (3, -1), (0, 1), (2, 3), (4, 4)):
        assert group.finish(claim, [offset], 0) == 1
        assert group.offsets.get(KEY, -1) == stored
    assert group.finish(claim, [0, 4], 0) == 0


def test_the_window_counts_from_the_last_sign_of_life():
    group = LocalGroupProgress("g", 100)
    claim = handed_out(group, "a", 2)
    group.finish(claim, [0], 60)
    assert group.claim("b", KEY, 159) is None
    taken = group.claim("b", KEY, 160)
    assert taken.next == 1
    assert claim.lost
    with pytest.raises(PreconditionFailed, match="window_ms"):
        group.finish(claim, [1], 161)


def test_leaving_frees_what_is_finished_and_reserves_the_rest():
    group = LocalGroupProgress("g", 100)
    group.join("a", ("T",), 0)
    claim = handed_out(group, "a", 1)
    assert group.leave("a", 10) == []
    assert group.claim("b", KEY, 50) is None
    group.join("a", ("T",), 60)
    group.finish(claim, [0], 60)
    assert group.leave("a", 70) == [KEY]
    assert group.claim("b", KEY, 70) is not None


def test_those_who_came_and_went_are_forgotten():
    group = LocalGroupProgress("g", 100)
    for number in range(1_000):
        group.claim(f"c{number}", KEY, number * 100)
    assert len(group.seen) < 100


def test_the_share_of_a_name_counts_its_living_readers():
    group = LocalGroupProgress("g", 100)
    for client, names in (("a", ("T",)), ("b", ("T", "U")), ("c", ("U",))):
        group.join(client, names, 0)
    assert [group.share("T", 5, 0), group.share("U", 4, 0), group.share("V", 3, 0)] == [3, 2, 3]
    group.seen["b"] = 50
    assert group.share("T", 5, 120) == 5


def test_there_are_so_many_groups_at_most(monkeypatch):
    monkeypatch.setattr(progress, "GROUPS_MAX", 2)
    table = FolderProgress(100)
    table.group("a")
    table.group("b")
    table.group("a")
    with pytest.raises(TooManyRequests, match="2 groups"):
        table.group("c")


def test_the_state_comes_back():
    table = FolderProgress(100)
    table.group("g").offsets.update({("T", 0): 4, ("T", 11): 2, ("U", 0): -1})
    again = FolderProgress(100)
    again.restore(table.state())
    assert again.group("g").offsets == table.group("g").offsets
    assert again.finished_by_all(("T", 11)) == 3
    assert again.finished_by_all(("V", 0)) == 0
