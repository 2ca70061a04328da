"""Transactions as wire-contract.md wants them (3.7, 3.13, 4.5, 5.6, section 8: 24, 25; section 9: 14), on the pure cores.

With whole brokers: tests/integration/test_transactions.py (24, 25); with the official SDK: tests/compat.
"""

from __future__ import annotations

import pytest
from evenq_broker.core.sending.validation import MessageLimits, checked
from evenq_broker.core.state.records import decode, encode
from evenq_broker.core.transactions.half_messages import HalfHeader, TransactionIds, transaction_broker_of
from evenq_broker.core.transactions.table import DecisionStatus, TimerAction, TransactionOutcome, TransactionTable
from evenq_broker.loops.clients.streams import Streams

from evenq.errors import BadRequest, InvalidTransactionId, MessageTypeConflict
from evenq.model import MessageType, TopicConfig
from evenq.runtime.clock import FakeClock
from evenq.store import TimerAppend
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2

HEADER = HalfHeader(None, 0, 0, 0, "c")
LIMITS = MessageLimits(body_bytes_max=1 << 20, properties_max=128, properties_bytes_max=1 << 14, delay_max_ms=1 << 40)
HOUR = 3_600_000


def half(recovery_ms: int = -1) -> v2.Message:
    message = v2.Message(body=b"b")
    message.system_properties.message_id, message.system_properties.message_type = "id", v2.TRANSACTION
    if recovery_ms >= 0:
        set_duration_ms(message.system_properties.orphaned_transaction_recovery_duration, recovery_ms)
    return message


def table(**limits: int) -> TransactionTable:
    return TransactionTable(
        **{"open_max": 10, "decisions_max": 10, "checks_max": 15, "age_max_ms": 72 * HOUR, **limits}
    )


@pytest.mark.parametrize(("recovery_ms", "first_ms"), [(-1, 6_000), (0, 6_000), (1, 1), (90_000, 90_000), (HOUR, HOUR)])
def test_4_5_the_first_check_comes_after_six_seconds_or_when_the_message_says(recovery_ms: int, first_ms: int) -> None:
    topic = TopicConfig(name="t", topic_id=1, message_type=MessageType.TRANSACTION)
    stored = checked(half(recovery_ms), topic, LIMITS, now_ms=1_000)
    assert isinstance(stored, TimerAppend), "5.6: half, in no queue yet"
    assert stored.due_ms == 1_000 + first_ms


def test_3_7_a_recovery_time_over_an_hour_is_a_bad_request() -> None:
    topic = TopicConfig(name="t", topic_id=1, message_type=MessageType.TRANSACTION)
    with pytest.raises(BadRequest, match="within an hour"):
        checked(half(HOUR + 1), topic, LIMITS, now_ms=0)


@pytest.mark.parametrize("kind", MessageType)
def test_3_7_only_topics_of_their_type_and_mixed_ones_take_transactions(kind: MessageType) -> None:
    topic = TopicConfig(name="t", topic_id=1, message_type=kind)
    if kind in {MessageType.TRANSACTION, MessageType.MIXED}:
        assert isinstance(checked(half(), topic, LIMITS, now_ms=0), TimerAppend)
        return
    with pytest.raises(MessageTypeConflict, match=r"--type (MIXED|TRANSACTION)`"):
        checked(half(), topic, LIMITS, now_ms=0)


def test_3_7_a_transaction_message_has_no_message_group_and_no_delivery_time() -> None:
    topic = TopicConfig(name="t", topic_id=1, message_type=MessageType.MIXED)
    grouped, delayed = half(), half()
    grouped.system_properties.message_group = "g"
    delayed.system_properties.delivery_timestamp.seconds = 1 << 31
    for message in (grouped, delayed):
        with pytest.raises(MessageTypeConflict):
            checked(message, topic, LIMITS, now_ms=0)


def test_3_13_a_second_commit_is_ok_and_a_commit_after_a_rollback_changes_nothing() -> None:
    made = table()
    for number, first in ((1, TransactionOutcome.COMMITTED), (2, TransactionOutcome.ROLLED_BACK)):
        made.begin(number, 1, first_ms=0, due_ms=6_000)
        assert made.decide(number, first) is DecisionStatus.FIRST
        made.settle(number, first)
    assert made.decide(1, TransactionOutcome.COMMITTED) is DecisionStatus.SAME
    assert made.decide(2, TransactionOutcome.COMMITTED) is DecisionStatus.OTHER
    assert made.outcome(2) is TransactionOutcome.ROLLED_BACK


def test_3_13_an_unknown_id_is_an_invalid_transaction_id() -> None:
    with pytest.raises(InvalidTransactionId):
        TransactionIds("a", b"k" * 32).read(TransactionIds("a", b"other key").make(1, 2))


def test_24_an_id_names_the_broker_that_keeps_the_half_message() -> None:
    assert transaction_broker_of(TransactionIds("broker-b", b"k" * 32).make(1, 2)) == "broker-b"


def test_25_when_the_sender_is_gone_another_producer_of_the_topic_is_asked() -> None:
    streams = Streams(FakeClock())
    sender, other, stranger = streams.open("sender"), streams.open("other"), streams.open("stranger")
    streams.publish(sender, ["t"])
    streams.publish(other, ["t", "u"])
    streams.publish(stranger, ["u"])
    assert streams.sender("sender") == [sender]
    streams.close(sender)
    assert streams.sender("sender") == []
    assert streams.producers("t", but="sender") == [other]


def test_4_5_after_fifteen_checks_it_is_given_up_and_those_that_met_nobody_do_not_count() -> None:
    made = table()
    made.begin(5, 1, first_ms=0, due_ms=6_000)
    now_ms = 6_000
    for number in range(30):
        assert made.fire(5, 5 + number, HEADER, 1, now_ms=now_ms) is TimerAction.CHECK
        (made.checked if number % 2 else made.missed)(5)
        now_ms += 30_000
    assert made.fire(5, 99, HEADER, 1, now_ms=now_ms) is TimerAction.GIVE_UP
    assert made.decide(5, TransactionOutcome.COMMITTED) is DecisionStatus.GIVEN_UP


def test_open_ones_counts_and_decisions_are_the_same_after_a_restart() -> None:
    made, again = table(), table()
    for number in (1, 2, 3):
        made.begin(number, 1, first_ms=7, due_ms=6_000)
    made.checked(1)
    made.renewed(1, 44, 36_000)
    made.decide(2, TransactionOutcome.COMMITTED)
    made.settle(2, TransactionOutcome.COMMITTED)
    for op in decode(encode(made.dump())):
        again.apply(op)  # type: ignore[arg-type]  # only such ops went in
    assert again.dump() == made.dump()
