"""Groups that were written just now: given out as they are, bounded, and forgotten where a gap would be."""

from __future__ import annotations

from evenq.store.log.commit_log import LogRun
from evenq.store.log.recent_groups import GROUP_BYTES_MAX, KEPT_BYTES, RecentGroups
from evenq.store.log.writer import WriteBatch

FILE = 1 << 20


def batch(start: int, *parts: bytes, seals: bool = False, position: int | None = None) -> WriteBatch:
    made = WriteBatch(start)
    run = LogRun(start // FILE * FILE, start % FILE if position is None else position)
    for part in parts:
        run.add(part)
    run.seals = seals
    made.begin_run(run)
    made.end = start + sum(map(len, parts))
    return made


def test_groups_that_follow_each_other_are_one_piece_of_the_log() -> None:
    recent = RecentGroups()
    for one in (batch(100, b"ab", b"c"), batch(103, b"de"), batch(105, b"f")):
        recent.keep(one)
        recent.keep(one)  # of a store that syncs each group, twice
    assert recent.read(100, 106) == b"abcdef"
    assert recent.read(105, 106) == b"f"
    assert recent.bytes == 6
    assert recent.read(100, 105) is None, "only up to the newest end"
    assert recent.read(104, 106) is None, "no group begins there"
    assert recent.read(99, 106) is None
    assert RecentGroups().read(0, 0) is None


def test_what_is_no_single_piece_of_one_file_is_left_to_the_files() -> None:
    two_files = batch(200, b"xx")
    two_files.begin_run(LogRun(FILE, 0))
    for odd in (
        two_files,
        batch(200, b"xx", seals=True),
        batch(200, b"xx", position=7),
        batch(200, bytes(GROUP_BYTES_MAX + 1)),
    ):
        recent = RecentGroups()
        recent.keep(batch(198, b"ok"))
        recent.keep(odd)
        assert recent.read(198, odd.end) is None
        assert recent.read(200, odd.end) is None
        assert recent.bytes == 0
        recent.keep(batch(odd.end, b"on"))
        assert recent.read(odd.end, odd.end + 2) == b"on"


def test_a_gap_forgets_what_was_before_it_and_the_oldest_go_when_it_is_full() -> None:
    recent = RecentGroups()
    recent.keep(batch(0, b"a"))
    recent.keep(batch(5, b"b"))
    assert recent.read(0, 6) is None
    assert recent.read(5, 6) == b"b"
    recent.clear()
    size, end = 60_000, 0
    for _ in range(10):
        recent.keep(batch(end, bytes(size)))
        end += size
    assert recent.bytes <= KEPT_BYTES
    held = KEPT_BYTES // size
    assert recent.read(end - held * size, end) == bytes(held * size)
    assert recent.read(end - (held + 1) * size, end) is None
