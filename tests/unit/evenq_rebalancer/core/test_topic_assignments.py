"""TopicAssignments: what they hold and owe, seen through a engine (rollouts)."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.assignment_engine import AssignmentEngine, AssignmentQuestion, EngineLimits
from evenq_rebalancer.core.decisions import OwnershipState
from evenq_rebalancer.core.places import MemberPlace
from evenq_rebalancer.core.reports import (
    BrokerReport,
    GroupFact,
    HeldFact,
    HeldPlaceFact,
    HoldsFact,
    LagFact,
    MemberFact,
    TopicFact,
)
from evenq_rebalancer.core.topic_assignments import TopicAssignments

from evenq.errors import TooManyRequests
from evenq.model import MessageQueue
from evenq.model.balance import BalancePolicy

HOLD = BalancePolicy(hold_ms=5_000, hold_lag_max=1_000)


def holds_of(decision) -> HoldsFact:
    """As a broker keeps it."""
    ids = dict.fromkeys(hold.client_id for hold in decision.inputs.held.values())
    places = []
    for own in ids:
        mine = {queue: hold for queue, hold in decision.inputs.held.items() if hold.client_id == own}
        hold = next(iter(mine.values()))
        places.append(
            HeldPlaceFact(client_id=own, place=hold.place, until_wall_ms=hold.until_wall_ms, queues=tuple(mine))
        )
    return HoldsFact(topic=decision.topic, places=tuple(places), generation=decision.generation)


class World:
    """Members named by place and incarnation: `web-0.1` is the first in place `web-0`. One broker of 12 queues."""

    def __init__(self, *ids: str, strategy="STICKY", balance=HOLD) -> None:
        self.engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0))
        self.engine.facts.opened("b", 1)
        self.strategy, self.balance, self.now_ms, self.ahead_ms = strategy, balance, 0, 0
        self.heard: dict = {}
        self.tell(*ids)

    def followed(self, *ids, later_ms=0, skew_ms=0, balance=HOLD, held=None):
        """A new leader, `later_ms` after this one's last word, which its broker kept; its clock is ahead by `skew_ms`."""
        after = object.__new__(World)
        after.engine = AssignmentEngine(epoch=1_000, limits=EngineLimits(warm_up_ms=0))
        after.engine.facts.opened("b", 1)
        after.strategy, after.balance = self.strategy, balance
        after.now_ms, after.ahead_ms = 50_000, self.now_ms + self.ahead_ms + later_ms - 50_000 + skew_ms
        rows = {decision.topic: decision for decision in self.engine.decisions()}
        after.heard = {
            "held": tuple(
                HeldFact(queue=queue, holder=own, generation=decision.generation)
                for decision in rows.values()
                for queue, own in decision.owner_of().items()
                if own in ids
            ),
            "holds": tuple(holds_of(decision) for decision in rows.values()) if held is None else held,
        }
        after.tell(*ids)
        return after

    def tell(self, *ids):
        members = tuple(
            MemberFact(client_id=own, topics=("T", "U"), instance=own.partition(".")[0]) for own in sorted(ids)
        )
        fact = GroupFact(group="g", strategy=self.strategy, members=members, balance=self.balance, **self.heard)
        self.heard = {}
        topics = (TopicFact(topic="T", read_queues=12), TopicFact(topic="U", read_queues=3))
        self.engine.reported(1, BrokerReport(broker_name="b", groups=(fact,), topics=topics), now_ms=self.now_ms)
        return self.settle()

    def lag(self, queue_id, lag):
        lags = LagFact(group="g", lags=((MessageQueue("T", "b", queue_id), lag),))
        self.engine.reported(1, BrokerReport(broker_name="b", lags=(lags,)), now_ms=self.now_ms)
        return self.settle()

    def settle(self):
        decisions = self.engine.settle(now_ms=self.now_ms, wall_ms=1_000_000 + self.now_ms + self.ahead_ms)
        self.engine.check()
        return decisions

    def wait(self, ms):
        self.now_ms += ms
        return self.settle()

    @property
    def decision(self):
        return next(decision for decision in self.engine.decisions() if decision.topic == "T")

    def share(self, own):
        return [queue.queue_id for queue in self.decision.shares.get(own, ())]

    def states(self):
        return {holding.queue.queue_id: holding.state for holding in self.decision.holdings}


@pytest.mark.parametrize("strategy", ["STICKY", "AVG", "CONSISTENT_HASH"])
def test_the_queues_of_a_member_that_is_replaced_wait_and_nobody_else_moves(strategy) -> None:
    world = World("web-0.1", "web-1.1", "web-2.1", strategy=strategy)
    before = world.decision.owner_of()
    lost = world.share("web-1.1")
    world.tell("web-0.1", "web-2.1")
    states = world.states()
    assert [number for number, state in states.items() if state is OwnershipState.HELD] == lost
    assert world.decision.owner_of() == {q: own for q, own in before.items() if own != "web-1.1"}
    assert (world.decision.held, world.decision.unowned, world.decision.moves) == (len(lost), 0, 0)
    row = next(holding for holding in world.decision.holdings if holding.state is OwnershipState.HELD)
    assert (row.owner, row.previous_owner) == ("", "web-1.1")
    assert row.reason == (
        "web-1.1 left and instance web-1 is being refilled: held for its successor until 1970-01-01T00:16:45.000+00:00"
    )


def test_the_successor_takes_them_over_one_to_one() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    before = world.decision.owner_of()
    world.tell("web-0.1", "web-2.1")
    world.wait(3_000)
    world.tell("web-0.1", "web-1.2", "web-2.1")
    assert world.decision.owner_of() == {q: own.replace("web-1.1", "web-1.2") for q, own in before.items()}
    moved = [row for row in world.decision.holdings if row.owner == "web-1.2"]
    assert {row.previous_owner for row in moved} == {"web-1.1"}
    assert {row.state for row in world.decision.holdings} == {OwnershipState.OWNED}
    assert world.engine.next_event_ms() is None


def test_a_rollout_of_all_members_one_by_one_moves_no_queue_between_places() -> None:
    ids = [f"web-{number}.1" for number in range(5)]
    world = World(*ids)
    place_of = {queue: own.partition(".")[0] for queue, own in world.decision.owner_of().items()}
    for number in range(5):
        old = ids[number]
        ids.remove(old)
        world.tell(*ids)
        world.wait(500)
        ids.insert(number, old.replace(".1", ".2"))
        world.tell(*ids)
        assert {queue: own.partition(".")[0] for queue, own in world.decision.owner_of().items()} == place_of


def test_a_newcomer_of_another_place_shares_the_rest_and_gets_nothing_that_is_held() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    lost = set(world.share("web-1.1"))
    world.tell("web-0.1", "web-2.1", "web-3.1")
    assert not lost & set(world.share("web-3.1"))
    assert sorted(len(world.share(own)) for own in ("web-0.1", "web-2.1", "web-3.1")) == [2, 3, 3]


def test_without_a_successor_the_hold_ends_in_time() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    world.tell("web-0.1", "web-2.1")
    assert world.engine.next_event_ms() == 5_000
    assert world.wait(4_999) == []
    assert {decision.topic for decision in world.wait(1)} == {"T", "U"}
    assert (world.decision.held, world.decision.unowned) == (0, 0)
    assert "given out" in world.decision.reason
    assert world.engine.next_event_ms() is None
    world.tell("web-0.1", "web-1.2", "web-2.1")
    assert len(world.share("web-1.2")) == 4, "too late for its predecessor's queues, in time for its share"


def test_a_question_sees_the_end_of_a_hold_without_waiting_for_the_loop() -> None:
    world = World("web-0.1", "web-1.1")
    world.tell("web-0.1")
    question = AssignmentQuestion(group="g", topic="T", client_id="web-0.1")
    assert len(world.engine.query(question, now_ms=4_999, wall_ms=0).queues) == 6
    assert len(world.engine.query(question, now_ms=5_000, wall_ms=0).queues) == 12


def test_a_queue_in_which_too_much_waits_is_given_away_at_once_and_only_that() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    lost = world.share("web-1.1")
    world.tell("web-0.1", "web-2.1")
    assert world.lag(lost[0], 1_000) == []
    (decision,) = world.lag(lost[0], 1_001)
    assert (decision.held, decision.unowned) == (len(lost) - 1, 0)
    assert world.states()[lost[0]] is OwnershipState.OWNED


def test_a_queue_in_which_too_much_waits_already_is_not_held() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    lost = world.share("web-1.1")
    world.lag(lost[0], 5_000)
    world.tell("web-0.1", "web-2.1")
    assert world.states()[lost[0]] is OwnershipState.OWNED
    assert world.decision.held == len(lost) - 1


def test_a_policy_without_holds_ends_them() -> None:
    world = World("web-0.1", "web-1.1")
    world.tell("web-0.1")
    world.balance = BalancePolicy()
    world.tell("web-0.1")
    assert world.decision.held == 0


def test_nothing_is_held_by_default_nor_for_members_without_a_place() -> None:
    world = World("web-0.1", "web-1.1", balance=BalancePolicy())
    world.tell("web-0.1")
    assert (world.decision.held, world.decision.unowned) == (0, 0)


def test_all_brokers_groups_have_nothing_to_hold() -> None:
    world = World("web-0.1", "web-1.1", strategy="")
    world.tell("web-0.1")
    assert world.decision.held == 0


def test_all_members_may_be_replaced_at_once() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    before = world.decision.owner_of()
    world.tell()
    assert (world.decision.held, world.decision.owners) == (12, 0)
    world.tell("web-2.2", "web-0.2", "web-1.2")
    assert world.decision.owner_of() == {q: own.replace(".1", ".2") for q, own in before.items()}


def test_a_pod_that_terminates_in_a_rollout_is_waited_for_without_labels() -> None:
    engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0))
    leaving = set()
    engine.facts.set_places(lambda _: "", lambda address: MemberPlace("ns/deployment/web", leaving=address in leaving))
    engine.facts.opened("b", 1)

    def tell(*hosts, at_ms=0):
        members = tuple(MemberFact(client_id=f"c{host}", topics=("T",), address=host) for host in hosts)
        fact = GroupFact(group="g", strategy="STICKY", members=members, balance=HOLD)
        topic = TopicFact(topic="T", read_queues=6)
        engine.reported(1, BrokerReport(broker_name="b", groups=(fact,), topics=(topic,)), now_ms=0)
        engine.settle(now_ms=at_ms, wall_ms=at_ms)
        return next(engine.decisions())

    before = tell("1", "2", "3")
    assert tell("1", "2").held == 0, "its pod is not being replaced"
    leaving.add("2")
    tell("1", "2", "3")
    assert tell("1", "3", at_ms=10_000).held == 2
    after = tell("1", "3", "4", at_ms=10_000)
    assert (after.held, after.moves) == (0, 2)
    assert before.shares.keys() == {"c1", "c2", "c3"}


@pytest.mark.parametrize("strategy", ["STICKY", "AVG"])
def test_a_hold_survives_a_change_of_the_leader_and_its_successor_gets_exactly_its_queues(strategy) -> None:
    world = World("web-0.1", "web-1.1", "web-2.1", strategy=strategy)
    before = world.decision.owner_of()
    world.tell("web-0.1", "web-2.1")
    after = world.followed("web-0.1", "web-2.1", later_ms=2_000)
    assert after.decision.owner_of() == world.decision.owner_of()
    assert after.states() == world.states(), "HELD"
    assert after.decision.inputs.held.keys() == world.decision.inputs.held.keys()
    row = next(holding for holding in after.decision.holdings if holding.state is OwnershipState.HELD)
    assert row.previous_owner == "web-1.1"
    assert row.reason.startswith("web-1.1 left and instance web-1 is being refilled: held")
    assert row.reason.endswith("until 1970-01-01T00:16:45.000+00:00"), "the same time as before"
    after.wait(1_000)
    after.tell("web-0.1", "web-1.2", "web-2.1")
    assert after.decision.owner_of() == {q: own.replace("web-1.1", "web-1.2") for q, own in before.items()}
    assert (after.decision.held, after.decision.moves) == (0, 4)
    assert {row.previous_owner for row in after.decision.holdings if row.owner == "web-1.2"} == {"web-1.1"}
    assert after.engine.next_event_ms() is None


def test_a_successor_that_came_between_two_leaders_gets_exactly_the_held_queues() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    before = world.decision.owner_of()
    world.tell("web-0.1", "web-2.1")
    after = world.followed("web-0.1", "web-1.2", "web-2.1")
    assert after.decision.owner_of() == {q: own.replace("web-1.1", "web-1.2") for q, own in before.items()}


def test_all_that_waits_goes_on_waiting_also_in_a_group_without_members() -> None:
    world = World("web-0.1", "web-1.1")
    before = world.decision.owner_of()
    world.tell()
    after = world.followed()
    assert (after.decision.held, after.decision.owners) == (12, 0)
    third = after.followed()
    third.tell("web-0.2", "web-1.2")
    assert third.decision.owner_of() == {q: own.replace(".1", ".2") for q, own in before.items()}


def test_what_goes_on_waiting_ends_in_time_by_lag_or_with_the_policy() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    lost = world.share("web-1.1")
    world.tell("web-0.1", "web-2.1")
    after = world.followed("web-0.1", "web-2.1", later_ms=4_000)
    assert after.wait(999) == []
    assert (after.decision.held, after.engine.next_event_ms()) == (4, after.now_ms + 1)
    after.lag(lost[0], 1_001)
    assert after.decision.held == 3
    after.wait(1)
    assert (after.decision.held, after.decision.unowned) == (0, 0)
    assert world.followed("web-0.1", "web-2.1", balance=BalancePolicy()).decision.held == 0
    late = world.followed("web-0.1", "web-2.1", later_ms=5_000)
    assert (late.decision.held, late.decision.unowned) == (0, 0)


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
def test_a_leader_with_another_clock_waits_no_longer_than_the_policy_says(skew_ms) -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    world.tell("web-0.1", "web-2.1")
    after = world.followed("web-0.1", "web-2.1", skew_ms=skew_ms)
    assert after.decision.held == (4 if skew_ms < 0 else 0)
    after.wait(5_000)
    assert (after.decision.held, after.decision.unowned) == (0, 0)


def test_brokers_that_tell_of_no_holds_or_of_unknown_queues_do_no_harm() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    world.tell("web-0.1", "web-2.1")
    assert world.followed("web-0.1", "web-2.1", held=()).decision.held == 0
    odd = tuple(
        HoldsFact(
            topic=topic,
            places=(
                HeldPlaceFact(
                    client_id="x", place="p", until_wall_ms=1 << 62, queues=(MessageQueue(topic, "gone", 900),)
                ),
            ),
        )
        for topic in ("T", "NO_SUCH")
    )
    after = world.followed("web-0.1", "web-2.1", held=odd)
    assert (after.decision.held, after.decision.unowned) == (0, 0)
    assert {decision.topic for decision in after.engine.decisions()} == {"T", "U"}


def test_a_broker_that_reports_anew_to_the_same_leader_revives_nothing() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    world.tell("web-0.1", "web-2.1")
    kept = tuple(holds_of(decision) for decision in world.engine.decisions())
    world.wait(5_000)
    world.engine.facts.opened("b", 1)
    world.heard = {"holds": kept}
    world.tell("web-0.1", "web-2.1")
    assert world.decision.held == 0


def test_lines_are_limited_and_indexed_by_topic() -> None:
    assignments = TopicAssignments(assignments_max=2)
    first = assignments.open("g1", "T")
    assert assignments.open("g1", "T") is first
    assignments.open("g2", "T")
    assert (assignments.groups_of("T"), len(assignments), assignments.full) == (["g1", "g2"], 2, True)
    with pytest.raises(TooManyRequests, match="decisions_max"):
        assignments.open("g3", "T")
    assignments.close("g1", "T")
    assert [(group, topic) for group, topic, _ in assignments] == [("g2", "T")]
    assignments.check(lambda _: None)
