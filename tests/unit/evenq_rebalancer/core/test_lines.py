"""Lines: what they hold and owe, seen through a board (rollouts)."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.board import Board, Limits, Question
from evenq_rebalancer.core.decisions import HoldingState
from evenq_rebalancer.core.lines import Lines
from evenq_rebalancer.core.places import Place
from evenq_rebalancer.core.told import GroupFact, LagFact, MemberFact, Report, TopicFact

from evenq.errors import TooManyRequests
from evenq.model import MessageQueue
from evenq.model.balance import BalancePolicy

HOLD = BalancePolicy(hold_ms=5_000, hold_lag_max=1_000)


class World:
    """Members named by place and incarnation: `web-0.1` is the first in place `web-0`. One broker of 12 queues."""

    def __init__(self, *ids: str, strategy="STICKY", balance=HOLD) -> None:
        self.board = Board(epoch=1, limits=Limits(warm_up_ms=0))
        self.board.facts.opened("b", 1)
        self.strategy, self.balance, self.now_ms = strategy, balance, 0
        self.tell(*ids)

    def tell(self, *ids):
        members = tuple(
            MemberFact(client_id=own, topics=("T", "U"), instance=own.partition(".")[0]) for own in sorted(ids)
        )
        fact = GroupFact(group="g", strategy=self.strategy, members=members, balance=self.balance)
        topics = (TopicFact(topic="T", read_queues=12), TopicFact(topic="U", read_queues=3))
        self.board.reported(1, Report(broker_name="b", groups=(fact,), topics=topics), now_ms=self.now_ms)
        return self.settle()

    def lag(self, queue_id, lag):
        lags = LagFact(group="g", lags=((MessageQueue("T", "b", queue_id), lag),))
        self.board.reported(1, Report(broker_name="b", lags=(lags,)), now_ms=self.now_ms)
        return self.settle()

    def settle(self):
        decisions = self.board.settle(now_ms=self.now_ms, wall_ms=1_000_000 + self.now_ms)
        self.board.check()
        return decisions

    def wait(self, ms):
        self.now_ms += ms
        return self.settle()

    @property
    def decision(self):
        return next(decision for decision in self.board.decisions() if decision.topic == "T")

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
    assert [number for number, state in states.items() if state is HoldingState.HELD] == lost
    assert world.decision.owner_of() == {q: own for q, own in before.items() if own != "web-1.1"}
    assert (world.decision.held, world.decision.unowned, world.decision.moves) == (len(lost), 0, 0)
    row = next(holding for holding in world.decision.holdings if holding.state is HoldingState.HELD)
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
    assert {row.state for row in world.decision.holdings} == {HoldingState.OWNED}
    assert world.board.next_event_ms() is None


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
    assert world.board.next_event_ms() == 5_000
    assert world.wait(4_999) == []
    assert {decision.topic for decision in world.wait(1)} == {"T", "U"}
    assert (world.decision.held, world.decision.unowned) == (0, 0)
    assert "given out" in world.decision.reason
    assert world.board.next_event_ms() is None
    world.tell("web-0.1", "web-1.2", "web-2.1")
    assert len(world.share("web-1.2")) == 4, "too late for its predecessor's queues, in time for its share"


def test_a_question_sees_the_end_of_a_hold_without_waiting_for_the_loop() -> None:
    world = World("web-0.1", "web-1.1")
    world.tell("web-0.1")
    question = Question(group="g", topic="T", client_id="web-0.1")
    assert len(world.board.query(question, now_ms=4_999, wall_ms=0).queues) == 6
    assert len(world.board.query(question, now_ms=5_000, wall_ms=0).queues) == 12


def test_a_queue_in_which_too_much_waits_is_given_away_at_once_and_only_that() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    lost = world.share("web-1.1")
    world.tell("web-0.1", "web-2.1")
    assert world.lag(lost[0], 1_000) == []
    (decision,) = world.lag(lost[0], 1_001)
    assert (decision.held, decision.unowned) == (len(lost) - 1, 0)
    assert world.states()[lost[0]] is HoldingState.OWNED


def test_a_queue_in_which_too_much_waits_already_is_not_held() -> None:
    world = World("web-0.1", "web-1.1", "web-2.1")
    lost = world.share("web-1.1")
    world.lag(lost[0], 5_000)
    world.tell("web-0.1", "web-2.1")
    assert world.states()[lost[0]] is HoldingState.OWNED
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
    board = Board(epoch=1, limits=Limits(warm_up_ms=0))
    leaving = set()
    board.facts.set_places(lambda _: "", lambda address: Place("ns/deployment/web", leaving=address in leaving))
    board.facts.opened("b", 1)

    def tell(*hosts, at_ms=0):
        members = tuple(MemberFact(client_id=f"c{host}", topics=("T",), address=host) for host in hosts)
        fact = GroupFact(group="g", strategy="STICKY", members=members, balance=HOLD)
        topic = TopicFact(topic="T", read_queues=6)
        board.reported(1, Report(broker_name="b", groups=(fact,), topics=(topic,)), now_ms=0)
        board.settle(now_ms=at_ms, wall_ms=at_ms)
        return next(board.decisions())

    before = tell("1", "2", "3")
    assert tell("1", "2").held == 0, "its pod is not being replaced"
    leaving.add("2")
    tell("1", "2", "3")
    assert tell("1", "3", at_ms=10_000).held == 2
    after = tell("1", "3", "4", at_ms=10_000)
    assert (after.held, after.moves) == (0, 2)
    assert before.shares.keys() == {"c1", "c2", "c3"}


def test_lines_are_limited_and_indexed_by_topic() -> None:
    lines = Lines(lines_max=2)
    first = lines.open("g1", "T")
    assert lines.open("g1", "T") is first
    lines.open("g2", "T")
    assert (lines.groups_of("T"), len(lines), lines.full) == (["g1", "g2"], 2, True)
    with pytest.raises(TooManyRequests, match="decisions_max"):
        lines.open("g3", "T")
    lines.close("g1", "T")
    assert [(group, topic) for group, topic, _ in lines] == [("g2", "T")]
    lines.check(lambda _: None)
