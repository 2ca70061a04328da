"""The consumer table: who is in a group, and when a silent member is gone."""

import pytest
from evenq_broker.core.groups.members import Member, MemberTable, Protocol

from evenq.errors import TooManyRequests
from evenq.model import MessageModel, Subscription


def member(client_id: str, **rest: object) -> Member:
    return Member(client_id=client_id, protocol=Protocol.EVENQ, **rest)  # type: ignore[arg-type]  # test shorthand


def test_members_are_told_in_ascending_client_id() -> None:
    table = MemberTable()
    for client_id in ("c", "a", "b"):
        assert table.join("g", member(client_id), now_ms=0, lease_ms=10)
        table.check()
    assert [m.client_id for m in table.members("g")] == ["a", "b", "c"]


def test_joining_again_with_the_same_facts_changes_nothing_but_the_lease() -> None:
    table = MemberTable()
    table.join("g", member("a", joined_ms=5), now_ms=0, lease_ms=10)
    version = table.version("g")
    assert not table.join("g", member("a", joined_ms=9), now_ms=8, lease_ms=10)
    assert table.version("g") == version
    assert table.expire(17) == []
    assert table.members("g")[0].joined_ms == 5


def test_changed_subscriptions_are_a_change_of_the_group() -> None:
    table = MemberTable()
    table.join("g", member("a"), now_ms=0, lease_ms=10)
    version = table.version("g")
    assert table.join("g", member("a", subscriptions=(Subscription("t"),)), now_ms=1, lease_ms=10)
    assert table.version("g") > version


def test_a_silent_member_expires_and_a_renewed_one_stays_in_that_group_only() -> None:
    table = MemberTable()
    table.join("g", member("a"), now_ms=0, lease_ms=10)
    table.join("g", member("b"), now_ms=0, lease_ms=10)
    table.join("h", member("b"), now_ms=0, lease_ms=10)
    table.renew("g", "b", 5)
    table.renew("g", "unknown", 5)
    table.renew("unknown", "b", 5)
    assert table.expire(10) == [("g", "a"), ("h", "b")]
    assert table.groups_of("b") == ["g"]
    assert table.expire(15) == [("g", "b")]
    assert table.groups() == []
    table.check()


def test_a_call_of_a_v2_client_renews_its_leases_in_all_groups_and_no_session() -> None:
    table = MemberTable()
    for group, protocol in (("g", Protocol.V2), ("h", Protocol.V2), ("s", Protocol.EVENQ)):
        table.join(group, Member(client_id="c", protocol=protocol), now_ms=0, lease_ms=10)
    table.touch("c", 5)
    assert table.expire(10) == [("s", "c")]
    assert table.expire(15) == [("g", "c"), ("h", "c")]
    table.touch("c", 16)
    table.check()


def test_the_v2_groups_of_a_client_leave_out_those_in_which_it_has_a_session() -> None:
    table = MemberTable()
    for group, protocol in (("h", Protocol.V2), ("s", Protocol.EVENQ), ("g", Protocol.V2)):
        table.join(group, Member(client_id="c", protocol=protocol), now_ms=0, lease_ms=10)
    assert table.v2_groups_of("c") == ["g", "h"]
    assert not table.v2_groups_of("unknown")


def test_a_member_with_a_broken_stream_has_the_grace_and_no_more() -> None:
    table = MemberTable()
    table.join("g", member("a"), now_ms=0, lease_ms=100)
    table.suspend("g", "a", now_ms=10, grace_ms=3)
    table.renew("g", "a", 12)
    assert table.expire(13) == [("g", "a")]


def test_a_member_that_joins_again_within_the_grace_stays() -> None:
    table = MemberTable()
    table.join("g", member("a"), now_ms=0, lease_ms=100)
    table.suspend("g", "a", now_ms=10, grace_ms=3)
    table.join("g", member("a"), now_ms=12, lease_ms=100)
    assert table.expire(50) == []


def test_leaving_twice_is_no_error() -> None:
    table = MemberTable()
    table.join("g", member("a"), now_ms=0, lease_ms=10)
    assert table.leave("g", "a")
    assert not table.leave("g", "a")
    table.check()


def test_a_full_table_refuses_a_new_member_with_a_sentence() -> None:
    table = MemberTable(members_max=1)
    table.join("g", member("a"), now_ms=0, lease_ms=10)
    with pytest.raises(TooManyRequests, match="keeps 1 group members"):
        table.join("h", member("b"), now_ms=0, lease_ms=10)
    table.check()


def test_readers_are_the_clustering_members_that_want_the_topic() -> None:
    table = MemberTable()
    table.join("g", member("a", subscriptions=(Subscription("t"),)), now_ms=0, lease_ms=10)
    table.join("g", member("b", subscriptions=(Subscription("u"),)), now_ms=0, lease_ms=10)
    table.join("g", member("c"), now_ms=0, lease_ms=10)
    table.join("g", member("d", model=MessageModel.BROADCASTING), now_ms=0, lease_ms=10)
    assert table.readers("g", "t") == ["a", "c"]


def test_a_list_is_one_object_until_somebody_comes_goes_or_tells_something_new() -> None:
    table = MemberTable()
    table.join("g", Member(client_id="a", protocol=Protocol.EVENQ), now_ms=0, lease_ms=100)
    listed = table.listed("g")
    table.renew("g", "a", 50)
    table.suspend("g", "a", now_ms=50, grace_ms=10)
    table.join("g", Member(client_id="a", protocol=Protocol.EVENQ), now_ms=55, lease_ms=100)
    assert table.listed("g") is listed
    table.join("g", Member(client_id="b", protocol=Protocol.EVENQ), now_ms=60, lease_ms=100)
    assert [member.client_id for member in table.listed("g")] == ["a", "b"]
    table.leave("g", "a")
    assert [member.client_id for member in table.members("g")] == ["b"]
    table.check()


def test_the_end_of_the_next_lease_is_known_after_each_look() -> None:
    table = MemberTable()
    table.join("g", Member(client_id="a", protocol=Protocol.EVENQ), now_ms=0, lease_ms=100)
    table.join("g", Member(client_id="b", protocol=Protocol.EVENQ), now_ms=0, lease_ms=70)
    assert table.expire(0) == []
    assert table.next_ms == 70
    assert table.expire(70) == [("g", "b")]
    assert table.next_ms == 100
