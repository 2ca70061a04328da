"""The rule of shares: which tenants it binds, and that it counts only when it can bind."""

from __future__ import annotations

from collections.abc import Iterable

from evenq_broker.core.shares import Shares, within_share

from evenq.serving.auth.users import UserResource, Users
from tests.unit.evenq_broker.conftest import users_of

TOPIC, GROUP = UserResource.TOPIC, UserResource.GROUP


class Table:
    """Names behind a bound of 8."""

    def __init__(self, users: Users, kind: UserResource = TOPIC, limit: int = 8) -> None:
        self.users, self.names, self.counted = users, list[str](), 0
        self.shares = Shares(kind, self.users_now, limit=limit, setting="things_max", what="things")

    def users_now(self) -> Users:
        return self.users

    def all(self) -> Iterable[str]:
        self.counted += 1
        return self.names

    def refusal(self, name: str, more: int = 1) -> str:
        return self.shares.refusal(name, self.all, total=len(self.names), version=len(self.names), more=more)

    def fill(self, prefix: str) -> int:
        """Makes names until one is refused; the number of those of the prefix."""
        for number in range(100):
            if self.refusal(f"{prefix}{number}"):
                break
            self.names.append(f"{prefix}{number}")
        return sum(name.startswith(prefix) for name in self.names)


def test_a_tenant_leaves_a_part_to_others_and_the_first_one_is_let_in_while_there_is_any() -> None:
    def filled(limit: int, tenants: int) -> list[int]:
        own = [0] * tenants
        while any(within_share(limit, total=sum(own), own=one) for one in own):
            for at, one in enumerate(own):
                own[at] += within_share(limit, total=sum(own), own=one)
        return own

    assert filled(100, 1) == [75]
    assert filled(70, 2) == [30, 30]
    assert filled(1, 1) == [1]
    assert within_share(10, total=9, own=0)
    assert not within_share(10, total=10, own=0)
    assert not within_share(10, total=8, own=0, more=3)


def test_one_tenant_fills_its_share_and_the_next_ones_still_get_in() -> None:
    table = Table(users_of(a="topic:a-* publish", b="topic:b-* publish", c="topic:c-* create"))
    assert table.fill("a-") == 6
    assert table.refusal("a-6") == (
        "this broker has 6 things, 6 of them under the grants of user a; the limit is 8 (things_max), and one user may "
        "have three times what is left of it"
    )
    assert table.fill("b-") == 1
    assert table.fill("c-") == 1
    assert table.refusal("b-1") == "this broker has 8 things, the limit is 8 (things_max)"


def test_names_that_no_tenant_may_make_fill_the_whole_table() -> None:
    for grants in ({}, {"u": "topic:* publish"}, {"u": "topic:x* consume,describe"}, {"u": "group:x* *"}):
        table = Table(users_of(**grants))
        assert table.fill("x") == 8, grants
        assert table.counted == 0


def test_names_are_counted_only_where_a_share_can_bind_and_once_for_many_attempts() -> None:
    table = Table(users_of(a="topic:a-* publish"), limit=1_000)
    table.names = [f"a-{number}" for number in range(749)]
    assert not table.refusal("a-new")
    assert table.counted == 0
    table.names.append("a-749")
    assert all(table.refusal("a-new") for _ in range(9))
    assert table.counted == 1
    table.names.append("b-0")
    assert all(table.refusal("a-new") for _ in range(9))
    assert table.counted == 2


def test_changed_grants_count_at_once() -> None:
    table = Table(users_of(a="topic:a-* publish"))
    assert table.fill("a-") == 6
    table.users = users_of(a="topic:* publish")
    assert not table.refusal("a-6")
    table.users = users_of(a="topic:a-6 publish;topic:b-* publish")
    assert not table.refusal("a-6"), "the others are not its own any more"


def test_a_name_of_several_tenants_needs_room_in_the_share_of_one() -> None:
    table = Table(users_of(wide="topic:a-* publish", narrow="topic:a-b-* publish"))
    assert table.fill("a-x") == 6
    assert "user wide" in table.refusal("a-y")
    assert not table.refusal("a-b-0")
    table.names += ["a-b-0"]
    assert "1 of them under the grants of user narrow" in table.refusal("a-b-1")


def test_topics_of_retries_and_dead_letters_are_those_of_the_owner_of_the_group() -> None:
    table = Table(users_of(a="group:g-* consume", b="topic:b publish"))
    table.names = ["%RETRY%g-1", "%DLQ%g-1", "%RETRY%g-2", "%DLQ%g-2", "%RETRY%g-3", "%DLQ%g-3"]
    assert "6 of them under the grants of user a" in table.refusal("%RETRY%g-4")
    assert not table.refusal("b")
    groups = Table(users_of(a="group:g-* operate"), GROUP)
    groups.names = [f"%DLQ%g-{number}" for number in range(6)]  # they remember what was replayed
    assert "6 of them under the grants of user a" in groups.refusal("g-1")
    assert "6 of them under the grants of user a" in groups.refusal("%DLQ%g-7")


def test_many_users_of_one_prefix_are_looked_at_in_bounded_time() -> None:
    grants = {f"u{number}": "topic:a-* publish" for number in range(50)}
    table = Table(users_of(**grants, narrow="topic:a-b-* publish", exact="topic:a-b-c publish"))
    found = [user.name for user in table.users.tenants_of(TOPIC, "a-b-c")]
    assert found[:2] == ["exact", "narrow"]
    assert len(found) == 8
    assert table.fill("a-") == 6
    assert table.counted <= 2 * 8
