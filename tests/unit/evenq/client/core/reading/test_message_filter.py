"""A filter of the client passes the messages that a broker would send."""

from __future__ import annotations

import pytest

from evenq.client.core.reading.message_filter import filter_of
from evenq.errors import IllegalFilterExpression
from evenq.model import FilterExpression, MessageQueue, QueueOffset, ReceivedMessage


def message(tag: str | None = None, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="t", body=b"b", message_id="m", tag=tag, keys=(), properties=properties, message_group=None,
        queue=MessageQueue("t", "a", 0), queue_offset=QueueOffset(0), born_ms=0, store_ms=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "given", "passes"),
    [
        (FilterExpression(), message(), True),
        (FilterExpression("a || b"), message("b"), True),
        (FilterExpression("a || b"), message("c"), False),
        (FilterExpression("a"), message(), False),
        (FilterExpression.sql("n > 5 AND TAGS = 'a'"), message("a", n="6"), True),
        (FilterExpression.sql("n > 5"), message("a"), False),
        (FilterExpression.sql("TAGS IS NULL"), message(None, TAGS="x"), True),
        (FilterExpression.sql("TAGS = 'x'"), message("a", TAGS="x"), False),
    ],
)
def test_messages_pass_as_at_a_broker(expression: FilterExpression, given: ReceivedMessage, *, passes: bool) -> None:
    assert filter_of(expression)(given) is passes


def test_an_illegal_expression_is_refused() -> None:
    with pytest.raises(IllegalFilterExpression):
        filter_of(FilterExpression.sql("n ="))
