"""Rows become the same messages as if each had been sent, whichever way they are built."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.core.sending.body_digest import mark_of
from evenq_broker.core.sending.validation import MessageLimits, checked
from evenq_broker.core.staging import rows as staged_rows
from evenq_broker.core.staging.rows import Passed, build, messages_of, rows_of, token_and_sequence

from evenq.errors import BadRequest, IllegalMessageKey, IllegalPropertyKey, PropertiesTooLarge, StoreCorrupted
from evenq.model import MessageType, TopicConfig
from evenq.store import Append, StoredTimer
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from tests.unit.evenq_broker.staged import block

LIMITS = MessageLimits(
    body_bytes_max=10_000, properties_max=4, properties_bytes_max=200, delay_max_ms=1_000, store_host="127.0.0.1:8081"
)
MIXED = TopicConfig(name="t", topic_id=3, read_queues=4, write_queues=4, message_type=MessageType.MIXED)
TOKEN = bytes(range(16))


def stored(
    rows: Any,
    topic: TopicConfig = MIXED,
    *,
    now_ms: int = 1_000,
    limits: MessageLimits = LIMITS,
    passed: Passed | None = None,
) -> list[Any]:
    timer = build(
        rows_of(rows, limits),
        topic,
        limits,
        token=TOKEN,
        sequence=5,
        now_ms=now_ms,
        empty_message=definition_pb2.Message,
        passed=passed,
    )
    assert token_and_sequence(timer) == (TOKEN, 5)
    return list(messages_of(timer, topic, queue_id=1, now_ms=now_ms))


@pytest.mark.parametrize("only_md5", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_built_row_is_what_a_send_of_it_would_have_stored(*, grouped: bool, only_md5: bool) -> None:
    limits = replace(LIMITS, only_md5=lambda: only_md5)
    rng = random.Random(7)
    count = 300
    tags = [rng.choice(["", "a", "b", "ü"]) for _ in range(count)]
    keys = [[f"k{rng.randrange(9)}" for _ in range(rng.randrange(3))] for _ in range(count)]
    properties = [{f"p{at}": "v" * rng.randrange(5) for at in range(rng.randrange(3))} for _ in range(count)]
    groups = [rng.choice(["", "g", "h"]) if grouped else "" for _ in range(count)]
    bodies = ["x" * rng.randrange(1, 400) for _ in range(count)]
    rows = block(bodies, tags=tags, keys=keys, properties=properties, groups=groups, first_row=9)
    passed = Passed(MIXED)
    by_row, found = (stored(rows, limits=limits, passed=passed) for _ in range(2))
    read = definition_pb2.SystemProperties.FromString
    assert [read(one.system) for one in by_row] == [read(one.system) for one in found]
    kinds = {definition_pb2.SystemProperties.FromString(one.system).body_digest.type for one in found}
    assert kinds == ({definition_pb2.MD5} if only_md5 else {definition_pb2.CRC32, definition_pb2.MD5})
    for at, one in enumerate(found):
        message = definition_pb2.Message(body=bodies[at].encode(), user_properties=properties[at])
        message.topic.name = "t"
        system = message.system_properties
        system.message_id = f"01{TOKEN[:10].hex().upper()}{9 + at:012X}"
        if tags[at]:
            system.tag = tags[at]
        system.keys.extend(keys[at])
        if groups[at]:
            system.message_group = groups[at]
        set_ms(system.born_timestamp, 1_000)
        wanted = checked(message, MIXED, limits, now_ms=1_000)
        assert isinstance(one, Append)
        assert definition_pb2.Message.FromString(one.head) == definition_pb2.Message.FromString(wanted.head)
        assert definition_pb2.SystemProperties.FromString(one.system) == definition_pb2.SystemProperties.FromString(
            wanted.system
        )
        assert (one.tag_hash, one.born_ms) == (wanted.tag_hash, wanted.born_ms)
        assert one.queue_id == (wanted.queue_id if wanted.queue_id >= 0 else 1)
        assert mark_of(one.head, one.system) == mark_of(wanted.head, wanted.system)


@pytest.mark.parametrize("first_row", [0, (1 << 32) - 2, (1 << 48) - 2])
@pytest.mark.parametrize("group", ["", "g"])
def test_ids_follow_the_rows_numbers_also_where_these_grow_longer(first_row: int, group: str) -> None:
    found = stored(block(["a", "b", "c", "d"], groups=[group] * 4, first_row=first_row))
    ids = [definition_pb2.SystemProperties.FromString(one.system).message_id for one in found]
    numbers = [(first_row + at) % (1 << 48) for at in range(4)]
    assert ids == [f"01{TOKEN[:10].hex().upper()}{number:012X}" for number in numbers]


def test_a_tag_and_a_group_are_judged_once_for_all_blocks_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def judge(message: Any, *given: Any, **more: Any) -> Any:
        judged.append(message.system_properties.tag)
        return checked(message, *given, **more)

    def tags_of(topic: TopicConfig, passed: Passed, tags: list[str]) -> list[str]:
        rows = rows_of(block(["x"] * len(tags), tags=tags), LIMITS)
        timer = build(
            rows, topic, LIMITS, token=TOKEN, sequence=0, now_ms=1, empty_message=definition_pb2.Message, passed=passed
        )
        made = messages_of(StoredTimer(3, 0, 0, 1, 1, 0, 0, 3, timer.head, timer.system), topic, queue_id=1, now_ms=1)
        return [definition_pb2.SystemProperties.FromString(one.system).tag for one in made]

    monkeypatch.setattr(staged_rows, "checked", judge)
    monkeypatch.setattr(staged_rows, "PASSED_MAX", 3)
    passed = Passed(MIXED)
    assert tags_of(MIXED, passed, ["a", "b", "a"]) == ["a", "b", "a"]
    assert tags_of(MIXED, passed, ["b", "c", "a"]) == ["b", "c", "a"]
    assert judged == ["a", "b", "c"]
    assert tags_of(MIXED, passed, ["d", "a"]) == ["d", "a"]
    assert len(passed) <= 3
    assert judged == ["a", "b", "c", "d", "a"]
    with pytest.raises(BadRequest, match="row 0: topic t takes FIFO"):  # a topic that was changed judges anew
        tags_of(replace(MIXED, message_type=MessageType.FIFO), passed, ["a"])


def test_rows_with_a_queue_of_their_own_go_there_and_into_one_that_is_when_it_is_gone() -> None:
    found = stored(block(["a", "b", "c"], queue_ids=[3, -1, 7]))
    assert [one.queue_id for one in found] == [3, 1, 3]


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        (block(["a"], keys=[["k" * 201]]), PropertiesTooLarge, "row 0: tag, keys and user properties take 201"),
        (block(["a"], properties=[{"KEYS": "v"}]), IllegalPropertyKey, "row 0: the property key 'KEYS' is reserved"),
        (block(["a", "b"], keys=[[], [" "]], first_row=5), IllegalMessageKey, "row 6: the key ' '"),
        (block(["a"], properties=[{"p": "v" * 500}]), PropertiesTooLarge, "row 0: tag, keys and user properties take"),
        (block(["a"], properties=[{str(at): "" for at in range(5)}]), PropertiesTooLarge, "has 5 user properties"),
        (block(["x" * 10_001]), BadRequest, "row 0: the message body has 10001 bytes"),
        (block(["a"], priorities=[3]), BadRequest, "row 0: topic t takes MIXED messages, this one is PRIORITY"),
    ],
)
def test_a_row_over_a_limit_is_refused_as_a_send_is(rows: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        stored(rows)


def test_columns_that_do_not_fit_together_are_refused() -> None:
    whole = block(["a", "b"], tags=["x", "y"], keys=[["k"], []])

    def broken(**fields: Any) -> Any:
        found = type(whole)()
        found.CopyFrom(whole)
        for name, value in fields.items():
            setattr(found, name, value)
        return found

    for rows in (
        broken(count=0), broken(count=3), broken(body_ends=b"\x01\0\0\0"), broken(body_ends=b"\x02\0\0\0\x01\0\0\0"),
        broken(tag_ends=b"\x09\0\0\0\x09\0\0\0"), broken(key_rows=b""), broken(priorities=b"123"),
        broken(body_ends=b"\xff\xff\xff\xff\x02\0\0\0"), broken(bodies=b"abc"),
    ):  # fmt: skip
        with pytest.raises(BadRequest):
            rows_of(rows, LIMITS)


def test_text_that_is_no_utf8_is_refused_not_stored() -> None:
    rows = block(["a"], tags=["x"])
    rows.tags = b"\xff"
    with pytest.raises(BadRequest, match="row 0 cannot be a message"):
        stored(rows)


def test_a_block_of_an_unknown_version_is_refused() -> None:
    timer = build(
        rows_of(block(["a"]), LIMITS),
        MIXED,
        LIMITS,
        token=TOKEN,
        sequence=0,
        now_ms=0,
        empty_message=definition_pb2.Message,
    )
    other = StoredTimer(3, 0, 9, 0, 0, 0, 0, 3, b"\x09" + timer.head[1:], timer.system)
    with pytest.raises(StoreCorrupted, match="version 9"):
        list(messages_of(other, MIXED, queue_id=0, now_ms=0))
