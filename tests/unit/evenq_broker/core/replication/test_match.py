"""Where two logs part by their epochs, the last record that both have is compared, if both sides know it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from evenq_broker.core.replication.actions import ClosePeer, Send, SendEpochs, Truncate
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.messages import EpochsReply, EpochsRequest, LastRecord
from evenq_broker.core.replication.replica import Replica
from group import envelope, only, ready, replica, seen

TABLE = EpochTable(0, (EpochStart(1, 0),))


def asked(leader: Replica, table: EpochTable | None, end: int) -> Send | SendEpochs:
    (answer,) = leader.receive(envelope(1, EpochsRequest(7, table, end)), 0)
    assert isinstance(answer, Send | SendEpochs)
    assert answer.envelope.body == EpochsReply(7, 11, TABLE, leader.log.end)
    return answer


def leading(end: int) -> Replica:
    """Broker 0 leads epoch 1 with a log of that end."""
    one = ready()
    one.appended(1, end)
    return one


@pytest.mark.parametrize(
    ("table", "end", "match"),
    [
        (TABLE, 20, 20),
        (TABLE, 90, 30),
        (EpochTable(0, (EpochStart(1, 0), EpochStart(2, 15))), 40, 15),
        (EpochTable(10, (EpochStart(1, 10),)), 25, 25),
    ],
    ids=["it lacks records", "it has more", "it has another epoch", "it begins later"],
)
def test_a_leader_answers_with_the_record_before_the_place_where_the_logs_part(
    table: EpochTable, end: int, match: int
) -> None:
    answer = asked(leading(30), table, end)
    assert isinstance(answer, SendEpochs)
    assert (answer.to, answer.match) == (1, match)


@pytest.mark.parametrize(
    "table", [None, EpochTable(), EpochTable(0, (EpochStart(2, 0),))], ids=["version before", "empty", "another epoch"]
)
def test_who_says_nothing_of_its_log_or_shares_nothing_is_answered_at_once(table: EpochTable | None) -> None:
    assert isinstance(asked(leading(30), table, 20), Send)


def matching() -> Replica:
    """Broker 1, with a log of 20, asks broker 0 where theirs part."""
    one = replica(1, epoch_seen=1)
    one.recovered(TABLE, 20, 0)
    (send,) = only(one.observed(seen(5, epoch=1, leader=0), 0), Send)
    assert send.envelope.body == EpochsRequest(one.follower.request, TABLE, 20)
    return one


def test_a_follower_compares_before_anything_is_cut() -> None:
    one, last = matching(), LastRecord(5, 20, 77)
    reply = EpochsReply(one.follower.request, 11, TABLE, 30, last)
    assert one.receive(envelope(0, reply), 0) == [Truncate(20, 0, 0, last)]


@pytest.mark.parametrize("last", [None, LastRecord(5, 15, 77)], ids=["of a version before", "of another place"])
def test_a_follower_compares_nothing_that_the_leader_does_not_say_of_this_place(last: LastRecord | None) -> None:
    one = matching()
    assert one.receive(envelope(0, EpochsReply(one.follower.request, 11, TABLE, 30, last)), 0) == [Truncate(20)]


@pytest.mark.parametrize("last", [LastRecord(20, 20, 1), LastRecord(-1, 20, 1), LastRecord(5, 31, 1)])
def test_a_last_record_that_cannot_be_closes_the_link(last: LastRecord) -> None:
    one = matching()
    (closed,) = one.receive(envelope(0, EpochsReply(one.follower.request, 11, TABLE, 30, last)), 0)
    assert isinstance(closed, ClosePeer)
    assert f"a last record from {last.start} to {last.end} of a log that ends at 30" in closed.reason


@pytest.mark.parametrize(
    "body",
    [
        EpochsRequest(1, TABLE, -1),
        EpochsRequest(1, TABLE, 1 << 62),
        EpochsRequest(1, replace(TABLE, start=9), 3),
        EpochsRequest(1, EpochTable(0, (EpochStart(2, 0), EpochStart(1, 5))), 9),
    ],
)
def test_a_log_that_cannot_be_closes_the_link_of_who_asks(body: EpochsRequest) -> None:
    leader = leading(30)
    assert [type(action) for action in leader.receive(envelope(1, body), 0)] == [ClosePeer]
