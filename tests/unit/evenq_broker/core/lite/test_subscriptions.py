"""What clients want of lite topics."""

import random
from contextlib import suppress

import pytest
from evenq_broker.core.lite.subscriptions import LiteSubscribeAction, LiteSubscriptions, Subscriber

from evenq.errors import LiteSubscriptionQuotaExceeded
from tests.unit.evenq_broker.conftest import users_of

ME, OTHER = Subscriber("me", "g", "p"), Subscriber("other", "g", "p")


def made(*, each_max: int = 3, all_max: int = 100) -> LiteSubscriptions:
    return LiteSubscriptions(each_max=each_max, all_max=all_max, keep_ms=90_000)


def test_parts_add_and_remove_and_the_whole_replaces() -> None:
    table = made()
    assert table.sync(ME, LiteSubscribeAction.COMPLETE_ADD, [], 0) == ([], False), "subscribed to nothing yet"
    assert table.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0) == (["x"], True)
    assert table.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["x", "y"], 0) == (["y"], True)
    assert table.sync(ME, LiteSubscribeAction.COMPLETE_ADD, ["y", "z"], 0) == (["z"], True)
    assert table.sync(ME, LiteSubscribeAction.COMPLETE_ADD, ["z", "y"], 0) == ([], False)
    assert table.sync(ME, LiteSubscribeAction.PARTIAL_REMOVE, ["z", "x"], 0) == ([], True)
    assert list(table.names(ME)) == ["y"]
    assert table.sync(ME, LiteSubscribeAction.COMPLETE_REMOVE, [], 0) == ([], True)
    assert not list(table.names(ME))
    table.check()


def test_each_change_of_a_set_is_counted_and_a_repeated_word_is_none() -> None:
    table = made()
    counts = []
    for action, names in (
        (LiteSubscribeAction.PARTIAL_ADD, ["x", "y"]),
        (LiteSubscribeAction.COMPLETE_ADD, ["y", "x"]),
        (LiteSubscribeAction.COMPLETE_ADD, ["z", "x"]),
        (LiteSubscribeAction.PARTIAL_REMOVE, ["x"]),
        (LiteSubscribeAction.PARTIAL_REMOVE, ["x"]),
        (LiteSubscribeAction.COMPLETE_REMOVE, []),
    ):
        before = table.changes
        table.sync(ME, action, names, 0)
        counts.append(table.changes - before)
    assert [bool(count) for count in counts] == [True, False, True, True, False, True]


def test_who_wants_a_lite_topic_is_known() -> None:
    table = made()
    table.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    assert table.is_subscribed("p", "x", group="g")
    assert not table.is_subscribed("p", "x", group="g", besides=ME)
    assert not table.is_subscribed("q", "x")
    table.sync(OTHER, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    assert table.subscribers("p", "x") == [ME, OTHER]
    table.end_client("me")
    assert table.subscribers("p", "x") == [OTHER]


def test_a_set_that_is_not_told_again_is_forgotten() -> None:
    table = made()
    table.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    table.sync(OTHER, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    table.sync(OTHER, LiteSubscribeAction.COMPLETE_ADD, ["x"], 30_000)
    assert table.expire(89_999) == []
    assert table.expire(90_000) == [ME]
    assert table.sets() == [(OTHER, 1)]


def test_what_another_broker_knows_counts_until_the_client_speaks() -> None:
    table, other = made(), made()
    other.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["x", "y"], 50)
    other.sync(OTHER, LiteSubscribeAction.PARTIAL_ADD, ["x", "y"], 60)
    assert [value[0] for value in other.newest(3)] == [ME], "no more names than asked for"
    for who, names, synced_ms in other.newest(100):
        assert table.learn(who, names, synced_ms)
        assert not table.learn(who, ["z"], 70)
    assert not table.learn(Subscriber("c", "g", "p"), "uvwxyz", 0), "over its limit"
    assert list(table.newest(100)) == list(other.newest(100))
    table.check()


def test_with_their_parent_sets_end_and_those_of_others_stay() -> None:
    table = made()
    other_parent = Subscriber(ME.client_id, ME.group, "q")
    table.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["x", "y"], 0)
    table.sync(OTHER, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    table.sync(other_parent, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    assert table.end_parent(ME.parent) == [(ME, ["x", "y"]), (OTHER, ["x"])]
    assert table.sets() == [(other_parent, 1)]
    assert table.end_parent(ME.parent) == []
    table.check()


def test_sets_end_with_their_group() -> None:
    table = made()
    other_group = ME._replace(group="another")
    for who in (ME, other_group):
        table.sync(who, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    table.end_group(ME.group)
    assert table.sets() == [(other_group, 1)]
    table.check()


def test_over_a_limit_nothing_changes() -> None:
    table = made(all_max=4)
    table.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["x", "y", "z"], 0)
    with pytest.raises(LiteSubscriptionQuotaExceeded, match="lite_subscriptions_max"):
        table.sync(ME, LiteSubscribeAction.PARTIAL_ADD, ["w"], 0)
    with pytest.raises(LiteSubscriptionQuotaExceeded, match="lite_subscriptions_all_max"):
        table.sync(OTHER, LiteSubscribeAction.COMPLETE_ADD, ["x", "y"], 0)
    assert len(table) == 3
    table.check()


def test_a_tenant_leaves_lite_subscriptions_to_others() -> None:
    users = users_of(a="group:a-* consume", b="group:b-* consume")
    table = LiteSubscriptions(each_max=8, all_max=8, keep_ms=90_000, users=lambda: users)
    first, second, other = (ME._replace(group=group) for group in ("a-1", "a-2", "b-1"))
    table.sync(first, LiteSubscribeAction.COMPLETE_ADD, ["x", "y", "z"], 0)
    table.sync(second, LiteSubscribeAction.COMPLETE_ADD, ["x", "y", "z"], 0)
    for who in (first, second):
        with pytest.raises(LiteSubscriptionQuotaExceeded, match="6 of them under the grants of user a"):
            table.sync(who, LiteSubscribeAction.PARTIAL_ADD, ["w"], 0)
    assert not table.learn(ME._replace(client_id="there", group="a-3"), ["x"], 0), "what another broker was told"
    table.sync(other, LiteSubscribeAction.PARTIAL_ADD, ["x"], 0)
    table.sync(first, LiteSubscribeAction.COMPLETE_ADD, ["v"], 0)
    table.sync(second, LiteSubscribeAction.PARTIAL_ADD, ["w"], 0)
    table.check()


def test_invariants_hold_whatever_clients_say() -> None:
    rng = random.Random(3)
    table = made(each_max=5, all_max=12)
    for now_ms in range(0, 600_000, 1_000):
        who = Subscriber(rng.choice("abc"), rng.choice("gh"), rng.choice("pq"))
        names = rng.choices("uvwxyz", k=rng.randrange(5))
        with suppress(LiteSubscriptionQuotaExceeded):
            table.sync(who, rng.choice(list(LiteSubscribeAction)), names, now_ms)
        if rng.random() < 0.1:
            table.expire(now_ms)
        if rng.random() < 0.1:
            table.end_client(rng.choice("abc"))
        table.check()
