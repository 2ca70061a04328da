"""Settings of groups between brokers: what one page holds is what comes out of it."""

from __future__ import annotations

import pytest
from evenq_broker.loops.wire.group_settings import ask_settings, page_of, settings_page

from evenq.errors import BadRequest, Error
from evenq.model import BalancePolicy, GroupConfig, StartFrom
from evenq.model.retry import RetryKind, RetryPolicy
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import groups_pb2, peers_pb2

GROUP = GroupConfig(
    name="orders", group_id=7, ordered=True, max_attempts=5, start_from=StartFrom.FIRST, strategy="AVG",
    retry=RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(1_000, 60_000)), balance=BalancePolicy(moves_max=3, hold_ms=30_000), revised_ms=1_700_000_000_000,
)  # fmt: skip


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
