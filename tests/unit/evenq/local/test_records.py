"""The byte tables against the guide, and records with any content."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from evenq.local import records
from evenq.local.messages import Message
from evenq.local.statuses import GetStatus, PutStatus, ReadStatus

GUIDE = (Path(__file__).parents[4] / "docs/guides/local_queues.md").read_text(encoding="utf-8")


def rows(title):
    """(at, bytes, field) of the table behind a title."""
    text = GUIDE.split(title)[1].split("\n\n")[1]
    return re.findall(r"^\| (\d*) ?\| (\d+) \| ([\w ]+) \|", text, re.MULTILINE)


def test_the_guide_shows_the_tables_that_the_code_packs():
    local = rows("Record of the local engine, 49 bytes")
    assert [int(size) for _, size, _ in local] == [4, 4, 4, 4, 8, 8, 8, 4, 1, 2, 2]
    assert sum(int(size) for _, size, _ in local) == records.LOCAL_FIXED_BYTES
    starts = [int(at) for at, _, _ in local if at]
    assert starts == [0, 4, 8, 12, 16, 24, 32, 40]
    assert records.PREFIX.size + records.NUMBERS.size == starts[-1] == records.HEADER_BYTES
    embedded = rows("Record of the embedded engine, 16 bytes")
    assert sum(int(size) for _, size, _ in embedded) == records.EMBEDDED_FIXED_BYTES
    assert f"0x{records.MESSAGE_MAGIC:08X}" in GUIDE
    assert f"0x{records.BLANK_MAGIC:08X}" in GUIDE
    assert (records.ENTRY.size, records.INDEX_ENTRY.size) == (12, 16)


def test_the_guide_lists_every_status():
    for status in (*PutStatus, *GetStatus):
        assert f"| `{status}` |" in GUIDE


@given(
    st.binary(max_size=300),
    st.binary(max_size=50),
    st.binary(max_size=50),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**40),
)
def test_what_is_packed_is_read_again(body, headers, properties, queue_id, offset):
    message = Message("orders", queue_id, body, headers, properties)
    message.offset, message.store_offset, message.stored_ms = offset, 500, 1
    payload = records.pack_payload(message)
    data = records.pack_local(message, payload, zlib.crc32(payload)) + payload
    for read in (
        records.read_local(b"xx" + data, 2, len(data), 500),
        records.read_embedded(records.pack_embedded(message), 0, 1 << 30, "orders", queue_id),
    ):
        status, _, found = read
        assert status is ReadStatus.RECORD
        assert (found.body, found.packed_headers, found.packed_properties) == (body, headers, properties)
        assert (found.name, found.queue_id) == ("orders", queue_id)
    assert records.read_local(data, 0, len(data), 501)[0] is ReadStatus.BAD_CHECKSUM


@given(st.binary(max_size=200), st.integers(0, 300))
def test_garbage_is_never_a_record(data, left):
    assert records.read_local(data, 0, left, 0)[2] is None
    records.read_embedded(data, 0, left, "T", 0)


def test_filler_has_8_bytes_or_none():
    assert records.filler(8).hex() == "00000008cbd43194"
    assert records.filler(7) == bytes(7)
    assert records.read_local(bytes(7), 0, 7, 0)[0] is ReadStatus.END
