"""A message with a trace context: the spans of its way, and the end of each delivery."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_broker.core.diagnosis.message_spans import SETTLE_MS, DeliveryKey, MessageSpan, MessageSpans, TracedMessage

from evenq.model.span_attributes import ATTEMPT, CLIENT_ID, GROUP, OUTCOME, PARTITION

KEY = DeliveryKey(1, 2, 3, 7)


def message(topic: str = "orders", message_id: str = "id") -> TracedMessage:
    return TracedMessage(
        trace_id=11, parent_id=22, topic=topic, queue_id=3, message_id=message_id, store_ms=100, attributes={"x": 1}
    )


def deliver(spans: MessageSpans, key: DeliveryKey = KEY, **changes: Any) -> list[MessageSpan]:
    options = {"group": "g", "client_id": "", "number": 1, "attempt": 1, "at_ms": 200, "until_ms": 30_200} | changes
    return spans.delivered(key, message(), **options)


def shown(spans: list[MessageSpan]) -> list[tuple[str, int, int, object]]:
    return [(one.name, one.start_ms, one.end_ms, one.attributes.get(OUTCOME)) for one in spans]


def test_a_message_is_stored_waited_for_delivered_and_acked() -> None:
    spans = MessageSpans("a")
    stored = spans.stored(message(), safe_ms=105)
    assert (stored.name, stored.trace_id, stored.parent_id, stored.start_ms, stored.end_ms) == (
        "store orders", 11, 22, 100, 105,
    )  # fmt: skip
    assert stored.attributes[PARTITION] == "a/3"
    [wait] = deliver(spans)
    assert shown([wait]) == [("wait orders", 100, 200, None)]
    spans.received_by(KEY, 1, "client")
    [delivery] = spans.acked(KEY, at_ms=250)
    assert shown([delivery]) == [("deliver orders", 200, 250, "acked")]
    assert (delivery.attributes[GROUP], delivery.attributes[ATTEMPT], delivery.attributes[CLIENT_ID]) == (
        "g", 1, "client",
    )  # fmt: skip
    assert delivery.error == ""
    assert len(spans) == 0
    assert spans.acked(KEY, at_ms=260) == [], "a second ack"


def test_a_retry_ends_the_delivery_where_the_client_gave_it_back_and_the_wait_begins_there() -> None:
    spans = MessageSpans("a")
    deliver(spans, client_id="push")
    assert spans.changed(KEY, attempt=1, at_ms=300, until_ms=1_300) == []
    again = deliver(spans, number=2, attempt=2, at_ms=1_310, until_ms=40_000)
    assert shown(again) == [("deliver orders", 200, 300, "retried"), ("wait orders", 300, 1_310, None)]
    assert again[0].error == "retried"
    assert shown(spans.acked(KEY, at_ms=1_400)) == [("deliver orders", 1_310, 1_400, "acked")]


def test_more_time_for_a_delivery_that_no_life_holds_is_no_retry() -> None:
    spans = MessageSpans("a")
    deliver(spans)
    assert spans.changed(KEY, attempt=1, at_ms=300, until_ms=60_000) == []
    assert list(spans.tick(50_000)) == []
    assert shown(spans.acked(KEY, at_ms=55_000)) == [("deliver orders", 200, 55_000, "acked")]


def test_silence_is_a_timeout_as_soon_as_that_is_certain_and_reported_once() -> None:
    spans = MessageSpans("a")
    deliver(spans)
    assert list(spans.tick(30_200 + SETTLE_MS - 1)) == []
    [over] = spans.tick(30_200 + SETTLE_MS)
    assert shown([over]) == [("deliver orders", 200, 30_200, "timed_out")]
    assert list(spans.tick(90_000)) == []
    assert shown(deliver(spans, number=2, attempt=2, at_ms=91_000)) == [("wait orders", 30_200, 91_000, None)]


def test_a_retry_of_a_long_pause_is_reported_before_the_redelivery() -> None:
    spans = MessageSpans("a")
    deliver(spans, client_id="push")
    spans.changed(KEY, attempt=1, at_ms=300, until_ms=7_200_000)
    assert shown(list(spans.tick(300 + SETTLE_MS))) == [("deliver orders", 200, 300, "retried")]


def test_an_answer_that_no_client_read_was_not_an_attempt() -> None:
    spans = MessageSpans("a")
    deliver(spans)
    [back] = spans.changed(KEY, attempt=0, at_ms=210, until_ms=0)
    assert (back.attributes[OUTCOME], back.error) == ("returned", "")
    assert shown(deliver(spans, number=2, at_ms=220)) == [("wait orders", 210, 220, None)]


def test_the_same_delivery_again_for_a_lost_answer_is_one_delivery() -> None:
    spans = MessageSpans("a")
    deliver(spans)
    assert deliver(spans, at_ms=400, until_ms=30_400) == []
    assert shown(spans.acked(KEY, at_ms=500)) == [("deliver orders", 200, 500, "acked")]


def test_a_dead_letter_is_stored_before_its_original_is_finished() -> None:
    spans = MessageSpans("a")
    deliver(spans, client_id="push", attempt=16, number=16)
    spans.changed(KEY, attempt=16, at_ms=300, until_ms=10_300)
    letter = spans.stored(message("%DLQ%g"), safe_ms=320)
    assert letter.name == "store %DLQ%g"
    [dead] = spans.acked(KEY, at_ms=330)
    assert shown([dead]) == [("deliver orders", 200, 300, "dead_lettered")]
    assert dead.error == "dead_lettered"
    deliver(spans)
    assert spans.acked(KEY, at_ms=340)[0].attributes[OUTCOME] == "acked", "a letter counts once"


def test_without_the_previous_delivery_the_begin_of_the_wait_is_not_known() -> None:
    spans = MessageSpans("a")
    assert deliver(spans, number=3, attempt=3) == []
    assert shown(spans.acked(KEY, at_ms=250)) == [("deliver orders", 200, 250, "acked")]


def test_groups_are_apart() -> None:
    spans = MessageSpans("a")
    deliver(spans)
    deliver(spans, KEY._replace(group_id=9), group="other")
    [one] = spans.acked(KEY._replace(group_id=9), at_ms=250)
    assert one.attributes[GROUP] == "other"
    assert KEY in spans


def test_the_number_of_deliveries_is_bounded_and_the_oldest_is_reported() -> None:
    spans = MessageSpans("a", deliveries_max=2)
    for offset in range(3):
        made = deliver(spans, KEY._replace(offset=offset), at_ms=200 + offset)
    assert shown(made)[-1] == ("deliver orders", 200, 202, "unsettled")
    assert len(spans) == 2


def test_the_end_of_the_broker_reports_what_is_not_settled_once() -> None:
    spans = MessageSpans("a")
    deliver(spans)
    deliver(spans, KEY._replace(offset=8), until_ms=500)
    assert len(list(spans.tick(500 + SETTLE_MS))) == 1
    assert shown(list(spans.close(4_000))) == [("deliver orders", 200, 4_000, "unsettled")]
    assert list(spans.close(5_000)) == []


@pytest.mark.parametrize("clock_ms", [90, 100])
def test_a_span_never_ends_before_it_begins(clock_ms: int) -> None:
    assert MessageSpans("a").stored(message(), safe_ms=clock_ms).end_ms == 100
