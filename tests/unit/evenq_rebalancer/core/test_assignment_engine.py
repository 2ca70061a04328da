"""The engine: every answer comes from the one decision that stands."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.assignment_engine import AssignmentEngine, AssignmentQuestion, EngineLimits
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
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
from evenq_rebalancer.core.simulate import Wish
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evenq.errors import BadRequest, GroupNotFound, TooManyRequests, TopicNotFound
from evenq.model import Generation, MessageModel, MessageQueue
from evenq.model.balance import EVEN_BALANCE, BalancePolicy, Weight


class World:
    """A engine with one broker `b` on stream 1 and a hand-moved time."""

    def __init__(self, *, warm_up_ms: int = 0, **limits) -> None:
        self.engine = AssignmentEngine(epoch=77, limits=EngineLimits(warm_up_ms=warm_up_ms, **limits))
        self.engine.facts.opened("b", 1)
        self.now_ms = 0

    def tell(self, *ids, group="g", strategy="AVG", topics=("T",), queues=None, model=MessageModel.CLUSTERING, **rest):
        members = tuple(MemberFact(client_id=own, topics=topics, model=model) for own in ids)
        facts = (GroupFact(group=group, strategy=strategy, members=members),)
        wide = tuple(TopicFact(topic=topic, read_queues=count) for topic, count in (queues or {}).items())
        self.engine.reported(1, BrokerReport(broker_name="b", groups=facts, topics=wide, **rest), now_ms=self.now_ms)

    def settle(self):
        decisions = self.engine.settle(now_ms=self.now_ms, wall_ms=1_000 + self.now_ms)
        self.engine.check()
        return decisions

    def ask(self, client_id="a", group="g", topic="T", **rest):
        question = AssignmentQuestion(group=group, topic=topic, client_id=client_id, **rest)
        answer = self.engine.query(question, now_ms=self.now_ms, wall_ms=1_000 + self.now_ms)
        self.engine.check()
        return answer

    def ids(self, client_id, **rest):
        return [queue.queue_id for queue in self.ask(client_id, **rest).queues]


def test_subscribed_topics_are_decided_without_anybody_asking() -> None:
    world = World()
    world.tell("a", "b", queues={"T": 4})
    (decision,) = world.settle()
    assert (decision.group, decision.topic, decision.generation.epoch) == ("g", "T", 77)
    assert world.settle() == []


def test_a_question_sees_what_was_told_before_it_without_waiting_for_the_loop() -> None:
    world = World()
    world.tell("a", queues={"T": 4})
    assert world.ids("a") == [0, 1, 2, 3]
    world.tell("a", "b")
    assert (world.ids("a"), world.ids("b")) == ([0, 1], [2, 3])
    assert world.engine.has_news
    assert [decision.generation.counter for decision in world.settle()] == [1, 2]
    assert not world.engine.has_news


def test_asking_makes_no_new_decision() -> None:
    world = World()
    world.tell("a", "b", queues={"T": 4})
    generations = {world.ask(own).generation for own in "ababab"}
    assert len(generations) == 1
    world.tell("a", "b", queues={"T": 4})
    assert world.ask("a").generation in generations, "the same facts again are no change"


def test_generations_grow_over_all_groups_and_over_groups_that_come_back() -> None:
    world = World()
    world.tell("a", queues={"T": 4})
    first = world.ask("a").generation
    world.engine.reported(1, BrokerReport(broker_name="b", groups_gone=("g",)), now_ms=0)
    world.settle()
    assert not world.ask("a").known
    world.tell("a")
    assert world.ask("a").generation > first


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"group": "other"}, "consumer group 'other'"),
        ({"topic": "U"}, "topic 'U'"),
        ({"client_id": "stranger"}, "member 'stranger'"),
    ],
)
def test_unknown_groups_topics_and_members_are_not_answered(question, words) -> None:
    world = World()
    world.tell("a", queues={"T": 4})
    answer = world.ask(**question)
    assert not answer.known
    assert words in answer.reason


def test_a_known_topic_without_readable_queues_is_a_known_nothing() -> None:
    world = World()
    world.tell("a", queues={"T": 0})
    answer = world.ask("a")
    assert (answer.known, answer.queues) == (True, ())


def test_nothing_is_answered_or_decided_until_the_warm_up_is_over() -> None:
    world = World(warm_up_ms=500)
    assert world.engine.next_event_ms() is None
    world.tell("a", queues={"T": 4})
    world.now_ms = 499
    assert world.settle() == []
    assert not world.ask("a").known
    assert world.engine.next_event_ms() == 500
    world.now_ms = 500
    assert world.ask("a").known
    assert len(world.settle()) == 1
    assert world.engine.next_event_ms() is None


def test_a_broker_that_others_name_and_that_has_not_come_is_waited_for() -> None:
    world = World(warm_up_ms=500, grace_ms=3_000)
    other = HeldFact(queue=MessageQueue("T", "b2", 0), holder="a")
    members = (MemberFact(client_id="a", topics=("T",)), MemberFact(client_id="b", topics=("T",)))
    fact = GroupFact(group="g", strategy="AVG", members=members, held=(other,))
    topic = TopicFact(topic="T", read_queues=2)
    world.engine.reported(1, BrokerReport(broker_name="b", groups=(fact,), topics=(topic,)), now_ms=0)
    world.now_ms = 3_499
    assert world.settle() == []
    assert not world.ask("a").known
    world.engine.facts.opened("b2", 2)
    assert world.settle() == [], "open, but nothing reported yet"
    world.engine.reported(2, BrokerReport(broker_name="b2", topics=(topic,)), now_ms=0)
    assert len(world.settle()[0].inputs.queues) == 4


def test_a_broker_that_others_know_to_live_is_waited_for_although_nobody_holds_anything() -> None:
    world = World(warm_up_ms=500, grace_ms=3_000)
    fact = GroupFact(group="g", strategy="AVG", members=(MemberFact(client_id="a", topics=("T",)),))
    topic = TopicFact(topic="T", read_queues=2)
    report = BrokerReport(broker_name="b", groups=(fact,), topics=(topic,), brokers=("b", "b2"))
    world.engine.reported(1, report, now_ms=0)
    world.now_ms = 1_000
    assert world.settle() == []
    world.engine.facts.opened("b2", 2)
    world.engine.reported(2, BrokerReport(broker_name="b2", topics=(topic,), brokers=("b", "b2")), now_ms=0)
    assert len(world.settle()[0].inputs.queues) == 4


def test_a_broker_that_never_comes_is_waited_for_no_longer_than_its_grace() -> None:
    world = World(warm_up_ms=500, grace_ms=3_000)
    other = HeldFact(queue=MessageQueue("T", "gone", 0), holder="a")
    fact = GroupFact(group="g", strategy="AVG", members=(MemberFact(client_id="a", topics=("T",)),), held=(other,))
    topic = TopicFact(topic="T", read_queues=2)
    world.engine.reported(1, BrokerReport(broker_name="b", groups=(fact,), topics=(topic,)), now_ms=0)
    world.now_ms = 3_500
    assert len(world.settle()) == 1


def test_the_groups_own_strategy_counts_before_a_members_wish() -> None:
    world = World()
    world.tell("a", "b", strategy="AVG_BY_CIRCLE", queues={"T": 4})
    assert world.ids("a", strategy="AVG") == [0, 2]
    assert world.ask("b", strategy="CONSISTENT_HASH").strategy == "AVG_BY_CIRCLE"


def test_without_an_own_strategy_the_first_wish_counts_for_all() -> None:
    world = World()
    world.tell("a", "b", strategy="", queues={"T": 4})
    assert world.ids("a") == [-1]
    assert world.ids("b", strategy="AVG_BY_CIRCLE") == [1, 3]
    assert world.ids("a", strategy="AVG") == [0, 2]
    assert world.ids("a") == [0, 2]


@pytest.mark.parametrize("name", ["NONSENSE", "CONFIG", "MACHINE_ROOM"])
def test_a_wish_that_cannot_be_met_is_refused_and_changes_nothing(name) -> None:
    world = World()
    world.tell("a", strategy="", queues={"T": 4})
    with pytest.raises(BadRequest):
        world.ask("a", strategy=name)
    assert world.ids("a") == [-1]


def test_rb_12_a_strategy_that_fails_leaves_the_decision_as_it_was() -> None:
    world = World()
    world.tell("a", "b", queues={"T": 4})
    before = world.ask("a")
    world.tell("a", "b", strategy="NO_SUCH")
    assert world.ask("a") == before
    ((pair, problem),) = world.engine.take_problems().items()
    assert pair == ("g", "T")
    assert "NO_SUCH" in problem
    world.tell("a", "b", "c", strategy="NO_SUCH")
    assert not world.ask("c").known
    world.tell("a", "b", "c", strategy="AVG")
    assert world.ids("c") == [3]


def test_a_group_whose_strategy_never_worked_is_not_answered() -> None:
    world = World()
    world.tell("a", strategy="CONFIG", queues={"T": 4})
    answer = world.ask("a")
    assert not answer.known
    assert "CONFIG" in answer.reason


def test_rb_17_who_asks_as_broadcasting_gets_all_queues() -> None:
    world = World()
    world.tell("a", "b", queues={"T": 4})
    answer = world.ask("a", model=MessageModel.BROADCASTING)
    assert [queue.queue_id for queue in answer.queues] == [0, 1, 2, 3]
    assert answer.mode is RequestMode.PULL


def test_a_request_mode_makes_a_new_decision() -> None:
    world = World()
    world.tell(*"abcd", queues={"T": 4})
    first = world.ask("a")
    assert (first.mode, world.engine.mode("g", "T").mode) == (RequestMode.PULL, RequestMode.PULL)
    world.engine.set_mode("g", "T", RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=1))
    (second,) = world.settle()[-1:]
    assert second.generation > first.generation
    answer = world.ask("a")
    assert ([queue.queue_id for queue in answer.queues], answer.mode) == ([0, 1], RequestMode.POP)
    assert world.engine.mode("g", "T").pop_share_queue_num == 1
    world.engine.set_mode("g", "T", RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=1))
    assert world.settle() == []


def test_lines_close_when_no_member_reads_the_topic_and_when_the_group_is_gone() -> None:
    world = World()
    world.tell("a", topics=("T", "U"), queues={"T": 4, "U": 4})
    world.settle()
    world.tell("a", topics=("U",))
    world.settle()
    assert [decision.topic for decision in world.engine.decisions()] == ["U"]
    world.engine.reported(1, BrokerReport(broker_name="b", groups_gone=("g",)), now_ms=0)
    world.settle()
    assert list(world.engine.decisions()) == []


def test_a_topic_that_comes_later_is_decided_when_it_comes() -> None:
    world = World()
    world.tell("a")
    assert world.settle() == []
    world.tell("a", queues={"T": 2})
    assert [decision.topic for decision in world.settle()] == ["T"]
    world.engine.reported(1, BrokerReport(broker_name="b", topics_gone=("T",)), now_ms=0)
    world.settle()
    assert list(world.engine.decisions()) == []
    world.tell("a", queues={"T": 2})
    assert len(world.settle()) == 1


def test_the_last_member_leaving_leaves_the_queues_unowned() -> None:
    world = World()
    world.tell("a", queues={"T": 2})
    world.settle()
    world.tell()
    (decision,) = world.settle()
    assert decision.unowned == 2
    assert decision.reason == "a left"


def test_moves_are_counted_per_line() -> None:
    world = World()
    world.tell("a", queues={"T": 4})
    world.settle()
    world.tell("a", "b")
    world.settle()
    world.tell("b")
    world.settle()
    assert world.engine.moves_total("g", "T") == 4
    assert world.engine.moves_total("g", "none") == 0


def test_explain_tells_all_topics_of_a_group_and_starts_no_decision() -> None:
    world = World()
    world.tell("a", topics=("T", "U"), queues={"T": 1, "U": 1, "V": 1})
    times = {"now_ms": 0, "wall_ms": 0}
    assert [decision.topic for decision in world.engine.explain("g", "", **times)] == ["T", "U"]
    assert world.engine.explain("g", "V", **times) == []
    with pytest.raises(GroupNotFound):
        world.engine.explain("other", "", **times)
    with pytest.raises(TopicNotFound):
        world.engine.explain("g", "W", **times)


def test_simulate_needs_a_decision_to_compare_with() -> None:
    world = World()
    world.tell("a", "b", queues={"T": 4, "V": 1})
    times = {"now_ms": 0, "wall_ms": 0}
    assert world.engine.simulate("g", "T", Wish(members=4), **times).queues_per_member_max == 1
    with pytest.raises(BadRequest, match="no decision about"):
        world.engine.simulate("g", "V", Wish(members=4), **times)
    with pytest.raises(BadRequest, match="NO_SUCH"):
        world.engine.simulate("g", "T", Wish(strategy="NO_SUCH"), **times)


def test_pairs_are_limited() -> None:
    world = World(decisions_max=2)
    world.tell("a", topics=("T", "U", "V"), queues={"T": 1, "U": 1, "V": 1})
    assert len(world.settle()) == 2
    with pytest.raises(TooManyRequests, match="decisions_max"):
        world.ask("a", topic="V")


IDS = st.lists(st.sampled_from("abcde"), unique=True, max_size=5)
POLICIES = [
    EVEN_BALANCE,
    BalancePolicy(moves_max=1),
    BalancePolicy(hold_ms=120, hold_lag_max=100),
    BalancePolicy(weight=Weight.LAG, moves_max=2, hold_ms=120),
]
HELD = st.builds(
    HeldFact,
    queue=st.builds(MessageQueue, st.just("T"), st.sampled_from(["b1", "b2"]), st.integers(0, 4)),
    holder=st.sampled_from("abcde"),
    generation=st.builds(Generation, st.sampled_from([0, 1, 5, 1 << 62]), st.integers(0, 5)),
)
HOLDS = st.builds(
    HoldsFact,
    topic=st.sampled_from("TU"),
    generation=st.builds(Generation, st.sampled_from([0, 1, 5, 1 << 62]), st.integers(0, 5)),
    places=st.lists(
        st.builds(
            HeldPlaceFact,
            client_id=st.sampled_from("abcdef"),
            place=st.sampled_from(["instance place-0", "instance place-1"]),
            until_wall_ms=st.integers(-10, 1_000),
            queues=st.lists(
                st.builds(MessageQueue, st.sampled_from("TU"), st.sampled_from(["b1", "b2"]), st.integers(0, 4)),
                max_size=5,
            ).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
)
GROUPS, TOPICS, BROKERS = ("g1", "g2"), ("T", "U"), ("b1", "b2")


class AnyHistory(RuleBasedStateMachine):
    """Whatever brokers tell and members ask: one decision for all, generations grow, shares cover each queue once."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = AssignmentEngine(epoch=1, limits=EngineLimits(warm_up_ms=0, grace_ms=100))
        self.now_ms = 0
        self.stream = 0
        self.streams: dict[str, int] = {}
        self.newest: dict[tuple[str, str], object] = {}

    @rule(broker=st.sampled_from(BROKERS))
    def open(self, broker) -> None:
        self.stream += 1
        self.streams[broker] = self.stream
        self.engine.facts.opened(broker, self.stream)

    @rule(broker=st.sampled_from(BROKERS))
    def close(self, broker) -> None:
        if broker in self.streams:
            self.engine.facts.closed(broker, self.streams.pop(broker), self.now_ms)

    @rule(
        broker=st.sampled_from(BROKERS),
        group=st.sampled_from(GROUPS),
        ids=IDS,
        topics=st.lists(st.sampled_from(TOPICS), unique=True).map(sorted),
        count=st.integers(0, 5),
        strategy=st.sampled_from(["", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY", "STICKY", "NO_SUCH"]),
        balance=st.sampled_from(POLICIES),
        held=st.lists(HELD, max_size=3),
        holds=st.lists(HOLDS, max_size=2),
        lags=st.lists(st.sampled_from([0, 50, 5_000]), max_size=5),
        full=st.booleans(),
    )
    def tell(self, broker, group, ids, topics, count, strategy, balance, held, holds, lags, full) -> None:
        if broker not in self.streams:
            return
        members = tuple(
            MemberFact(client_id=own, topics=tuple(topics), instance=f"place-{ord(own) % 2}" * (own != "e"))
            for own in sorted(ids)
        )
        rows = tuple((MessageQueue("T", broker, index), lag) for index, lag in enumerate(lags))
        report = BrokerReport(
            broker_name=broker,
            full=full,
            groups=(
                GroupFact(
                    group=group,
                    strategy=strategy,
                    members=members,
                    balance=balance,
                    held=tuple(held),
                    holds=tuple(holds),
                ),
            ),
            topics=tuple(TopicFact(topic=topic, read_queues=count) for topic in topics),
            lags=(LagFact(group=group, lags=rows),),
        )
        self.engine.reported(self.streams[broker], report, now_ms=self.now_ms)

    @rule(passed_ms=st.integers(0, 150))
    def pass_time(self, passed_ms) -> None:
        self.now_ms += passed_ms
        self.engine.facts.expire(self.now_ms)

    @rule()
    def settle(self) -> None:
        self.engine.settle(now_ms=self.now_ms, wall_ms=self.now_ms)
        for decision in self.engine.decisions():
            assert self.engine.facts.group_version(decision.group)
            assert self.engine.facts.topic_version(decision.topic)
            for hold in decision.inputs.held.values():
                assert self.now_ms < hold.until_ms <= self.now_ms + 120

    @rule(group=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS), wish=st.sampled_from(["", "", "AVG"]))
    def everybody_asks(self, group, topic, wish) -> None:
        answers = {
            own: self.engine.query(
                AssignmentQuestion(group=group, topic=topic, client_id=own, strategy=wish),
                now_ms=self.now_ms,
                wall_ms=self.now_ms,
            )
            for own in [member.client_id for member in self.engine.facts.members(group)]
        }
        known = [answer for answer in answers.values() if answer.known]
        assert len({(answer.generation, answer.strategy, answer.mode) for answer in known}) <= 1
        if not known:
            return
        generation = known[0].generation
        assert generation >= self.newest.get((group, topic), generation)
        self.newest[group, topic] = generation
        explained = self.engine.explain(group, topic, now_ms=self.now_ms, wall_ms=self.now_ms)
        if not explained:  # no member subscribes to the topic, so its assignment ends as soon as a client looks
            return
        decision = explained[0]
        if len(known) == len(decision.shares) and decision.strategy != "ALL_BROKERS":
            given = sorted([queue for answer in known for queue in answer.queues] + list(decision.inputs.held))
            if decision.inputs.readers:
                assert given == list(decision.inputs.queues)

    @invariant()
    def holds(self) -> None:
        self.engine.check()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
