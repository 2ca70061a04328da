"""An assignment's next decision: previous owners, failing strategies, budgets of moves, lags."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.assignment_engine import AssignmentEngine, AssignmentQuestion, EngineLimits
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.pacing import AGAIN_MS, LAG_PERIOD_MS
from evenq_rebalancer.core.reports import BrokerReport, GroupFact, HeldFact, LagFact, MemberFact, ModeFact, TopicFact
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.allocation import known_names
from evenq.model import Generation, MessageQueue
from evenq.model.balance import EVEN_BALANCE, BalancePolicy, Weight

BROKERS = ("b1", "b2")
STRATEGIES = ["STICKY", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY-AVG"]


class World:
    """A engine with two brokers in two zones, of 4 queues each."""

    def __init__(self, *, epoch=1_000, strategy="STICKY", queues=4, balance=EVEN_BALANCE) -> None:
        self.engine = AssignmentEngine(epoch=epoch, limits=EngineLimits(warm_up_ms=0))
        self.strategy, self.queues, self.balance, self.now_ms = strategy, queues, balance, 0
        self.ids: tuple[str, ...] = ()
        for number, name in enumerate(BROKERS, 1):
            self.engine.facts.opened(name, number)

    def tell(self, *ids, held=(), settle=True):
        self.ids = ids
        for number, name in enumerate(BROKERS, 1):
            members = tuple(
                MemberFact(client_id=own, topics=("T",), zone=f"z{1 + ord(own[0]) % 2}") for own in sorted(ids)
            )
            fact = GroupFact(
                group="g",
                strategy=self.strategy,
                members=members,
                balance=self.balance,
                held=tuple(fact for fact in held if fact.queue.broker_name == name),
            )
            topic = TopicFact(topic="T", read_queues=self.queues)
            self.engine.reported(
                number,
                BrokerReport(broker_name=name, groups=(fact,), topics=(topic,), zone=f"z{number}", full=True),
                now_ms=self.now_ms,
            )
        return self.settle() if settle else []

    def lag(self, *lags):
        """Of the queues in order."""
        queues = [MessageQueue("T", name, index) for name in BROKERS for index in range(self.queues)]
        fields = dict(zip(queues, lags, strict=True))
        for number, name in enumerate(BROKERS, 1):
            mine = tuple((queue, lag) for queue, lag in fields.items() if queue.broker_name == name)
            self.engine.reported(
                number, BrokerReport(broker_name=name, lags=(LagFact(group="g", lags=mine),)), now_ms=self.now_ms
            )
        return self.settle()

    def settle(self):
        decisions = self.engine.settle(now_ms=self.now_ms, wall_ms=self.now_ms)
        self.engine.check()
        return decisions

    def wait(self, ms):
        self.now_ms += ms
        return self.settle()

    @property
    def decision(self):
        return next(iter(self.engine.decisions()))

    @property
    def owners(self):
        return self.decision.owner_of()

    @property
    def sizes(self):
        return sorted(len(mine) for mine in self.decision.shares.values())

    def held(self):
        """What brokers tell a new leader: the locks that members took by this decision."""
        generation = self.decision.generation
        return tuple(HeldFact(queue=queue, holder=own, generation=generation) for queue, own in self.owners.items())


def test_a_join_moves_only_what_the_newcomer_gets_and_a_leave_only_what_the_leaver_had() -> None:
    world = World()
    world.tell("a", "b")
    before = world.owners
    world.tell("a", "b", "c", "d")
    assert world.sizes == [2, 2, 2, 2]
    assert all(own in {"c", "d"} or own == before[queue] for queue, own in world.owners.items())
    between = world.owners
    world.tell("a", "b", "d")
    assert all(own == between[queue] or between[queue] == "c" for queue, own in world.owners.items())


HISTORIES = st.lists(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1), min_size=1, max_size=6)


@given(strategy=st.sampled_from(STRATEGIES), history=HISTORIES)
@settings(max_examples=60, deadline=None)
def test_a_new_leader_that_is_told_who_holds_what_decides_the_same_owners(strategy, history) -> None:
    old = World(strategy=strategy)
    for ids in history:
        old.tell(*ids)
    new = World(strategy=strategy, epoch=500)
    new.tell(*history[-1], held=old.held())
    assert new.owners == old.owners
    assert new.decision.generation > old.decision.generation, "although its clock is behind"
    assert new.decision.moves == 0
    assert new.tell(*history[-1], held=new.held()) == [], "and its own generations raise nothing"


def test_holders_that_are_gone_hold_nothing() -> None:
    new = World()
    queues = [MessageQueue("T", name, index) for name in BROKERS for index in range(4)]
    new.tell("a", "b", held=tuple(HeldFact(queue=queue, holder="gone") for queue in queues))
    assert new.sizes == [4, 4]


def test_of_two_holders_the_newer_generation_counts() -> None:
    queue, world = MessageQueue("T", "b1", 0), World(queues=1)
    world.tell("a", "b", settle=False)
    for number, (name, holder, counter) in enumerate([("b1", "a", 1), ("b2", "b", 2)], 1):
        fact = GroupFact(
            group="g",
            strategy="STICKY",
            members=tuple(MemberFact(client_id=own, topics=("T",)) for own in "ab"),
            held=(HeldFact(queue=queue, holder=holder, generation=Generation(5, counter)),),
        )
        world.engine.reported(number, BrokerReport(broker_name=name, groups=(fact,)), now_ms=0)
    world.settle()
    assert world.owners[queue] == "b"


def test_a_bigger_epoch_that_is_told_later_raises_all_that_stands() -> None:
    world = World(epoch=1_000)
    world.tell("a", "b")
    first = world.decision
    held = tuple(
        HeldFact(queue=fact.queue, holder=fact.holder, generation=Generation(9_000, 7)) for fact in world.held()
    )
    (again,) = world.tell("a", "b", held=held)
    assert again.generation.epoch == 9_001
    assert (again.shares, again.moves) == (first.shares, 0)
    assert world.tell("a", "b", held=held) == []


def test_an_epoch_of_the_far_future_is_a_lie_and_raises_nothing() -> None:
    world = World(epoch=1_000)
    world.tell("a")
    lie = HeldFact(queue=MessageQueue("T", "b1", 0), holder="a", generation=Generation((1 << 62) + 5, 1))
    assert world.tell("a", held=(lie,)) == []
    assert world.decision.generation.epoch == 1_000


def test_facts_that_tell_no_member_anything_new_keep_the_generation() -> None:
    world = World(strategy="AVG")
    world.tell("a", "b")
    generation = world.decision.generation
    world.balance = BalancePolicy(moves_max=3)
    assert world.tell("a", "b") == []
    assert world.decision.generation == generation
    assert world.decision.inputs.balance == world.balance


@pytest.mark.parametrize("failing", ["NO_SUCH", "MACHINE_ROOM_NEARBY-CONFIG"])
def test_a_strategy_that_fails_leaves_what_stands_and_never_leaves_queues_to_the_dead(failing) -> None:
    world = World(strategy="AVG")
    world.tell("a", "b", "c")
    before = world.owners
    world.strategy = failing
    assert world.tell("a", "b", "c") == [], "all owners live: what stands goes on"
    assert failing in world.engine.problems("g")["T"]
    assert list(world.engine.troubled()) == [("g", "T")]
    (decision,) = world.tell("a", "b")
    assert decision.strategy == "STICKY"
    assert all(own == before[queue] for queue, own in world.owners.items() if before[queue] != "c")
    assert f"in place of {failing}" in decision.reason
    assert world.sizes == [4, 4]
    world.strategy = "AVG"
    world.tell("a", "b")
    assert (world.decision.strategy, world.engine.problems("g")) == ("AVG", {})


def test_a_group_whose_strategy_never_worked_is_served_all_the_same() -> None:
    world = World(strategy="NO_SUCH")
    world.tell("a", "b")
    assert world.sizes == [4, 4]
    answer = world.engine.query(AssignmentQuestion(group="g", topic="T", client_id="a"), now_ms=0, wall_ms=0)
    assert (answer.known, len(answer.queues), answer.strategy) == (True, 4, "STICKY")
    assert "NO_SUCH" in world.engine.take_problems()["g", "T"]
    world.tell("a", "b", "c")
    assert world.engine.take_problems() == {}, "reported once"


def test_every_known_strategy_but_config_serves_a_group_in_zones() -> None:
    for name in [*known_names(), "MACHINE_ROOM_NEARBY-AVG", "MACHINE_ROOM_NEARBY-STICKY"]:
        if name != "CONFIG" and "<" not in name:
            world = World(strategy=name)
            world.tell("a", "b", "c")
            assert (world.decision.strategy, world.engine.problems("g")) == (name, {}), name


def test_a_budget_of_moves_spreads_a_change_over_time_and_then_rests() -> None:
    world = World(queues=8, balance=BalancePolicy(moves_max=3))
    world.tell("a")
    world.tell("a", "b")
    assert (world.decision.moves, world.sizes) == (3, [3, 13])
    assert world.engine.next_event_ms() == AGAIN_MS
    assert world.wait(AGAIN_MS - 1) == []
    for size in (6, 8):
        (decision,) = world.wait(AGAIN_MS)
        assert world.sizes[0] == size
        assert decision.reason == "balancing continues, some queues at a time"
    assert world.wait(AGAIN_MS) == []
    assert world.engine.next_event_ms() is None


def test_queues_without_an_owner_are_given_beyond_the_budget() -> None:
    world = World(queues=8, balance=BalancePolicy(moves_max=1))
    world.tell("a", "b")
    world.tell("a")
    assert (world.decision.unowned, world.sizes) == (0, [16])


BY_LAG = BalancePolicy(weight=Weight.LAG, moves_max=2)


def test_uneven_lags_move_queues_small_ones_do_not() -> None:
    world = World(balance=BY_LAG)
    world.tell("a", "b")
    assert world.lag(*[100, 0] * 4) == []
    first = world.decision.shares["a"]
    lags = [9_000 if queue in first else 0 for queue in sorted(world.owners)]
    (decision,) = world.lag(*lags)
    assert 0 < decision.moves <= 2
    assert "more lag" in decision.reason


def test_lags_that_go_up_and_down_do_not_move_queues_for_ever() -> None:
    world = World(balance=BY_LAG)
    world.tell("a", "b")
    moves = 0
    for turn in range(100):
        lags = [(9_000 if index % 2 == turn % 2 else 1_000) for index in range(8)]
        moves += sum(decision.moves for decision in world.lag(*lags))
        moves += sum(decision.moves for decision in world.wait(LAG_PERIOD_MS // 10))
    assert moves <= 100 * 2 // 10 + 2, "not more than one budget in each period"
    steady = [5_000, 1_000, 4_000, 0, 9_000, 2_000, 7_000, 3_000]
    tail = [
        sum(decision.moves for decision in [*world.lag(*steady), *world.wait(LAG_PERIOD_MS // 4)]) for _ in range(60)
    ]
    assert sum(tail[20:]) == 0, "what is balanced once stays"


def test_one_hopeless_queue_moves_nothing_for_ever() -> None:
    world = World(balance=BY_LAG)
    world.tell("a", "b")
    moved = []
    for _ in range(30):
        moved.append(sum(decision.moves for decision in world.lag(1_000_000, *[0] * 7)))
        world.wait(LAG_PERIOD_MS)
    assert sum(moved[10:]) == 0


def test_a_request_mode_that_a_leader_before_told_goes_on() -> None:
    old = World(strategy="AVG")
    old.tell(*"abcd")
    old.engine.set_mode("g", "T", RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=1))
    old.settle()
    new = World(strategy="AVG", epoch=2_000)
    older = ModeFact(topic="T", setting=RequestModeSetting(mode=RequestMode.PULL), generation=Generation(1_000, 1))
    newer = ModeFact(
        topic="T",
        setting=RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=1),
        generation=old.decision.generation,
    )
    for number, mode in ((1, newer), (2, older)):
        members = tuple(MemberFact(client_id=own, topics=("T",)) for own in "abcd")
        fact = GroupFact(group="g", strategy="AVG", members=members, modes=(mode,))
        topic = TopicFact(topic="T", read_queues=4)
        report = BrokerReport(broker_name=BROKERS[number - 1], groups=(fact,), topics=(topic,))
        new.engine.reported(number, report, now_ms=0)
    new.settle()
    assert new.decision.shares == old.decision.shares
    assert new.engine.mode("g", "T").pop_share_queue_num == 1
    new.engine.set_mode("g", "T", RequestModeSetting(mode=RequestMode.PULL))
    new.settle()
    assert new.sizes == [2, 2, 2, 2], "what is set now counts before what was reported"
