"""A query as a member of its group, against a broker in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark_evenq.member import member as member_module
from pyspark_evenq.member.member import GroupBusy, QueueTaken, StreamMember
from pyspark_evenq.options.source import ReadOptions

from evenq.model.queue import MessageQueue
from tests.unit.pyspark_evenq.fake_groups import FakeGroups

OTHER = "host@7@other"


@pytest.fixture
def groups(broker: Any) -> FakeGroups:
    made: FakeGroups = broker.know_groups()
    return made


@pytest.fixture
def made(broker: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(member_module, "GHOST_MS", 0)
    members: list[StreamMember] = []

    def make(**more: str) -> StreamMember:
        given = {"endpoints": broker.endpoint, "subscribe": "flights", "group": "g"} | more
        members.append(StreamMember(ReadOptions.parse(given, streaming=True)))
        return members[-1]

    yield make
    for member in members:
        member.leave(timeout_ms=2_000)


def route(broker: Any, *topics: str) -> dict[MessageQueue, str]:
    return {
        MessageQueue(topic, broker.name, number): broker.endpoint
        for topic in topics or ("flights",)
        for number in broker.queues
    }


def test_a_member_is_listed_holds_all_queues_and_gives_everything_back(broker: Any, groups: Any, made: Any) -> None:
    member = made(queryName="delays", tags="UA")
    assert member.hold(route(broker)) == route(broker).keys()
    ((client_id, join),) = groups.joins.items()
    assert client_id == member.client_id
    assert "@spark-delays@" in client_id
    (subscription,) = join.member.subscriptions
    assert (join.group, join.member.instance, subscription.topic, subscription.filter.expression) == (
        "g",
        "delays",
        "flights",
        "UA",
    )
    assert not join.hands_over, "a broker that closes need not wait for it"
    assert set(groups.holders.values()) == {client_id}
    assert len(groups.holders) == 2
    member.leave(timeout_ms=2_000)
    groups.until(lambda: not groups.joins and not groups.holders)


def test_a_stream_without_a_group_is_no_member_and_all_queues_are_its_own(broker: Any, groups: Any, made: Any) -> None:
    member = made(group="", schemaStyle="kafka")
    assert member.hold(route(broker)) == route(broker).keys()
    assert (member.group_progress(), member.resets()) == ({}, {})
    member.leave(timeout_ms=2_000)
    assert not groups.joins
    assert not groups.locks


def test_a_broker_that_knows_no_members_holds_up_nobody(broker: Any, made: Any) -> None:
    assert made().hold(route(broker)) == route(broker).keys()


def test_another_reader_of_the_topic_is_named_and_is_never_disturbed(broker: Any, groups: Any, made: Any) -> None:
    groups.join("g", OTHER, topics=["flights"])
    member = made()
    with pytest.raises(GroupBusy, match=f"group g is busy: {OTHER} reads in it.*onGroupBusy"):
        member.hold(route(broker))
    assert list(groups.joins) == [OTHER], "members that share the queues would make room at once"


def test_who_reads_other_topics_in_the_group_or_in_another_group_is_not_in_the_way(
    broker: Any, groups: Any, made: Any
) -> None:
    groups.join("g", OTHER, topics=["trains"])
    groups.join("h", "elsewhere", topics=["flights"])
    assert made().hold(route(broker)) == route(broker).keys()


def test_a_lock_of_somebody_who_is_no_member_is_in_the_way_and_the_query_leaves(
    broker: Any, groups: Any, made: Any
) -> None:
    groups.holders["g", "flights", 1] = OTHER
    member = made()
    with pytest.raises(GroupBusy, match=OTHER):
        member.hold(route(broker))
    groups.until(lambda: not groups.joins)


@pytest.mark.parametrize("how", ["wait", "fail"])
def test_who_leaves_in_time_makes_room(
    broker: Any, groups: Any, made: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    listed = groups.handlers()["/evenq.v1.Groups/ListMembers"].unary_unary
    monkeypatch.setattr(member_module, "GHOST_MS", 0 if how == "wait" else 20_000)
    monkeypatch.setattr(groups, "_list", lambda *given: (asked.set(), listed(*given))[1])
    broker.stop()
    broker.start()
    groups.join("g", OTHER, topics=["flights"], holds=[0, 1])
    member = made(onGroupBusy=how)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(member.hold, route(broker))
        assert asked.wait(60)
        assert not held.done()
        groups.leave(OTHER)
        assert held.result(60) == route(broker).keys()


def test_a_takeover_asks_as_a_newer_decision_and_does_not_wait_for_the_other_to_leave(
    broker: Any, groups: Any, made: Any
) -> None:
    groups.join("g", OTHER, topics=["flights"])
    plain = made(group="h")
    plain.hold(route(broker))
    assert not groups.locks[-1].generation.counter
    member = made(onGroupBusy="takeover")
    assert member.hold(route(broker)) == route(broker).keys()
    assert (groups.locks[-1].generation.epoch, groups.locks[-1].generation.counter > 0) == (0, True)
    assert set(groups.joins) == {OTHER, plain.client_id, member.client_id}


def test_topics_that_come_later_are_told_to_the_brokers_and_held(broker: Any, groups: Any, made: Any) -> None:
    member = made(subscribe="", subscribePattern="fl.*")
    member.hold(route(broker, "flights"))
    both = route(broker, "flights", "flocks")
    assert member.hold(both) == both.keys()
    groups.until(
        lambda: (
            {wanted.topic for wanted in groups.joins[member.client_id].member.subscriptions} == {"flights", "flocks"}
        )
    )


def test_a_new_topic_that_somebody_reads_in_the_group_is_a_group_that_is_busy(
    broker: Any, groups: Any, made: Any
) -> None:
    member = made(subscribe="", subscribePattern="fl.*")
    member.hold(route(broker, "flights"))
    groups.join("g", OTHER, topics=["flocks"])
    with pytest.raises(GroupBusy, match=OTHER):
        member.hold(route(broker, "flights", "flocks"))


def test_locks_that_hold_after_a_break_of_the_line_are_held_on(broker: Any, groups: Any, made: Any) -> None:
    member = made()
    member.hold(route(broker))
    asked = len(groups.locks)
    groups.cut(member.client_id)
    groups.until(lambda: len(groups.locks) > asked)
    assert member.hold(route(broker)) == route(broker).keys()


def test_a_queue_that_somebody_got_after_a_break_of_the_line_ends_the_query_with_its_name(
    broker: Any, groups: Any, made: Any
) -> None:
    member = made()
    member.hold(route(broker))
    asked = len(groups.locks)
    groups.holders["g", "flights", 1] = OTHER
    groups.cut(member.client_id)
    groups.until(lambda: len(groups.locks) > asked)
    with pytest.raises(QueueTaken, match=f"flights@broker-a:1 of group g is not this query's .*{OTHER} has it"):
        member.hold(route(broker))


def test_a_queue_that_was_read_further_by_who_has_left_ends_the_query(broker: Any, groups: Any, made: Any) -> None:
    member = made()
    member.hold(route(broker))
    member.sent({broker.queue(0): 5, broker.queue(1): 5})
    asked = len(groups.locks)
    broker.committed |= {("g", 0): 5, ("g", 1): 9}
    groups.cut(member.client_id)
    groups.until(lambda: len(groups.locks) > asked)
    with pytest.raises(QueueTaken, match=r"flights@broker-a:1 .*read up to 9 meanwhile"):
        member.hold(route(broker))


def test_a_refused_commit_makes_the_member_ask_whose_the_queues_are(broker: Any, groups: Any, made: Any) -> None:
    member = made()
    member.hold(route(broker))
    asked = len(groups.locks)
    groups.holders["g", "flights", 0] = OTHER
    member.refused()
    groups.until(lambda: len(groups.locks) > asked)
    with pytest.raises(QueueTaken, match=OTHER):
        member.hold(route(broker))


def test_a_move_by_an_operator_is_known_until_the_broker_heard_that_it_is_followed(
    broker: Any, groups: Any, made: Any
) -> None:
    broker.committed["g", 1] = 7
    member = made()
    member.hold(route(broker))
    assert member.group_progress() == {broker.queue(0): -1, broker.queue(1): 7}
    groups.move("g", 1, 3)
    while not (resets := member.resets()):
        member.hold(route(broker))
    ((queue, number),) = resets.items()
    assert queue == broker.queue(1)
    member.follow(queue, 3, number - 1)
    assert member.resets() == resets, "that was an earlier move"
    member.follow(queue, 3, number)
    assert member.resets() == {}
    assert groups.pulls == [(1, 3), (1, 3)]
    assert not groups.moved
