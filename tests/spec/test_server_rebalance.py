"""Server-side rebalance: semantics.md sections 10 (SR) and 20 (XO-1 to XO-7), wire contract 6.

The broker's half (forwarding, repeating the last answer) is proved with the broker; here is what the rebalancer
answers, and what the SDK asks and does with the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest
from evenq_broker.loops.assignment.reports import ReportedHolds
from evenq_broker.loops.wire.assignment import DecisionNews
from evenq_rebalancer.core.assignment_engine import AssignmentEngine, EngineLimits
from evenq_rebalancer.rpc.assignment import AssignmentService, DecisionEncoder
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.rpc.translation import queue_message, report_of

from evenq.allocation import by_name
from evenq.client.core.calls import Assignment, GroupTerms, Join, MemberInfo, Welcome
from evenq.client.core.groups.rebalance import Lock, RebalanceTable, Start, Stop
from evenq.client.core.routes.route import Route
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.groups.assignment_source import AssignmentSource
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import BadRequest, ConnectionFailed
from evenq.model import Generation, MessageModel, MessageQueue
from evenq.runtime.clock import FakeClock
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import assignment_pb2 as pb
from evenq.wire.stubs.evenq.v1 import groups_pb2

CONTEXT = RpcContext("m", (), "1.2.3.4:5", None)
BROKERS = ("broker-a", "broker-b")


class Server:
    """The rebalancer's handlers, with reports of two brokers of 4 queues each."""

    def __init__(self, strategy: str = "AVG") -> None:
        self.strategy = strategy
        self.engine = AssignmentEngine(epoch=1_000, limits=EngineLimits(warm_up_ms=0))
        self.calls = AssignmentService(self.engine, ReportStreams(), clock=FakeClock(), poke=lambda: None)
        for number, broker in enumerate(BROKERS):
            self.engine.facts.opened(broker, number)

    def tell(self, *ids: str, brokers: tuple[str, ...] = BROKERS) -> None:
        for broker in brokers:
            report = pb.BrokerReport(broker_name=broker, full=True)
            report.topics.add(name="T", read_queues=4, write_queues=4)
            group = report.groups.add(group="g", strategy=self.strategy)
            for own in ids:
                group.members.add(client_id=own).subscriptions.add(topic="T")
            self.engine.reported(BROKERS.index(broker), report_of(report), now_ms=0)

    async def ask(self, client_id: str, **rest) -> pb.AssignmentResponse:
        request = pb.AssignmentRequest(group="g", topic="T", client_id=client_id, **rest)
        return pb.AssignmentResponse.FromString(await self.calls.query(request.SerializeToString(), CONTEXT))

    def answer(self, client_id: str, **rest) -> pb.AssignmentResponse:
        return asyncio.run(self.ask(client_id, **rest))

    def queues(self, client_id: str, **rest) -> list[tuple[str, int]]:
        return [(row.queue.broker_name, row.queue.queue_id) for row in self.answer(client_id, **rest).queues]


class Wire:
    """The SDK's calls, answered by a `Server`; counts the questions and can break."""

    def __init__(self, server: Server, client_id: str, ids: tuple[str, ...], knows: Mapping[str, str]) -> None:
        self.server, self.client_id, self.ids, self.knows = server, client_id, ids, knows
        self.questions: list[tuple[str, str, str, MessageModel]] = []
        self.broken = 0

    async def query_route(self, topic: str) -> Route:
        queues = tuple(MessageQueue(topic, broker, number) for broker in BROKERS for number in range(4))
        return Route(topic=topic, writable=queues, readable=queues, addresses={broker: broker for broker in BROKERS})

    async def query_assignment(self, group: str, topic: str, strategy: str, model: MessageModel) -> Assignment:
        self.questions.append((group, topic, strategy, model))
        if self.broken:
            self.broken -= 1
            raise ConnectionFailed("the access point does not answer")
        response = await self.server.ask(self.client_id, strategy=strategy)
        queues = tuple(
            MessageQueue(row.queue.topic, row.queue.broker_name, row.queue.queue_id) for row in response.queues
        )
        return Assignment(response.known, queues, Generation(response.generation.epoch, response.generation.counter))

    async def session(self, address, _requests):
        members = tuple(MemberInfo(own, "evenq", frozenset({"T"})) for own in self.ids)
        yield Welcome(5_000, members, GroupTerms(16, "LAST", self.knows.get(address, "")))
        await asyncio.Event().wait()


class Sdk:
    """The part of a consumer that finds out what is its own."""

    def __init__(
        self,
        server: Server,
        client_id: str,
        *ids: str,
        model=MessageModel.CLUSTERING,
        flag: bool | None,
        knows: Mapping[str, str] | None = None,
    ) -> None:
        """`flag`: XO-1, None: as the group has it. `knows`: broker to the group's strategy, as it tells members."""
        self.wire, clock = Wire(server, client_id, ids, knows or {}), FakeClock()
        self.sessions = BrokerSessions(
            self.wire,
            clock=clock,
            rng=random.Random(1),
            join=lambda: Join("g", model, {}, 1),
            heard=lambda _broker, _event: None,
            broken=lambda _broker: None,
            taken=lambda _own, _why: None,
            suspected=lambda _broker: None,
            troubles=Troubles(clock, who="group g"),
        )
        self.assignment = AssignmentSource(
            calls=self.wire,
            routes=RouteBook(self.wire, clock, refresh_ms=30_000),
            sessions=self.sessions,
            group="g",
            client_id=client_id,
            strategy=by_name("AVG"),
            model=model,
            ask_server=None if flag is None else not flag,
            clock=clock,
            trust_ms=20_000,
        )

    async def assigned(self) -> list[MessageQueue] | None:
        """With a line to each broker, asked anew."""
        self.assignment.suspect()
        self.sessions.want({broker: broker for broker in BROKERS})
        for _ in range(20):
            await asyncio.sleep(0)
        return await self.assignment.assigned("T")


def shares_of(server: Server, *ids: str, **rest) -> list[list[MessageQueue] | None]:
    async def story() -> list[list[MessageQueue] | None]:
        return [await Sdk(server, own, *ids, **rest).assigned() for own in ids]

    return asyncio.run(story())


def test_sr_1_with_the_clients_flag_off_the_share_is_the_servers() -> None:
    server = Server("AVG_BY_CIRCLE")
    server.tell("c1", "c2")
    first, second = shares_of(server, "c1", "c2", flag=False)
    assert [(queue.broker_name, queue.queue_id) for queue in first or ()] == server.queues("c1")
    assert [queue.queue_id for queue in second or ()] == [1, 3, 1, 3]


async def test_sr_2_xo_1_with_the_flag_on_or_in_broadcasting_nothing_is_asked() -> None:
    server = Server()
    server.tell("c1", "c2")
    own = Sdk(server, "c1", "c1", "c2", flag=True)
    assert len(await own.assigned() or ()) == 4
    everything = Sdk(server, "c1", "c1", "c2", model=MessageModel.BROADCASTING, flag=False)
    assert len(await everything.assigned() or ()) == 8
    assert own.wire.questions == everything.wire.questions == []


async def test_sr_1_sr_2_a_member_that_was_told_neither_asks_while_any_broker_knows_of_a_strategy() -> None:
    server = Server("AVG_BY_CIRCLE")
    server.tell("c1", "c2")
    own = Sdk(server, "c1", "c1", "c2", flag=None)
    paged = [queue.queue_id for queue in await own.assigned() or ()]
    assert (paged, own.wire.questions) == ([0, 1, 2, 3], [])
    own = Sdk(server, "c1", "c1", "c2", flag=None, knows={"broker-b": "AVG_BY_CIRCLE"})
    assert [queue.queue_id for queue in await own.assigned() or ()] == [0, 2, 0, 2]
    assert own.wire.questions == [("g", "T", "AVG_BY_CIRCLE", MessageModel.CLUSTERING)], "the group's, not its own"


def test_sr_3_both_paths_give_the_same_balance() -> None:
    for count in (1, 2, 3, 5, 8, 11):
        ids = tuple(f"c{number:02}" for number in range(count))
        server = Server()
        server.tell(*ids)
        assert shares_of(server, *ids, flag=False) == shares_of(server, *ids, flag=True)


def test_sr_3_rb_2_an_error_of_the_strategy_changes_nothing_on_either_path() -> None:
    server = Server()
    server.tell("c1", "c2")
    before = server.queues("c1")
    server.strategy = "NO_SUCH"
    server.tell("c1", "c2")
    assert server.queues("c1") == before


async def test_sr_4_the_question_names_group_topic_strategy_and_model() -> None:
    server = Server()
    server.tell("c1")
    sdk = Sdk(server, "c1", "c1", flag=False)
    await sdk.assigned()
    assert sdk.wire.questions == [("g", "T", "AVG", MessageModel.CLUSTERING)]


async def test_xo_2_better_a_failed_question_pins_nothing_the_next_round_asks_again() -> None:
    server = Server("AVG_BY_CIRCLE")
    server.tell("c1", "c2")
    sdk = Sdk(server, "c1", "c1", "c2", flag=False)
    sdk.wire.broken = 3
    for _ in range(3):
        with pytest.raises(ConnectionFailed):
            await sdk.assigned()
    assert [queue.queue_id for queue in await sdk.assigned() or ()] == [0, 2, 0, 2]


async def test_xo_3_no_answer_changes_nothing_an_empty_one_drops_everything() -> None:
    server, ids = Server(), tuple(f"c{number}" for number in range(9))
    server.tell(*ids)
    assert await Sdk(server, "c8", *ids, flag=False).assigned() == []
    assert await Sdk(server, "stranger", *ids, flag=False).assigned() is None


async def test_xo_5_xo_6_the_answer_becomes_drops_and_adds_and_balanced_is_assigned_equals_working() -> None:
    server, table = Server(), RebalanceTable()
    server.tell("c1")
    sdk = Sdk(server, "c1", "c1", flag=False)
    for command in table.assign("T", await sdk.assigned() or ()):
        assert isinstance(command, Lock)
        assert not table.balanced()
        (start,) = table.locked(command.queue, granted=True, committed=0)
        assert isinstance(start, Start)
    assert (table.balanced(), len(table.working())) == (True, 8)
    server.tell("c1", "c2")
    commands = table.assign("T", await sdk.assigned() or ())
    assert [type(command) for command in commands] == [Stop] * 4
    assert not {command.queue for command in commands} & set(await sdk.assigned() or ())
    for command in commands:
        table.left(command.queue)
    assert (table.balanced(), len(table.working())) == (True, 4)


async def test_xo_7_a_late_answer_does_not_win() -> None:
    server = Server()
    server.tell("c1")
    sdk = Sdk(server, "c1", "c1", flag=False)
    late = await sdk.wire.query_assignment("g", "T", "AVG", MessageModel.CLUSTERING)
    server.tell("c1", "c2")
    assert len(await sdk.assigned() or ()) == 4

    async def answered(*_question) -> Assignment:
        return late

    sdk.wire.query_assignment = answered
    assert await sdk.assigned() is None


class Rollout(Server):
    """Members `PLACE.INCARNATION` in a group that holds queues; the brokers keep what decisions tell."""

    def __init__(self, epoch: int, kept: Mapping[str, ReportedHolds]) -> None:
        super().__init__("STICKY")
        self.engine = AssignmentEngine(epoch=epoch, limits=EngineLimits(warm_up_ms=0))
        for number, broker in enumerate(BROKERS):
            self.engine.facts.opened(broker, number)
        self.calls = AssignmentService(self.engine, ReportStreams(), clock=FakeClock(), poke=lambda: None)
        self.kept = kept

    def see(self, *ids: str, held: Mapping[MessageQueue, str] | None = None) -> dict[MessageQueue, str]:
        """Who has each queue by the decision about these members. `held`: the locks, which a stream begins with."""
        for number, broker in enumerate(BROKERS):
            report = pb.BrokerReport(broker_name=broker, full=held is not None)
            report.topics.add(name="T", read_queues=4, write_queues=4)
            group = report.groups.add(group="g", strategy="STICKY")
            group.balance.hold_ms = 30_000
            for own in ids:
                group.members.add(client_id=own, instance=own.partition(".")[0]).subscriptions.add(topic="T")
            for queue, own in (held or {}).items():
                if queue.broker_name == broker and own in ids:
                    row = group.held.add(holder=own)
                    row.queue.CopyFrom(queue_message(queue))
            if held is not None:
                kept = self.kept[broker].of_group("g")
                group.holds.extend(pb.TopicHolds.FromString(one.encoded) for one in kept)
            self.engine.reported(number, report_of(report), now_ms=0)
        for decision in self.engine.settle(now_ms=0, wall_ms=1_000):
            for kept in self.kept.values():
                kept.decided(DecisionNews(DecisionEncoder().bytes_of(decision)))
        (decision,) = self.engine.decisions()
        return decision.owner_of()

    def states(self) -> list[str]:
        request = pb.ExplainRequest(group="g", topic="T").SerializeToString()
        response = pb.ExplainResponse.FromString(asyncio.run(self.calls.explain(request, CONTEXT)))
        return [row.state for row in response.queues]


def test_xo_7_rb_37_what_waits_for_a_successor_goes_on_waiting_under_the_next_leader() -> None:
    kept = {broker: ReportedHolds() for broker in BROKERS}
    first = Rollout(1_000, kept)
    before = first.see("web-0.1", "web-1.1")
    locks = first.see("web-0.1")
    assert list(locks.values()) == ["web-0.1"] * 4
    second = Rollout(2_000, kept)
    assert second.see("web-0.1", held=locks) == locks, "nothing moves"
    assert sorted(second.states()) == ["HELD"] * 4 + ["OWNED"] * 4
    third = Rollout(3_000, kept)
    owners = third.see("web-0.1", "web-1.2", held=locks)
    assert owners == {queue: own.replace("web-1.1", "web-1.2") for queue, own in before.items()}, "one to one"
    fourth = Rollout(4_000, kept)
    assert fourth.see("web-0.1", "web-1.2", held=owners) == owners
    assert set(fourth.states()) == {"OWNED"}, "what is over is over"


async def test_xo_4_a_retry_topic_is_pulled_by_all_members_whatever_the_group_does() -> None:
    server = Server(strategy="")
    server.tell("c1", "c2")
    report = pb.BrokerReport(broker_name="broker-a")
    report.topics.add(name="%RETRY%g", read_queues=2, write_queues=2)
    server.engine.reported(0, report_of(report), now_ms=0)
    for own, queue_id in (("c1", 0), ("c2", 1)):
        request = pb.AssignmentRequest(group="g", topic="%RETRY%g", client_id=own)
        answer = pb.AssignmentResponse.FromString(await server.calls.query(request.SerializeToString(), CONTEXT))
        assert [(row.queue.queue_id, row.mode) for row in answer.queues] == [(queue_id, pb.PULL)]
    request = pb.SetMessageRequestModeRequest(group="g", topic="%RETRY%g", mode=pb.POP)
    with pytest.raises(BadRequest, match="retry topic"):
        await server.calls.set_message_request_mode(request.SerializeToString(), CONTEXT)


@pytest.mark.parametrize(("mode", "number"), [(pb.POP, -1), (pb.POP, 10_001), (pb.PULL, 1), (7, 0)])
def test_xo_4_a_share_number_out_of_range_is_refused_and_changes_nothing(mode: int, number: int) -> None:
    server = Server()
    server.tell("c1", "c2", "c3", "c4")
    before = server.answer("c1")
    request = pb.SetMessageRequestModeRequest(group="g", topic="T", mode=mode, pop_share_queue_num=number)
    with pytest.raises(BadRequest):
        asyncio.run(server.calls.set_message_request_mode(request.SerializeToString(), CONTEXT))
    assert server.answer("c1") == before


def test_rg_8_who_does_not_read_the_topic_leaves_no_queue_unread_and_is_told_of() -> None:
    server = Server()
    server.tell("c1", "c2")
    report = pb.BrokerReport(broker_name="broker-a")
    group = report.groups.add(group="g", strategy="AVG")
    group.members.add(client_id="c1").subscriptions.add(topic="T")
    group.members.add(client_id="c2").subscriptions.add(topic="U")
    server.tell("c1", brokers=("broker-b",))
    server.engine.reported(0, report_of(report), now_ms=0)
    assert len(server.queues("c1")) == 8
    assert server.queues("c2") == []
    assert "c2 does not subscribe to T" in server.answer("c1").reason


def test_sr_3_the_server_gives_the_balance_that_clients_compute_al_7() -> None:
    server = Server()
    server.tell("c1", "c2", "c3")
    assert server.queues("c1") == [("broker-a", 0), ("broker-a", 1), ("broker-a", 2)]
    assert server.queues("c2") == [("broker-a", 3), ("broker-b", 0), ("broker-b", 1)]
    assert server.queues("c3") == [("broker-b", 2), ("broker-b", 3)]


def test_al_12_by_circle_on_the_server() -> None:
    server = Server("AVG_BY_CIRCLE")
    server.tell("c1", "c2", "c3")
    assert server.queues("c3") == [("broker-a", 2), ("broker-b", 1)]


def test_wire_6_2_without_a_strategy_every_member_gets_every_broker_with_id_minus_1_to_pop() -> None:
    server = Server(strategy="")
    server.tell("c1", "c2")
    for own in ("c1", "c2"):
        assert server.queues(own) == [("broker-a", -1), ("broker-b", -1)]
        assert {row.mode for row in server.answer(own).queues} == {pb.POP}


def test_xo_3_the_question_carries_strategy_and_model() -> None:
    server = Server(strategy="")
    server.tell("c1", "c2")
    assert server.queues("c1", strategy="AVG") == [("broker-a", number) for number in range(4)]
    assert len(server.queues("c1", model=groups_pb2.BROADCASTING)) == 8
    with pytest.raises(BadRequest, match="known are AVG"):
        server.answer("c1", strategy="NOPE")


def test_xo_3_a_known_empty_set_is_told_apart_from_not_knowing() -> None:
    server = Server()
    server.tell(*[f"c{number}" for number in range(9)])
    idle, stranger = server.answer("c8"), server.answer("stranger")
    assert (idle.known, len(idle.queues)) == (True, 0)
    assert not stranger.known
    assert not stranger.HasField("generation")


def test_xo_4_each_assigned_queue_has_a_mode() -> None:
    server = Server()
    server.tell("c1")
    assert {row.mode for row in server.answer("c1").queues} == {pb.PULL}
    request = pb.SetMessageRequestModeRequest(group="g", topic="T", mode=pb.POP)
    asyncio.run(server.calls.set_message_request_mode(request.SerializeToString(), CONTEXT))
    assert {(row.queue.queue_id, row.mode) for row in server.answer("c1").queues} == {(-1, pb.POP)}


async def test_xo_7_all_members_are_answered_from_one_versioned_decision_while_others_join() -> None:
    """Members ask all the time, in any order, while more and more join: answers of one generation never overlap, and
    together cover each queue once; generations only grow."""
    server, ids = Server(), [f"c{number}" for number in range(6)]
    by_generation: dict[tuple[int, int], dict[str, set[tuple[str, int]]]] = {}

    async def member(own: str) -> None:
        newest = (0, 0)
        for _ in range(40):
            answer = await server.ask(own)
            if answer.known:
                generation = (answer.generation.epoch, answer.generation.counter)
                assert generation >= newest
                newest = generation
                mine = {(row.queue.broker_name, row.queue.queue_id) for row in answer.queues}
                assert by_generation.setdefault(generation, {}).setdefault(own, mine) == mine
            await asyncio.sleep(0)

    async def joins() -> None:
        for count in range(1, len(ids) + 1):
            for broker in BROKERS:  # the brokers tell of a new member one after the other
                server.tell(*ids[:count], brokers=(broker,))
                for _ in range(3):
                    await asyncio.sleep(0)

    server.tell(ids[0])
    async with asyncio.TaskGroup() as group:
        for own in ids:
            group.create_task(member(own))
        group.create_task(joins())
    assert len(by_generation) == len(ids)
    for answers in by_generation.values():
        given = [queue for mine in answers.values() for queue in mine]
        assert len(given) == len(set(given)), "two members own one queue in one generation"
    last = by_generation[max(by_generation)]
    assert sorted(last) == ids
    assert sum(map(len, last.values())) == 8


def test_xo_7_a_late_answer_can_be_told_by_its_generation_even_over_a_restart() -> None:
    server = Server()
    server.tell("c1")
    before = server.answer("c1").generation
    server.tell("c1", "c2")
    after = server.answer("c1").generation
    assert (after.epoch, after.counter) > (before.epoch, before.counter)
    restarted = Server()
    restarted.engine = AssignmentEngine(epoch=1_001, limits=EngineLimits(warm_up_ms=0))
    restarted.calls = AssignmentService(restarted.engine, ReportStreams(), clock=FakeClock(), poke=lambda: None)
    for number, broker in enumerate(BROKERS):
        restarted.engine.facts.opened(broker, number)
    restarted.tell("c1", "c2")
    again = restarted.answer("c1").generation
    assert (again.epoch, again.counter) > (after.epoch, after.counter)


def test_rb_8_members_of_all_brokers_count_and_a_broker_that_is_gone_takes_its_queues_along() -> None:
    server = Server()
    server.tell("c1", brokers=("broker-a",))
    server.tell("c2", brokers=("broker-b",))
    assert server.queues("c1") == [("broker-a", number) for number in range(4)]
    assert server.queues("c2") == [("broker-b", number) for number in range(4)]
    server.engine.facts.closed("broker-b", 1, 0)
    server.engine.facts.expire(10_000)
    assert server.queues("c1") == [("broker-a", number) for number in range(4)]
    assert not server.answer("c2").known
