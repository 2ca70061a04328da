"""The byte tables of the code are the ones of the documents, and frames that are not whole are not frames."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import StoreError
from evenq.store import checkpoint, consume_queue, record, snapshot

DOCUMENT = Path(__file__).parents[4] / "docs" / "internals" / "data_files.md"


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
        _of(snapshot.SNAPSHOT_FIELDS),
    ]
    for module in (record, checkpoint, snapshot):
        assert f"0x{module.MAGIC:08X}" in DOCUMENT.read_text()


def _pack(head=b"head", system=b"system", **values):
    fields = {
        "kind": record.MESSAGE, "flags": 0, "epoch": 1, "topic_id": 2, "queue_id": 3, "queue_offset": 4, "log_offset": 5,
        "synced_offset": 0, "store_ms": 6, "born_ms": 7, "tag_hash": -8,
    }  # fmt: skip
    return record.pack(**{**fields, **values}, head=head, system=system)


@given(head=st.binary(max_size=300), system=st.binary(max_size=50), before=st.binary(max_size=20), data=st.data())
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


def test_an_unknown_version_is_refused_by_name():
    body = bytearray(_pack()[record.PREFIX_BYTES :])
    body[0] = 9
    packed = record.PREFIX.pack(len(body) + 12, record.MAGIC, record.crc32c(bytes(body))) + bytes(body)
    with pytest.raises(StoreError, match="version 9; this program reads version 1"):
        record.frame_at(packed, 0, 5)
