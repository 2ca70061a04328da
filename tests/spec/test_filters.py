"""Filters as wire-contract.md 5.4 wants them, with RG-8 and the reference's retries (5.5), on the pure cores."""

from __future__ import annotations

import pytest
from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of
from evenq_broker.loops.wire.stored_messages import message_filter

from evenq.errors import IllegalFilterExpression
from evenq.model import FilterExpression, Subscription
from evenq.store import ReadResult, StoredMessage
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

KEY = (1, 1, 0)


def stored(offset: int, tag: str = "", **properties: str) -> StoredMessage:
    system = definition_pb2.SystemProperties(message_id="m")
    if tag:
        system.tag = tag
    head = definition_pb2.Message(user_properties=properties).SerializeToString()
    return StoredMessage(1, 0, offset, 0, 0, 0, 0, head, system.SerializeToString())


def wants(expression: str, message: StoredMessage) -> bool:
    matches = message_filter(expression, is_sql=True).matches
    assert matches is not None
    return matches(message)


@pytest.mark.parametrize(
    ("expression", "fits", "fits_not"),
    [
        ("n = 1", {"n": "1"}, {"n": "2"}),
        ("n <> 1", {"n": "2"}, {"n": "1"}),
        ("n < 1", {"n": "0"}, {"n": "1"}),
        ("n <= 1", {"n": "1"}, {"n": "2"}),
        ("n > 1.5", {"n": "2"}, {"n": "1"}),
        ("n >= -1", {"n": "-1"}, {"n": "-2"}),
        ("n BETWEEN 1 AND 3", {"n": "3"}, {"n": "4"}),
        ("n NOT BETWEEN 1 AND 3", {"n": "4"}, {"n": "2"}),
        ("s IN ('a', 'b')", {"s": "b"}, {"s": "c"}),
        ("s NOT IN ('a', 'b')", {"s": "c"}, {"s": "a"}),
        ("s IS NULL", {}, {"s": ""}),
        ("s IS NOT NULL", {"s": ""}, {}),
        ("s CONTAINS 'b'", {"s": "abc"}, {"s": "ac"}),
        ("s STARTSWITH 'a'", {"s": "ab"}, {"s": "ba"}),
        ("s ENDSWITH 'a'", {"s": "ba"}, {"s": "ab"}),
        ("b = TRUE", {"b": "true"}, {"b": "false"}),
        (
            "NOT (n = 1 OR s = 'a') AND b = FALSE",
            {"n": "2", "s": "b", "b": "false"},
            {"n": "2", "s": "a", "b": "false"},
        ),
    ],
)
def test_5_4_each_word_of_the_subset_selects(expression: str, fits: dict[str, str], fits_not: dict[str, str]) -> None:
    for text in (expression, expression.replace("AND", "and").replace("NOT", "nOt").replace("IS", "is")):
        assert wants(text, stored(0, **fits))
        assert not wants(text, stored(0, **fits_not))


def test_5_4_tags_is_the_tag() -> None:
    assert wants("TAGS IN ('a', 'b')", stored(0, "b"))
    assert not wants("TAGS IN ('a', 'b')", stored(0, "c"))


def test_5_4_a_bad_expression_is_illegal_filter_expression() -> None:
    for expression in ("a LIKE 'x'", "a =", "", "a = 1 ;"):
        with pytest.raises(IllegalFilterExpression) as caught:
            message_filter(expression, is_sql=True)
        assert status_of(caught.value).code == definition_pb2.ILLEGAL_FILTER_EXPRESSION


def test_5_4_what_is_filtered_out_is_skipped_for_the_group_without_delivery() -> None:
    progress = Progress()
    progress.start(*KEY, 0)
    queue = progress.queue(*KEY)
    assert queue is not None
    read = ReadResult([stored(n, n=str(n)) for n in range(10)], 10, 0, 10)
    found = message_filter("n IN (4, 7)", is_sql=True).sift(read, 32)
    offsets = [message.queue_offset for message in found.messages]
    progress.deliver(queue, offsets, found.next_offset, deadline_ms=1_000, client_id="")
    assert offsets == [4, 7]
    assert (queue.committed, queue.next) == (4, 10)
    for offset in offsets:
        progress.ack(queue, offset, 1, expires_ms=1_000, now_ms=1)
    assert queue.committed == 10
    progress.check()


def test_rg_8_members_that_want_different_messages_are_found() -> None:
    def member(client_id: str, wanted: FilterExpression) -> Member:
        return Member(client_id=client_id, protocol=Protocol.V2, subscriptions=(Subscription("t", wanted),))

    tags, sql = FilterExpression("a"), FilterExpression.sql("TAGS = 'a'")
    assert different_filters(wanted_of([member("x", tags), member("y", tags)])) == {}
    assert different_filters(wanted_of([member("x", tags), member("y", sql)])) == {"t": {sql: ["y"], tags: ["x"]}}
