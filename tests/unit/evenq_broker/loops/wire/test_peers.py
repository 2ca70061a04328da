"""The line for waiting polls: what goes in comes out."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_broker.core.lite.subscriptions import LiteSet, RequestedStart, Subscriber
from evenq_broker.core.polls.interest import Want
from evenq_broker.loops.wire.peers import (
    COPIED_BYTES_MAX,
    ClientsKnown,
    accepted,
    ask_settings,
    clients_known,
    clients_request,
    interest_hello,
    interest_of,
    lite_set_messages,
    lite_sets_for_copy,
    lite_sets_in,
    lite_sets_of,
    lite_start_of,
    notices,
    notices_of,
    page_of,
    relay_check,
    settings_page,
    waiting_polls,
    was_sent,
)

from evenq.errors import BadRequest, Error, Forbidden
from evenq.model import BalancePolicy, GroupConfig, StartFrom
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2, groups_pb2, peers_pb2

PULL, PUSH = Want("g", "t"), Want("g", "t", push=True)
GROUP = GroupConfig(
    name="orders", group_id=7, ordered=True, max_attempts=5, start_from=StartFrom.FIRST, strategy="AVG",
    retry=RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(1_000, 60_000)), balance=BalancePolicy(moves_max=3, hold_ms=30_000), revised_ms=1_700_000_000_000,
)  # fmt: skip


def test_the_first_request_names_the_broker_and_an_ended_line_nobody() -> None:
    assert interest_of(interest_hello("a")) == ("a", [])
    assert interest_of(b"") == ("", [])


def test_polls_come_back_with_their_counts_also_those_that_ended() -> None:
    assert interest_of(waiting_polls({PULL: 3, PUSH: 0})).counts == [(PULL, 3), (PUSH, 0)]


def test_notices_come_back_in_order_and_as_often_as_they_were_given() -> None:
    assert notices_of(notices([PUSH, PULL, PULL])) == [PUSH, PULL, PULL]


def test_a_request_carries_ends_and_doubts() -> None:
    request = peers_pb2.ClientsRequest.FromString(clients_request(ended=["a"], asked=["b", "c"]))
    assert (list(request.ended), list(request.asked)) == (["a"], ["b", "c"])


def test_an_answer_says_who_lives_and_who_is_gone_unless_it_is_a_refusal() -> None:
    answer = peers_pb2.ClientsResponse(status=definition_pb2.Status(code=definition_pb2.OK), alive=["a"], gone=["b"])
    assert clients_known(answer.SerializeToString()) == ClientsKnown({"a": 0}, frozenset({"b"})), "an older version"
    answer.silent_ms.extend([7, 8])
    assert clients_known(answer.SerializeToString()).alive == {"a": 7}
    answer.status.code = definition_pb2.FORBIDDEN
    with pytest.raises(Forbidden):
        clients_known(answer.SerializeToString())


def test_a_check_may_be_for_its_sender_only() -> None:
    request = data_pb2.RelayCheckRequest.FromString(relay_check("t", "c", b"command", sender_only=True))
    assert request.sender_only


def test_a_relayed_check_names_topic_client_and_command() -> None:
    request = data_pb2.RelayCheckRequest.FromString(relay_check("t", "c", b"command"))
    assert (request.topic, request.client_id, request.command) == ("t", "c", b"command")


@pytest.mark.parametrize("sent", [True, False])
def test_the_answer_says_whether_a_producer_was_found(sent: bool) -> None:
    assert was_sent(data_pb2.RelayCheckResponse(sent=sent).SerializeToString()) is sent


def test_every_setting_of_a_group_comes_back() -> None:
    (one,) = page_of(settings_page([GROUP], more=False)).groups
    assert (one.group, one.ordered, one.max_attempts, one.strategy) == ("orders", True, 5, "AVG")
    assert (one.start_from, one.revised_ms) == (StartFrom.FIRST, 1_700_000_000_000)
    assert one.retry() == GROUP.retry
    assert one.balance() == GROUP.balance


@pytest.mark.parametrize("more", [False, True])
def test_a_page_keeps_its_order_and_says_whether_others_follow(more: bool) -> None:
    page = page_of(settings_page([GroupConfig(name=name, group_id=1) for name in ("a", "b", "c")], more=more))
    assert [one.group for one in page.groups] == ["a", "b", "c"]
    assert page.more is more


def test_the_question_names_the_broker_and_where_to_go_on() -> None:
    request = peers_pb2.GroupSettingsRequest.FromString(ask_settings("broker-a", back=True, after="orders"))
    assert (request.broker_name, request.back, request.after) == ("broker-a", True, "orders")
    assert not peers_pb2.GroupSettingsRequest.FromString(ask_settings("broker-a", back=False, after="")).back


def test_a_refusal_is_raised_and_its_groups_are_not_read() -> None:
    refusal = definition_pb2.Status(code=definition_pb2.FORBIDDEN, message="broker-a is no broker of this cluster")
    response = peers_pb2.GroupSettingsResponse(status=refusal, groups=[peers_pb2.NamedSettings(group="a")])
    with pytest.raises(Error, match="broker-a is no broker of this cluster"):
        page_of(response.SerializeToString())


def test_settings_that_make_no_sense_are_found_when_they_are_read_not_with_the_page() -> None:
    wrong = groups_pb2.GroupSettings()
    wrong.balance.hold_ms = -1
    response = peers_pb2.GroupSettingsResponse(
        status=definition_pb2.Status(code=definition_pb2.OK),
        groups=[peers_pb2.NamedSettings(group="a", settings=wrong), peers_pb2.NamedSettings(group="b")],
    )
    first, second = page_of(response.SerializeToString()).groups
    with pytest.raises(BadRequest, match="-1 ms"):
        first.balance()
    assert second.balance() == BalancePolicy()


@pytest.mark.parametrize(
    ("option", "start", "moves"),
    [
        ({"offset": 7}, RequestedStart("offset", 7), True),
        ({"tail_n": 0}, RequestedStart("tail_n", 0), True),
        ({"timestamp": 9_000}, RequestedStart("timestamp", 9_000), True),
        ({"policy": 2}, RequestedStart("policy", 2), False),
        ({"policy": 0}, RequestedStart("policy", 0), False),
        ({}, RequestedStart("", 0), False),
    ],
)
def test_a_start_is_a_place_or_a_policy(option: dict[str, Any], start: RequestedStart, moves: bool) -> None:
    read = lite_start_of(definition_pb2.OffsetOption(**option))
    assert (read, read.moves) == (start, moves)


def test_sets_come_back_as_they_were_told_and_are_never_from_the_future() -> None:
    sets = [LiteSet(Subscriber("c", "g", "t"), ["x", "y"], 5), LiteSet(Subscriber("d", "g", "t"), [], -3)]
    response = peers_pb2.LiteSubscriptionsResponse(sets=lite_set_messages(sets))
    response.status.code = definition_pb2.OK
    read = lite_sets_of(response.SerializeToString())
    assert [(who, list(names), age_ms) for who, names, age_ms in read] == [
        (Subscriber("c", "g", "t"), ["x", "y"], 5),
        (Subscriber("d", "g", "t"), [], 0),
    ]


def test_a_refusal_is_raised() -> None:
    response = peers_pb2.LiteSubscriptionsResponse()
    response.status.code = definition_pb2.UNAUTHORIZED
    with pytest.raises(Error):
        lite_sets_of(response.SerializeToString())


def test_a_leader_tells_another_copy_as_many_sets_as_fit() -> None:
    sets = [LiteSet(Subscriber(f"c{number}", "g", "t"), ["x" * 64] * 100, 5) for number in range(400)]
    content = lite_sets_for_copy("broker-a", sets)
    assert COPIED_BYTES_MAX * 0.9 < len(content) < 2 * COPIED_BYTES_MAX
    request = peers_pb2.LiteSubscriptionsRequest.FromString(content)
    assert request.broker_name == "broker-a"
    read = lite_sets_in(request.sets)
    assert [(one.subscriber, list(one.names), one.age_ms) for one in read] == sets[: len(read)]


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="3 bytes that are not an answer"):
        accepted(b"\xff\xff\xff")
