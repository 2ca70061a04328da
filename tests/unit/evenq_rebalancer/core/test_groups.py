"""Facts of brokers, merged."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.groups import MergedFacts
from evenq_rebalancer.core.reports import (
    BrokerReport,
    GroupFact,
    HeldFact,
    HeldPlaceFact,
    HoldsFact,
    MemberFact,
    TopicFact,
)

from evenq.errors import PreconditionFailed, TooManyRequests
from evenq.model import Generation, MessageModel, MessageQueue


def facts(**limits) -> MergedFacts:
    defaults = {"grace_ms": 1_000, "brokers_max": 3, "groups_max": 3, "topics_max": 3, "members_max": 3}
    return MergedFacts(**(defaults | limits))


def group(name: str, *ids: str, strategy: str = "") -> GroupFact:
    return GroupFact(group=name, strategy=strategy, members=tuple(MemberFact(client_id=own) for own in ids))


def report(table: MergedFacts, broker: str, stream: int, *groups: GroupFact, **rest) -> None:
    table.reported(stream, BrokerReport(broker_name=broker, groups=groups, **rest))
    table.check()


def test_members_of_all_brokers_are_merged_and_sorted() -> None:
    table = facts()
    table.opened("b1", 1)
    table.opened("b2", 2)
    report(table, "b1", 1, group("g", "z", "m"))
    report(table, "b2", 2, group("g", "a", "m"))
    assert [member.client_id for member in table.members("g")] == ["a", "m", "z"]
    report(table, "b1", 1, group("g", "z"))
    assert [member.client_id for member in table.members("g")] == ["a", "m", "z"], "b2 still sees m"
    report(table, "b2", 2, group("g", "a"))
    assert [member.client_id for member in table.members("g")] == ["a", "z"]


def test_a_member_that_two_brokers_describe_reads_what_either_says() -> None:
    table = facts()
    first = MemberFact(client_id="c", topics=("T2",))
    second = MemberFact(client_id="c", topics=("T1",), model=MessageModel.BROADCASTING)
    for number, member in enumerate((first, second), 1):
        table.opened(f"b{number}", number)
        report(table, f"b{number}", number, GroupFact(group="g", members=(member,), ordered=number == 2))
    merged = MemberFact(client_id="c", topics=("T1", "T2"), model=MessageModel.BROADCASTING)
    assert table.members("g") == (merged,)
    assert table.ordered("g")


def test_queues_are_those_of_all_brokers_in_order() -> None:
    table = facts()
    table.opened("b2", 1)
    table.opened("b1", 2)
    report(table, "b2", 1, topics=(TopicFact(topic="T", read_queues=1),))
    report(table, "b1", 2, topics=(TopicFact(topic="T", read_queues=2), TopicFact(topic="U", read_queues=0)))
    assert table.queues("T") == (MessageQueue("T", "b1", 0), MessageQueue("T", "b1", 1), MessageQueue("T", "b2", 0))
    assert table.queues("U") == ()
    assert table.topic_version("U") > 0
    assert table.topic_version("V") == 0


def test_a_full_report_replaces_all_and_a_change_only_what_it_names() -> None:
    table = facts()
    table.opened("b1", 1)
    report(table, "b1", 1, group("g1", "a"), group("g2", "a"), topics=(TopicFact(topic="T", read_queues=1),))
    report(table, "b1", 1, group("g1", "a", "b"))
    assert table.groups() == ["g1", "g2"]
    report(table, "b1", 1, groups_gone=("g2", "never-was"), topics_gone=("T",))
    assert table.groups() == ["g1"]
    assert table.topic_version("T") == 0
    report(table, "b1", 1, group("g3"), full=True)
    assert table.groups() == ["g3"]


def test_the_first_report_of_a_new_stream_replaces_all_even_if_it_does_not_say_so() -> None:
    table = facts()
    table.opened("b1", 1)
    report(table, "b1", 1, group("g1", "a"))
    table.opened("b1", 2)
    assert table.groups() == ["g1"], "until the new stream tells, the old facts count"
    report(table, "b1", 2, group("g2", "a"))
    assert table.groups() == ["g2"]


def test_a_report_on_an_older_stream_is_refused_and_its_end_changes_nothing() -> None:
    table = facts()
    table.opened("b1", 1)
    report(table, "b1", 1, group("g1", "a"))
    table.opened("b1", 2)
    with pytest.raises(PreconditionFailed, match="newer report stream"):
        report(table, "b1", 1, group("g1", "x"))
    table.closed("b1", 1, now_ms=0)
    assert table.next_expiry_ms() is None


def test_facts_outlive_their_stream_by_the_grace() -> None:
    table = facts(grace_ms=1_000)
    table.opened("b1", 1)
    report(table, "b1", 1, group("g", "a"), topics=(TopicFact(topic="T", read_queues=1),))
    table.closed("b1", 1, now_ms=5_000)
    assert table.next_expiry_ms() == 6_000
    assert table.expire(5_999) == []
    assert table.members("g")
    assert table.expire(6_000) == ["b1"]
    table.check()
    assert table.groups() == table.brokers == []
    assert table.group_version("g") == table.topic_version("T") == 0


def test_a_broker_that_comes_back_in_time_keeps_its_facts() -> None:
    table = facts()
    table.opened("b1", 1)
    report(table, "b1", 1, group("g", "a"))
    version = table.group_version("g")
    table.closed("b1", 1, now_ms=0)
    table.opened("b1", 2)
    report(table, "b1", 2, group("g", "a"), full=True)
    assert table.expire(1_000_000) == []
    assert table.group_version("g") == version, "nothing changed, so no member has to look"


def test_changes_are_told_once() -> None:
    table = facts()
    table.opened("b1", 1)
    report(table, "b1", 1, group("g", "a"), topics=(TopicFact(topic="T", read_queues=1),))
    assert (table.take_changed_groups(), table.take_changed_topics()) == (["g"], ["T"])
    report(table, "b1", 1, group("g", "a"), topics=(TopicFact(topic="T", read_queues=1),))
    assert (table.take_changed_groups(), table.take_changed_topics()) == ([], [])


def test_the_groups_strategy_is_that_of_the_first_broker_that_tells_one() -> None:
    table = facts()
    for number, strategy in enumerate(("", "AVG_BY_CIRCLE", "AVG"), 1):
        table.opened(f"b{number}", number)
        report(table, f"b{number}", number, group("g", "a", strategy=strategy))
    assert table.strategy("g") == "AVG_BY_CIRCLE"
    assert table.strategy("unknown") == ""


@pytest.mark.parametrize(
    "report",
    [
        BrokerReport(broker_name="b1", groups=tuple(group(f"g{number}") for number in range(4))),
        BrokerReport(
            broker_name="b1", topics=tuple(TopicFact(topic=f"T{number}", read_queues=1) for number in range(4))
        ),
        BrokerReport(broker_name="b1", groups=(group("g", "a", "b", "c", "d"),)),
    ],
)
def test_a_report_over_a_limit_is_refused_whole(report) -> None:
    table = facts()
    table.opened("b1", 1)
    with pytest.raises(TooManyRequests, match="the limit is 3"):
        table.reported(1, report)
    table.check()
    assert table.groups() == []


def test_a_broker_too_many_is_refused() -> None:
    table = facts(brokers_max=1)
    table.opened("b1", 1)
    table.opened("b1", 2)
    with pytest.raises(TooManyRequests, match="brokers_max"):
        table.opened("b2", 3)


def test_holds_of_a_leader_before_are_kept_from_the_first_report_and_change_no_version() -> None:
    table, queue = facts(), MessageQueue("T", "b1", 0)
    place = HeldPlaceFact(client_id="x", place="web-0", until_wall_ms=9, queues=(queue,))
    holds = (HoldsFact(topic="T", places=(place,), generation=Generation(77, 1)),)
    table.opened("b1", 1)
    report(table, "b1", 1, GroupFact(group="g", holds=holds, held=(HeldFact(queue=queue, holder="gone"),)))
    assert table.inherited("g").places == (place,), "the holder is no member"
    assert table.epoch_seen == 77
    version = table.group_version("g")
    report(table, "b1", 1, GroupFact(group="g"))
    assert table.group_version("g") == version
    assert table.inherited("g").places == (place,), "later reports do not tell of it"
    table.opened("b1", 2)
    report(table, "b1", 2, GroupFact(group="g"))
    assert table.inherited("g").places == (), "the first of a stream replaces it"
    report(table, "b1", 2, GroupFact(group="g", holds=holds))
    report(table, "b1", 2, groups_gone=("g",))
    assert table.inherited("g").places == ()
