"""What is found in packed entries is what a look at each of them finds."""

import sys
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.store.log.consume_queue import ENTRY
from evenq.store.log.record import HEADER_BYTES
from evenq.store.queues import entry_columns
from evenq.store.queues.entry_columns import RUN_MIN, EntryColumns, packed_sizes

FILE = 1 << 20
SIZES = st.integers(HEADER_BYTES, 5_000)
RUNS = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 0, 1, 777, 90_000])), min_size=1, max_size=8)


def packed(runs, sizes, begin=0):
    """Entries of frames that lie in runs, with gaps before them; the frames' places; and where the runs begin."""
    places, edges, at = [], [0], begin
    for count, gap in runs:
        at += gap
        if gap and places:
            edges.append(len(places))
        for _ in range(count):
            size = sizes[len(places) % len(sizes)]
            places.append((at, size, -len(places)))
            at += size
    return b"".join(ENTRY.pack(*place) for place in places), places, [*edges, len(places)]


@given(runs=RUNS, sizes=st.lists(SIZES, min_size=1, max_size=9), room=st.integers(0, 300_000))
def test_sizes_places_and_what_fits(runs, sizes, room):
    data, places, _ = packed(runs, sizes)
    columns = EntryColumns(data)
    assert list(columns.sizes) == [size for _, size, _ in places]
    assert columns.ends == list(accumulate(columns.sizes, initial=0))
    columns.keep_fitting(room)
    fitting = sum(end <= room for end in accumulate(size - HEADER_BYTES for _, size, _ in places))
    kept = places[: max(1, fitting)]
    assert columns.places() == kept
    assert (len(columns), len(columns.ends)) == (len(kept), len(kept) + 1)
    assert [columns.place(at) for at in range(len(kept))] == kept
    assert columns.places(1, len(kept)) == kept[1:]


@given(runs=RUNS, sizes=st.lists(SIZES, min_size=1, max_size=9), first=st.integers(0, 200))
def test_runs_are_the_pieces_of_the_log(runs, sizes, first):
    data, places, edges = packed(runs, sizes)
    first = min(first, len(places) - 1)
    wanted = [first, *(edge for edge in edges if edge > first)]
    found = EntryColumns(data).runs(first, 0, 1 << 62)
    if found is None:
        assert any((at + 1) * RUN_MIN > edge - first for at, edge in enumerate(wanted))
    else:
        assert found == wanted
        for low, high in pairwise(found):
            assert places[high - 1][0] + places[high - 1][1] - places[low][0] == sum(p[1] for p in places[low:high])


def test_runs_end_with_the_file():
    data, places, _ = packed([(30, 0), (30, 50)], [1_000], begin=FILE - 45_050)
    assert EntryColumns(data).runs(0, 0, FILE) == [0, 30, 45]
    assert EntryColumns(data).runs(45, FILE, 2 * FILE) == [45, 60]
    assert places[45][0] == FILE


@pytest.mark.parametrize("wrong", [0, 7, 19])
@pytest.mark.parametrize("log_offset", [0, FILE - 20, FILE, 1 << 63])
def test_a_frame_outside_of_its_file_is_left_to_a_closer_look(wrong, log_offset):
    _, places, _ = packed([(20, 0)], [1_000], begin=500)
    places[wrong] = (log_offset, *places[wrong][1:])
    found = EntryColumns(b"".join(ENTRY.pack(*place) for place in places)).runs(0, 500, FILE)
    for low, high in pairwise(found or []):
        begin = places[low][0]
        assert 500 <= begin <= FILE - sum(place[1] for place in places[low:high])


def test_sizes_travel_little_endian_whatever_the_machine_is(monkeypatch):
    data, _, _ = packed([(2, 0)], [0x01020304])
    sizes = EntryColumns(data).sizes
    assert packed_sizes(sizes) == b"\x04\x03\x02\x01" * 2
    monkeypatch.setattr(entry_columns.sys, "byteorder", "little" if sys.byteorder == "big" else "big")
    assert packed_sizes(sizes) == b"\x01\x02\x03\x04" * 2
    assert packed_sizes(sizes) == b"\x01\x02\x03\x04" * 2, "the sizes themselves were turned"
