"""Spans of single messages, for the trace that a message belongs to: stored, waited for, delivered.

Problem. A trace shows a message only where a client records it. The official SDKs record nothing, so between the send
and the processing there is a hole, and nobody sees a slow disk, a waiting group or a third delivery.

Idea. A message that carries a sampled trace context gets these spans, all of them children of the context, so that they
stand beside the spans of clients:

    send orders                       of the producer, or any span whose context the program wrote into the message
    |- store orders                   from its store time until it is safe and consumable
    |- wait orders       attempt 1    until a client of the group received it
    |- deliver orders    attempt 1    until the client settled it: outcome `retried`
    |- wait orders       attempt 2    from there on, with the pause before a retry
    `- deliver orders    attempt 2    outcome `acked`

A broker cannot see that a client has failed: it sees an ack, a changed invisible time, a dead letter or silence. A
changed invisible time is a retry, or a request for more time. So a delivery is reported when its end is certain: by
the ack, by the next delivery, or SETTLE_MS after its invisible time.

Invariants:
- At most `deliveries_max` deliveries are remembered. The oldest is reported as `unsettled` and forgotten.
- A delivery is reported once. A reported one stays only as the beginning of the wait for the next delivery.
- Nothing else about a group is known here: a first delivery after a restart of the broker may have any attempt, and
  then the beginning of its wait is not known, so it has no `wait` span.

Pure: the caller (`loops.diagnosis.span_follower`) passes events in the order of the journal, with ms since the epoch.
Names: https://opentelemetry.io/docs/specs/semconv/messaging/rocketmq/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from evenq.model.names import DLQ_PREFIX
from evenq.model.span_attributes import (
    ATTEMPT,
    CLIENT_ID,
    DESTINATION,
    GROUP,
    MESSAGE_ID,
    OPERATION_NAME,
    OPERATION_TYPE,
    OUTCOME,
    PARTITION,
    SYSTEM,
)
from evenq_broker.core.delivery.queue_progress import READY

DELIVERIES_MAX = 20_000
LETTERS_MAX = 2_000
"""Dead letters whose original is not finished yet; a broker moves a few at a time."""
SETTLE_MS = 2_000
"""After the end of a delivery, for the ack or the dead letter that may follow."""

AttributeValue = str | int | Sequence[str]


class Outcome(StrEnum):
    """Ends of a delivery."""

    ACKED = "acked"
    RETRIED = "retried"  # the client gave it back
    TIMED_OUT = "timed_out"  # not settled within its invisible time
    DEAD_LETTERED = "dead_lettered"
    RETURNED = "returned"  # not counted as an attempt: no client received it, or the client suspended it
    UNSETTLED = "unsettled"  # the broker stopped, or had too many deliveries to remember


_FAILED = frozenset({Outcome.RETRIED, Outcome.TIMED_OUT, Outcome.DEAD_LETTERED})


class DeliveryKey(NamedTuple):
    """A message and a group, by ids."""

    group_id: int
    topic_id: int
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMessage:
    """A stored message with a sampled trace context."""

    trace_id: int
    parent_id: int
    topic: str
    queue_id: int
    message_id: str
    store_ms: int
    attributes: Mapping[str, AttributeValue]
    """Its tag, keys, kind, message group and size, as attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpan:
    """One ended span."""

    name: str
    trace_id: int
    parent_id: int
    start_ms: int
    end_ms: int
    attributes: Mapping[str, AttributeValue]
    error: str = ""
    """Kind of the failure; empty: the operation did not fail."""


@dataclass(slots=True, kw_only=True)
class _Delivery:
    message: TracedMessage
    group: str
    number: int
    attempt: int
    client_id: str
    held: bool
    """The life of its client holds it: then a change of the invisible time is never a request for more time."""
    began_ms: int
    until_ms: int
    """End of its invisible time."""
    ended_ms: int = 0
    """Time of the last change of the invisible time; 0: there was none."""
    reported_ms: int = 0
    """End of the reported span; 0: not reported yet."""

    def certain_ms(self) -> int:
        """Returns from when on its end is certain."""
        if self.ended_ms and (self.held or self.until_ms == READY):
            return self.ended_ms + SETTLE_MS
        return self.until_ms + SETTLE_MS


class MessageSpans:
    """Makes the spans of this broker's messages."""

    def __init__(self, broker_name: str, *, deliveries_max: int = DELIVERIES_MAX) -> None:
        self._broker_name = broker_name
        self._deliveries_max = deliveries_max
        self._deliveries: dict[DeliveryKey, _Delivery] = {}
        """The newest delivery of each message and group, the oldest first."""
        self._letters: dict[tuple[str, str], None] = {}
        """Group and message id of dead letters, the oldest first."""

    def __len__(self) -> int:
        return len(self._deliveries)

    def __contains__(self, key: DeliveryKey) -> bool:
        return key in self._deliveries

    def stored(self, message: TracedMessage, *, safe_ms: int) -> MessageSpan:
        """Returns the span of a message that is consumable since `safe_ms`."""
        if message.topic.startswith(DLQ_PREFIX):
            self._letters[message.topic.removeprefix(DLQ_PREFIX), message.message_id] = None
            if len(self._letters) > LETTERS_MAX:
                del self._letters[next(iter(self._letters))]
        return self._span("store", message, message.store_ms, safe_ms, {OPERATION_TYPE: "send"})

    def delivered(
        self,
        key: DeliveryKey,
        message: TracedMessage,
        *,
        group: str,
        client_id: str,
        number: int,
        attempt: int,
        at_ms: int,
        until_ms: int,
    ) -> list[MessageSpan]:
        """Begins a delivery. Returns the span of the wait for it, after that of the previous delivery."""
        previous = self._deliveries.pop(key, None)
        if previous is not None and previous.number == number and not previous.reported_ms:
            previous.until_ms = until_ms  # the answer was lost, and the client requested it again
            self._deliveries[key] = previous
            return []
        spans: list[MessageSpan] = []
        if previous is not None:
            spans += self._over(previous, at_ms)
        waited_ms = message.store_ms if previous is None else previous.reported_ms
        if previous is not None or attempt == 1:
            spans.append(self._span("wait", message, waited_ms, at_ms, {GROUP: group, ATTEMPT: attempt}))
        self._deliveries[key] = _Delivery(
            message=message,
            group=group,
            number=number,
            attempt=attempt,
            client_id=client_id,
            held=bool(client_id),
            began_ms=at_ms,
            until_ms=until_ms,
        )
        while len(self._deliveries) > self._deliveries_max:
            oldest = self._deliveries.pop(next(iter(self._deliveries)))
            spans += self._report(oldest, Outcome.UNSETTLED, at_ms)
        return spans

    def received_by(self, key: DeliveryKey, number: int, client_id: str) -> None:
        """Notes the client of a delivery that does not depend on the client's life."""
        delivery = self._deliveries.get(key)
        if delivery is not None and delivery.number == number:
            delivery.client_id = client_id

    def changed(self, key: DeliveryKey, *, attempt: int, at_ms: int, until_ms: int) -> list[MessageSpan]:
        """Notes a new end of the invisible time; `attempt`: what the delivery counts as now."""
        delivery = self._deliveries.get(key)
        if delivery is None or delivery.reported_ms:
            return []
        delivery.ended_ms, delivery.until_ms = at_ms, until_ms
        return self._report(delivery, Outcome.RETURNED, at_ms) if attempt < delivery.attempt else []

    def acked(self, key: DeliveryKey, *, at_ms: int) -> list[MessageSpan]:
        """Ends a delivery for good. The broker itself acknowledges a message after it has stored its dead letter."""
        delivery = self._deliveries.pop(key, None)
        if delivery is None:
            return []
        letter = (delivery.group, delivery.message.message_id)
        if letter in self._letters:
            del self._letters[letter]
            return self._report(delivery, Outcome.DEAD_LETTERED, delivery.ended_ms or at_ms)
        return self._report(delivery, Outcome.ACKED, at_ms)

    def tick(self, now_ms: int) -> Iterator[MessageSpan]:
        """Yields the spans of deliveries whose end is certain by now."""
        for delivery in self._deliveries.values():
            if not delivery.reported_ms and delivery.certain_ms() <= now_ms:
                yield from self._over(delivery, now_ms)

    def close(self, now_ms: int) -> Iterator[MessageSpan]:
        """Yields the spans of all deliveries that are not settled. The broker stops."""
        for delivery in self._deliveries.values():
            yield from self._report(delivery, Outcome.UNSETTLED, now_ms)
        self._deliveries.clear()

    def _over(self, delivery: _Delivery, now_ms: int) -> list[MessageSpan]:
        """Ends a delivery that was not acknowledged."""
        outcome = Outcome.RETRIED if delivery.ended_ms else Outcome.TIMED_OUT
        return self._report(delivery, outcome, delivery.ended_ms or min(now_ms, delivery.until_ms))

    def _report(self, delivery: _Delivery, outcome: Outcome, end_ms: int) -> list[MessageSpan]:
        if delivery.reported_ms:
            return []
        delivery.reported_ms = max(end_ms, delivery.began_ms, 1)
        attributes: dict[str, AttributeValue] = {
            OPERATION_TYPE: "receive",
            GROUP: delivery.group,
            ATTEMPT: delivery.attempt,
            OUTCOME: outcome.value,
        }
        if delivery.client_id:
            attributes[CLIENT_ID] = delivery.client_id
        error = outcome.value if outcome in _FAILED else ""
        span = self._span("deliver", delivery.message, delivery.began_ms, delivery.reported_ms, attributes, error)
        return [span]

    def _span(
        self,
        operation: str,
        message: TracedMessage,
        start_ms: int,
        end_ms: int,
        attributes: Mapping[str, AttributeValue],
        error: str = "",
    ) -> MessageSpan:
        return MessageSpan(
            name=f"{operation} {message.topic}",
            trace_id=message.trace_id,
            parent_id=message.parent_id,
            start_ms=start_ms,
            end_ms=max(start_ms, end_ms),
            attributes={
                SYSTEM: "rocketmq",
                OPERATION_NAME: operation,
                DESTINATION: message.topic,
                PARTITION: f"{self._broker_name}/{message.queue_id}",
                MESSAGE_ID: message.message_id,
                **message.attributes,
                **attributes,
            },
            error=error,
        )
