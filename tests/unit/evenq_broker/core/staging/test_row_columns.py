"""Columns taken apart say of each row what was put into them, and blocks built by columns are those built by rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from evenq_broker.core.sending.validation import MessageLimits
from evenq_broker.core.staging import row_columns
from evenq_broker.core.staging import rows as staged_rows
from evenq_broker.core.staging.row_columns import rows_of
from evenq_broker.core.staging.rows import Passed, block_of, build, messages_of

from evenq.errors import BadRequest
from evenq.model import MessageType, TopicConfig
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from tests.unit.evenq_broker.staged import block

LIMITS = MessageLimits(
    body_bytes_max=10_000, properties_max=4, properties_bytes_max=200, delay_max_ms=1_000, store_host="127.0.0.1:8081"
)
MIXED = TopicConfig(name="t", topic_id=3, read_queues=4, write_queues=4, message_type=MessageType.MIXED)
TOKEN = bytes(range(16))
PAIRS = [{"a": "1", "b": ""}, {"a": "x" * 50, "b": "2"}]


def some(rng: random.Random, count: int) -> Any:
    """Rows with or without each column, alike or each by itself."""
    bodies = ["x" * rng.randrange(1, 300) for _ in range(count)]
    found: dict[str, Any] = {"first_row": rng.randrange(9)}
    if rng.random() < 0.7:
        found["tags"] = [rng.choice(["", "a", "b"]) for _ in range(count)]
    if rng.random() < 0.7:
        low, high = rng.choice([(1, 2), (0, 3)])
        found["keys"] = [[f"k{rng.randrange(99)}" for _ in range(rng.randrange(low, high))] for _ in range(count)]
    if rng.random() < 0.7:
        alike = rng.random() < 0.5
        rows = [rng.choice(PAIRS if alike else [{}, {"b": "1", "a": "2"}, *PAIRS]) for _ in range(count)]
        found["properties"] = rows
    if rng.random() < 0.4:
        found["groups"] = [rng.choice(["", "g", "h"]) for _ in range(count)]
    if rng.random() < 0.4:
        found["queue_ids"] = [rng.choice([-1, 0, 3, 9]) for _ in range(count)]
    if rng.random() < 0.2:
        found["delivery_ms"] = [0] * count
    return block(bodies, **found)


def test_blocks_built_by_columns_are_byte_for_byte_those_built_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    passed = Passed(MIXED)
    by_columns = 0
    real = staged_rows._Maker.columns

    def counted(maker: Any) -> bytes:
        nonlocal by_columns
        built = real(maker)
        by_columns += bool(built)
        return built

    for _ in range(60):
        rows = some(rng, rng.randrange(1, 40))

        def made(rows: Any = rows) -> bytes:
            taken = rows_of(rows, LIMITS)
            return build(
                taken,
                MIXED,
                LIMITS,
                token=TOKEN,
                sequence=0,
                now_ms=1_000,
                empty_message=definition_pb2.Message,
                passed=passed,
            ).system

        monkeypatch.setattr(staged_rows._Maker, "columns", lambda _: b"")
        made()  # a first tag goes through the validation, whose bytes differ in the order of their fields
        wanted = made()
        monkeypatch.setattr(staged_rows._Maker, "columns", counted)
        assert made() == wanted
    assert by_columns == 60


def test_a_block_for_the_store_is_the_messages_of_the_block_as_one_piece() -> None:
    rows = block(["one", "two", "three"], queue_ids=[3, -1, 7], tags=["a", "", "b"], keys=[["k"], [], ["l", "m"]])
    timer = build(
        rows_of(rows, LIMITS),
        MIXED,
        LIMITS,
        token=TOKEN,
        sequence=0,
        now_ms=1_000,
        empty_message=definition_pb2.Message,
    )
    found = block_of(timer, MIXED, queue_id=2, now_ms=1_000)
    assert found is not None
    assert (found.topic_id, len(found), list(found.queue_ids)) == (3, 3, [3, 2, 3])
    at = found.start
    for number, message in enumerate(messages_of(timer, MIXED, queue_id=2, now_ms=1_000)):
        assert isinstance(message, Append)
        middle = at + found.head_bytes[number]
        end = middle + found.system_bytes[number]
        assert (found.data[at:middle], found.data[middle:end]) == (message.head, message.system)
        assert (found.tag_hashes[number], found.born_ms[number], found.queue_ids[number]) == (
            message.tag_hash, message.born_ms, message.queue_id
        )  # fmt: skip
        at = end
    assert at == len(found.data)


def test_a_block_with_a_row_that_is_due_later_is_none_for_the_store_until_then() -> None:
    rows = block(["now", "later"], delivery_ms=[0, 1_500])
    timer = build(
        rows_of(rows, LIMITS),
        MIXED,
        LIMITS,
        token=TOKEN,
        sequence=0,
        now_ms=1_000,
        empty_message=definition_pb2.Message,
    )
    assert block_of(timer, MIXED, queue_id=0, now_ms=1_000) is None
    assert block_of(timer, MIXED, queue_id=0, now_ms=1_500) is not None


def test_names_of_properties_are_taken_apart_once_for_blocks_that_share_them() -> None:
    row_columns._names.cache_clear()
    rows = [{"a": "1", "b": "2"}] * 3
    for _ in range(3):
        taken = rows_of(block(["x", "y", "z"], properties=rows), LIMITS)
    assert row_columns._names.cache_info()[:2] == (2, 1)
    [message] = [definition_pb2.Message.FromString(fields) for fields in {*taken.property_fields}]
    assert dict(message.user_properties) == {"a": "1", "b": "2"}
    assert taken.properties(2) == [(b"a", b"1"), (b"b", b"2")]
    large = [{"n" * 100_000: ""}] * 3
    rows_of(block(["x", "y", "z"], properties=large), LIMITS)
    assert row_columns._names.cache_info().currsize == 1


@pytest.mark.parametrize(
    "fields",
    [{"keys": b"", "key_ends": b""}, {"key_rows": b"\x02\0\0\0\x01\0\0\0"}, {"key_rows": b"\x01\0\0\0"},
     {"property_rows": b"\x01\0\0\0\x03\0\0\0"}, {"property_value_ends": b""}],
)  # fmt: skip
def test_keys_and_properties_that_do_not_belong_to_rows_are_refused(fields: dict[str, bytes]) -> None:
    rows = block(["a", "b"], keys=[["k"], ["l"]], properties=[{"p": "1"}, {"p": "2"}])
    for name, value in fields.items():
        setattr(rows, name, value)
    with pytest.raises(BadRequest):
        rows_of(rows, LIMITS)
