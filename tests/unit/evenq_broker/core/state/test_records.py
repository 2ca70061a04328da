"""State records: what goes in comes out, and what is not ours is refused."""

from __future__ import annotations

import json

import pytest
from evenq_broker.core.state.records import (
    Acked,
    BrokerForgotten,
    BrokerKnown,
    BrokerTopics,
    ChangeKind,
    ChangePut,
    Committed,
    Counted,
    Delivered,
    DrainPut,
    GroupPut,
    GroupRemoved,
    HalfPut,
    HalvesEnded,
    Invisible,
    KeyPut,
    LiteClosed,
    LiteOpened,
    Op,
    TopicPut,
    TopicRemoved,
    Unsubscribed,
    decode,
    encode,
)
from evenq_broker.core.state.schedule_records import Missed, Schedule, ScheduleFired, SchedulePut, ScheduleRemoved
from evenq_broker.core.state.staging_records import (
    BatchDecided,
    QueryForgotten,
    QueryKnown,
    RolledForward,
    StagedEnded,
    StagedMoved,
    StagedPut,
    TokensDropped,
    staging_json,
    staging_op_of,
)

from evenq.errors import StoreCorrupted
from evenq.model import BalancePolicy, GroupConfig, MessageType, Permission, StartFrom, TopicConfig, Weight
from evenq.model.retry import CLASSIC_RETRY, RetryKind, RetryPolicy

EVERY: list[Op] = [
    KeyPut(b"k" * 32, 7, 9),
    TopicPut(TopicConfig(name="t", topic_id=3, message_type=MessageType.FIFO, read_queues=8, write_queues=4)),
    TopicPut(TopicConfig(name="u", topic_id=4, permission=Permission.READ, read_queues=3, write_queues=3, widest=9)),
    TopicRemoved(3),
    GroupPut(
        GroupConfig(name="g", group_id=4, ordered=True, max_attempts=5, start_from=StartFrom.FIRST, strategy="AVG")
    ),
    GroupRemoved(4),
    Committed(1, 2, 3, 1 << 40, reset=True),
    Acked(1, 2, 3, 1 << 40),
    Delivered(1, 2, 3, 10, 1 << 41, "client-ü", (7, 8), (1, 2), (1, 1)),
    Delivered(1, 2, 3, 10, 0, "", (), (), ()),
    Invisible(1, 2, 3, 5, 6, 7, 1 << 41),
    Counted(1, 2, 3, 1 << 40, (7, 1 << 40), (1, 0xFFFF)),
    Counted(1, 2, 3, 0),
    HalfPut(1 << 40, 3, 1 << 41, -1, 1 << 40, 1 << 41, 15, 65_535),
    HalvesEnded((1, 1 << 50), (1, 2)),
    HalvesEnded((), ()),
    Unsubscribed(4, 3),
    LiteOpened(4, 1 << 20, 9, "chat-1"),
    LiteClosed(4, 1 << 20),
    DrainPut(on=True),
    DrainPut(on=False),
    BrokerKnown("broker-b"),
    BrokerKnown("broker-c", 1 << 41, 7, 9),
    BrokerForgotten("broker-b"),
    BrokerTopics("broker-c", {"t": 4, "u": 0}),
    ChangePut(ChangeKind.TOPIC_DELETED, "t", "0123456789abcdef", 1 << 41, ("broker-b", "broker-c")),
    ChangePut(ChangeKind.TOPIC_MADE, "t", "0123456789abcdef", 1 << 41, ("broker-b",)),
    ChangePut(ChangeKind.GROUP_DELETED, "g", "", 1 << 41, ()),
    GroupPut(GroupConfig(name="g", group_id=4, made_ms=1 << 41)),
    TopicPut(TopicConfig(name="v", topic_id=5, uid="0123456789abcdef")),
    StagedPut(8, 9, "q", 0, 1, 2, "ab" * 16, 3, "broker-a", 4, 5, 6, 7),
    StagedMoved(8, 99),
    StagedEnded((8, 9)),
    QueryKnown("q", "broker-a", 5, 3),
    QueryKnown("q", "broker-a", 5, 3, "u", ("t",), 7, 2**64 - 1),
    QueryKnown("q", "broker-a", 5, -1, "u", ()),
    QueryForgotten("q"),
    BatchDecided("q", 4, (("broker-a", "ab"), ("broker-b", "ab")), 6),
    BatchDecided("q", 4, (), 6, 0, 5),
    RolledForward("q", 4, "broker-b"),
    TokensDropped("q", 5, ("cd",)),
    SchedulePut(Schedule(topic_id=5, name="s", uid="ab" * 16, every_ms=1_000, body=b"x")),
    SchedulePut(
        Schedule(
            topic_id=5,
            name="s",
            uid="ab" * 16,
            cron="0 6 * * * Europe/Berlin",
            missed=Missed.ALL,
            missed_max=7,
            body=bytes(range(256)),
            tag="a",
            keys=("k1", "k2"),
            message_group="g",
            properties=(("ä", "ü"), ("p", "")),
            paused=True,
            made_ms=1 << 41,
            done_ms=1 << 41,
            fired=3,
            passed=4,
            last_ms=1 << 41,
        )
    ),
    ScheduleFired(5, "s", 1 << 41, 3, 4, 1 << 41),
    ScheduleRemoved(5, "s"),
]


def test_every_operation_survives_the_record() -> None:
    assert list(decode(encode(EVERY))) == EVERY


def test_a_topic_of_a_journal_from_before_narrowing_was_never_wider() -> None:
    text = b'{"name":"t","id":3,"type":"NORMAL","read":8,"write":8,"permission":4,"retention_ms":null}'
    [op] = decode(bytes((1, 2)) + len(text).to_bytes(4, "big") + text)
    assert op == TopicPut(TopicConfig(name="t", topic_id=3, read_queues=8, write_queues=8))


def test_an_ack_takes_21_bytes() -> None:
    assert len(encode([Acked(1, 2, 3, 4)])) == 22


@pytest.mark.parametrize("record", [b"", b"\x02", b"\x01\xff", encode(EVERY)[:-3], b"\x01\x02\x00\x00\x00\x02{]"])
def test_what_is_not_a_record_is_refused(record: bytes) -> None:
    with pytest.raises(StoreCorrupted):
        list(decode(record))


@pytest.mark.parametrize(
    "retry",
    [
        CLASSIC_RETRY,
        RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(1, 2_000)),
        RetryPolicy(kind=RetryKind.EXPONENTIAL, initial_ms=5, max_ms=90, multiplier=1.5),
    ],
)
def test_a_groups_retry_policy_survives(retry: RetryPolicy) -> None:
    op = GroupPut(GroupConfig(name="g", group_id=3, retry=retry))
    assert list(decode(encode([op]))) == [op]


@pytest.mark.parametrize(
    "balance", [BalancePolicy(), BalancePolicy(weight=Weight.LAG, moves_max=3, hold_ms=5, hold_lag_max=7)]
)
def test_a_groups_balance_policy_survives(balance: BalancePolicy) -> None:
    op = GroupPut(GroupConfig(name="g", group_id=3, balance=balance))
    assert list(decode(encode([op]))) == [op]


def test_a_group_of_a_journal_from_before_retry_and_balance_policies_has_the_usual_ones() -> None:
    text = b'{"name":"g","id":3,"ordered":false,"attempts":17,"start":"LAST","strategy":""}'
    [op] = decode(bytes((1, 4)) + len(text).to_bytes(4, "big") + text)
    assert op == GroupPut(GroupConfig(name="g", group_id=3))


def test_a_query_of_a_journal_from_before_it_had_an_owner_has_none_and_older_programs_read_what_they_know() -> None:
    assert staging_op_of({"op": "query", "is": ["q", "a", 5, 3]}) == QueryKnown("q", "a", 5, 3)
    written = staging_json(QueryKnown("q", "a", 5, 3, "u", ("t",)))
    assert written == {"op": "query", "is": ("q", "a", 5, 3), "more": {"user": "u", "topics": ("t",)}}
    assert staging_op_of({**written, "more": {"user": "u", "later": 1}}) == QueryKnown("q", "a", 5, 3, "u")


def test_a_program_that_does_not_know_unconfirmed_changes_reads_the_end_of_a_topic_that_never_was() -> None:
    """A downgrade opens the journal. Numbers of topics begin with 1."""
    record = encode([ChangePut(ChangeKind.TOPIC_DELETED, "t", "u", 7, ("b",))])
    kind, fields = record[1], json.loads(record[6:])
    assert kind == encode([TopicRemoved(3)])[1]
    assert fields.pop("change") == ["topic-deleted", "t", "u", 7, ["b"]]
    assert fields == {"id": 0}
