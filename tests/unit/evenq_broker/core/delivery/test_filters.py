"""From an expression to the messages that it wants, and how far a read got (wire contract 5.4)."""

from collections.abc import Sequence

import pytest
from evenq_broker.core.delivery.filters import EVERYTHING, LOOK_AHEAD, LOOK_AHEAD_MAX, MessageFilter
from evenq_broker.loops.wire.stored_messages import message_filter

from evenq.errors import IllegalFilterExpression
from evenq.store import ReadResult, StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2


def message(offset: int = 0, *, tag: str = "", **properties: str) -> StoredMessage:
    system = definition_pb2.SystemProperties(message_id="m")
    if tag:
        system.tag = tag
    head = definition_pb2.Message(user_properties=properties, body=b"b").SerializeToString()
    return StoredMessage(1, 0, offset, 0, 0, 0, 0, head, system.SerializeToString())


def wants(expression: str, one: StoredMessage, *, is_sql: bool = True) -> bool:
    matches = message_filter(expression, is_sql=is_sql).matches
    assert matches is not None
    return matches(one)


def test_what_asks_for_everything_is_one_object_that_tests_nothing() -> None:
    assert all(message_filter(text, is_sql=False) is EVERYTHING for text in ("", "*", "a || *"))
    assert EVERYTHING.look(32) == 32


def test_a_tag_is_compared_itself_because_hashes_may_meet() -> None:
    assert wants("red || blue", message(tag="red"), is_sql=False)
    assert not wants("red || blue", message(tag="green"), is_sql=False), "though the store let it through"
    assert not wants("red", message(), is_sql=False)


def test_sql_looks_at_properties_and_at_the_tag() -> None:
    assert wants("region = 'eu' AND amount > 10", message(region="eu", amount="11"))
    assert not wants("region = 'eu' AND amount > 10", message(region="eu"))
    assert wants("TAGS = 'red' OR region = 'eu'", message(tag="red"))
    assert not wants("TAGS = 'red'", message(tag="blue"))


def test_a_property_of_that_name_is_not_the_tag() -> None:
    assert not wants("TAGS = 'red'", message(TAGS="red"))
    assert wants("TAGS IS NULL", message(TAGS="red"))
    assert wants("TAGS = 'blue'", message(tag="blue", TAGS="red"))


def test_only_what_is_true_is_wanted_and_null_is_not() -> None:
    assert not wants("a = 1", message())
    assert not wants("NOT (a = 1)", message())


def test_the_same_expression_is_parsed_once() -> None:
    assert message_filter("a = 1", is_sql=True) is message_filter("a = 1", is_sql=True)
    with pytest.raises(IllegalFilterExpression, match="column 5"):
        message_filter("a = ", is_sql=True)


@pytest.mark.parametrize(
    ("wanted", "count", "kept", "following"),
    [
        ("n IN (3, 5, 7)", 2, [3, 5], 6),
        ("n IN (3, 5, 7)", 3, [3, 5, 7], 8),
        ("n IN (3, 5, 7)", 9, [3, 5, 7], 12),
        ("n = 9", 1, [9], 12),
        ("n = 99", 1, [], 12),
    ],
)
def test_a_sifted_read_goes_on_behind_the_last_message_that_was_looked_at(
    wanted: str, count: int, kept: Sequence[int], following: int
) -> None:
    read = ReadResult([message(n, n=str(n)) for n in range(10)], 12, 0, 20)
    sifted = message_filter(wanted, is_sql=True).sift(read, count)
    assert [one.queue_offset for one in sifted.messages] == kept
    assert (sifted.next_offset, sifted.min_offset, sifted.max_offset) == (following, 0, 20)


def test_sql_looks_ahead_and_a_tag_filter_leaves_that_to_the_store() -> None:
    assert message_filter("a = 1", is_sql=True).look(1) == LOOK_AHEAD
    assert message_filter("a = 1", is_sql=True).look(1_000) == 1_000
    assert message_filter("a = 1", is_sql=True).look(10_000) == LOOK_AHEAD_MAX
    assert message_filter("red", is_sql=False).look(1) == 1
    assert isinstance(message_filter("red", is_sql=False), MessageFilter)
