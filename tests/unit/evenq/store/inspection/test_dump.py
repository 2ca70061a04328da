"""Dump gives what was asked for, in log order, and goes on behind damage."""

import pytest

from evenq.store.inspection.dump import Wanted, frames
from evenq.store.inspection.folder import read_folder
from evenq.store.log.record import MESSAGE, STATE


@pytest.fixture
def heads(filled):
    def run(disk=None, **wanted):
        disk = disk or filled()
        folder = read_folder(disk, owner=None)
        return [frame.head.split(b".")[0].decode() for frame in frames(disk, folder, Wanted(**wanted))]

    return run


def test_all_messages_come_in_order(heads):
    assert heads() == [str(number) for number in range(60)]


def test_queues_topics_and_kinds_choose(heads):
    assert heads(queue_id=1) == [str(number) for number in range(1, 60, 3)]
    assert heads(topic_ids=frozenset({2})) == []
    assert heads(topic_ids=frozenset({1}), queue_id=2) == [str(number) for number in range(2, 60, 3)]
    assert heads(kinds=frozenset({STATE}), queue_id=2) == [f"s{number}" for number in range(60)]
    assert len(heads(kinds=frozenset({STATE, MESSAGE}))) == 120


def test_times_choose_and_leave_whole_files_out(filled, heads):
    disk = filled()
    folder = read_folder(disk, owner=None)
    times = [frame.store_ms for frame in frames(disk, folder, Wanted())]
    assert heads(disk, begin_ms=times[20], end_ms=times[30]) == [str(number) for number in range(20, 30)]
    events = []
    list(frames(disk, folder, Wanted(begin_ms=times[50]), on_progress=lambda done, total: events.append(total)))
    assert 0 < events[-1] < folder.log_end / 2


def test_it_goes_on_behind_damage_and_tells_of_it(filled, places):
    disk = filled()
    log_offset, path, byte, _ = [place for place in places(disk) if place[3] == MESSAGE][10]
    disk.files[path].data[byte + 100] ^= 1
    holes = []
    folder = read_folder(disk, owner=None)
    found = list(frames(disk, folder, Wanted(), on_hole=holes.append))
    assert len(found) == 59
    assert [hole.start for hole in holes] == [log_offset]
