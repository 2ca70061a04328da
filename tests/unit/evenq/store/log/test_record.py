"""The byte tables of the code are the ones of the documents, and frames that are not whole are not frames."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.index import index_file
from evenq.store.log import consume_queue, record, snapshot
from evenq.store.opening import checkpoint, copied_mark
from evenq.store.timers import keys, manifest, runs

DOCUMENT = Path(__file__).parents[5] / "docs" / "internals" / "data_files.md"


def _tables(text):
    """Each byte table as [(at, bytes, field), ...]."""
    tables = []
    for line in text.splitlines():
        if line.startswith("| at "):
            tables.append([])
        elif match := re.match(r"\| (\d+) \| (\d+) \| ([\w ]+?) \|", line):
            tables[-1].append((int(match[1]), int(match[2]), match[3]))
    return tables


def _of(fields):
    at, table = 0, []
    for field in fields:
        table.append((at, field.size, field.name))
        at += field.size
    return table


def test_the_byte_tables_of_the_document_are_those_of_the_code():
    assert _tables(DOCUMENT.read_text()) == [
        _of(record.FRAME_FIELDS),
        _of(consume_queue.ENTRY_FIELDS),
        _of(checkpoint.CHECKPOINT_FIELDS),
        _of(checkpoint.QUEUE_FIELDS),
        _of(copied_mark.MARK_FIELDS),
        _of(snapshot.SNAPSHOT_FIELDS),
        _of(snapshot.QUEUE_FIELDS),
        _of(index_file.INDEX_FIELDS),
        _of(index_file.PAGE_FIELDS),
        _of(index_file.ENTRY_FIELDS),
        _of(runs.RUN_FIELDS),
        _of(runs.BLOCK_FIELDS),
        _of(keys.ENTRY_FIELDS),
        _of(manifest.MANIFEST_FIELDS),
        _of(manifest.RUN_USE_FIELDS),
    ]
    for module in (record, checkpoint, copied_mark, snapshot, index_file, runs, manifest):
        assert f"0x{module.MAGIC:08X}" in DOCUMENT.read_text()


def _pack(head=b"head", system=b"system", **values):
    fields = {
        "kind": record.MESSAGE, "flags": 0, "epoch": 1, "topic_id": 2, "queue_id": 3, "queue_offset": 4, "log_offset": 5,
        "synced_offset": 0, "store_ms": 6, "born_ms": 7, "tag_hash": -8,
    }  # fmt: skip
    return record.pack(**{**fields, **values}, head=head, system=system)


@given(
    head=st.binary(max_size=300) | st.just(bytes(5_000)),
    system=st.binary(max_size=50),
    before=st.binary(max_size=20),
    data=st.data(),
)
def test_a_frame_comes_back_and_any_flipped_or_missing_byte_is_seen(head, system, before, data):
    packed = _pack(head, system)
    frame = record.frame_at(before + packed + b"behind", len(before), 5)
    assert frame is not None
    message = record.message_of(frame)
    assert (message.head, message.system, message.tag_hash, message.queue_offset) == (head, system, -8, 4)
    place = data.draw(st.integers(0, len(packed) - 1))
    flipped = bytearray(packed)
    flipped[place] ^= data.draw(st.integers(1, 255))
    assert record.frame_at(bytes(flipped), 0, 5) is None
    assert record.frame_at(packed[:place], 0, 5) is None
    assert record.frame_at(packed, 0, 6) is None  # not its own place
    read = record.message_at(before + packed + b"behind", len(before), 5)
    assert read is not None
    assert [getattr(read, name) for name in read.__slots__] == [getattr(message, name) for name in read.__slots__]
    assert record.message_at(bytes(flipped), 0, 5) is None
    assert record.message_at(packed[:place], 0, 5) is None
    assert record.message_at(packed, 0, 6) is None


def test_an_unknown_version_is_refused_by_name():
    body = bytearray(_pack()[record.PREFIX_BYTES :])
    body[0] = 9
    packed = record.PREFIX.pack(len(body) + 12, record.MAGIC, record.crc32c(bytes(body))) + bytes(body)
    with pytest.raises(StoreError, match="version 9; this program reads version 1"):
        record.frame_at(packed, 0, 5)


def _frame(**values):
    return record.frame_at(_pack(**values), 0, 5)


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_the_end_of_timers_lists_them(timer_ids):
    frame = _frame(kind=record.TIMER_END, head=record.pack_timer_ids(timer_ids), system=b"")
    assert record.timer_ids_of(frame) == tuple(timer_ids)


def test_a_frame_of_another_kind_is_no_timer_and_no_list_of_timers():
    with pytest.raises(StoreCorrupted, match="of kind 1, a timer is 4"):
        record.timer_of(_frame())
    for frame in (_frame(), _frame(kind=record.TIMER_END, head=b"seven b")):
        with pytest.raises(StoreCorrupted, match="not a list of timers"):
            record.timer_ids_of(frame)


def test_the_document_names_every_kind():
    named = ", ".join(f"{kind} {name}" for kind, name in record.KINDS.items())
    assert named in DOCUMENT.read_text()


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 255))
def test_a_timer_keeps_its_due_time_and_its_tag_hash_in_fields_of_other_names(due_ms, tag_hash, kind):
    fields = record.TimerFields(due_ms, tag_hash, kind)
    data = _pack(
        kind=record.TIMER, flags=fields.flags | record.FLAG_MORE, queue_offset=fields.queue_offset_field,
        tag_hash=fields.tag_hash_field,
    )  # fmt: skip
    frame = record.frame_at(data, 0, 5)
    assert frame is not None
    assert frame.timer == fields
    timer = record.timer_of(frame)
    assert (timer.due_ms, timer.tag_hash, timer.kind, timer.log_offset) == (due_ms, tag_hash, kind, 5)
    assert (timer.topic_id, timer.queue_id, timer.head, timer.system) == (2, 3, b"head", b"system")
    header = dict(zip((field.name for field in record.FRAME_FIELDS), record.HEADER.unpack_from(data), strict=True))
    assert (header["tag hash"], header["queue offset"], header["flags"] >> 8) == (due_ms, tag_hash % (1 << 64), kind)


def test_a_timer_is_not_read_as_a_message_nor_a_message_as_a_timer():
    timer = record.frame_at(_pack(kind=record.TIMER, tag_hash=8), 0, 5)
    for name in ("queue_offset", "tag_hash"):
        with pytest.raises(AssertionError):
            getattr(timer, name)
    message = record.frame_at(_pack(), 0, 5)
    assert (message.queue_offset, message.tag_hash) == (4, -8)
    with pytest.raises(StoreCorrupted, match="a timer is 4"):
        _ = message.timer
