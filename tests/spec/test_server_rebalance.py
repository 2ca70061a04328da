"""Server-side rebalance: semantics.md sections 10 (SR) and 20 (XO-3, XO-4, XO-7), wire contract 6.

The broker's half (forwarding, repeating the last answer) is proved with the broker; here is what the rebalancer
answers.
"""

from __future__ import annotations

import asyncio

import pytest
from evenq_rebalancer.core.board import Board, Limits
from evenq_rebalancer.rpc.assignment import Assignment
from evenq_rebalancer.rpc.streams import Streams
from evenq_rebalancer.rpc.translation import report_of

from evenq.errors import BadRequest
from evenq.runtime.clock import FakeClock
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import assignment_pb2 as pb
from evenq.wire.stubs.evenq.v1 import groups_pb2

CONTEXT = RpcContext("m", (), "1.2.3.4:5", None)
BROKERS = ("broker-a", "broker-b")


class Server:
    """The rebalancer's handlers, told by two brokers of 4 queues each."""

    def __init__(self, strategy: str = "AVG") -> None:
        self.strategy = strategy
        self.board = Board(epoch=1_000, limits=Limits(warm_up_ms=0))
        self.calls = Assignment(self.board, Streams(), clock=FakeClock(), poke=lambda: None)
        for number, broker in enumerate(BROKERS):
            self.board.facts.opened(broker, number)

    def tell(self, *ids: str, brokers: tuple[str, ...] = BROKERS) -> None:
        for broker in brokers:
            report = pb.BrokerReport(broker_name=broker, full=True)
            report.topics.add(name="T", read_queues=4, write_queues=4)
            group = report.groups.add(group="g", strategy=self.strategy)
            for own in ids:
                group.members.add(client_id=own).subscriptions.add(topic="T")
            self.board.reported(BROKERS.index(broker), report_of(report), now_ms=0)

    async def ask(self, client_id: str, **rest) -> pb.AssignmentResponse:
        request = pb.AssignmentRequest(group="g", topic="T", client_id=client_id, **rest)
        return pb.AssignmentResponse.FromString(await self.calls.query(request.SerializeToString(), CONTEXT))

    def answer(self, client_id: str, **rest) -> pb.AssignmentResponse:
        return asyncio.run(self.ask(client_id, **rest))

    def queues(self, client_id: str, **rest) -> list[tuple[str, int]]:
        return [(row.queue.broker_name, row.queue.queue_id) for row in self.answer(client_id, **rest).queues]


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


def test_xo_7_all_members_are_answered_from_one_versioned_decision_while_others_join() -> None:
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

    async def story() -> None:
        server.tell(ids[0])
        async with asyncio.TaskGroup() as group:
            for own in ids:
                group.create_task(member(own))
            group.create_task(joins())

    asyncio.run(story())
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
    restarted.board = Board(epoch=1_001, limits=Limits(warm_up_ms=0))
    restarted.calls = Assignment(restarted.board, Streams(), clock=FakeClock(), poke=lambda: None)
    for number, broker in enumerate(BROKERS):
        restarted.board.facts.opened(broker, number)
    restarted.tell("c1", "c2")
    again = restarted.answer("c1").generation
    assert (again.epoch, again.counter) > (after.epoch, after.counter)


def test_rb_8_members_of_all_brokers_count_and_a_broker_that_is_gone_takes_its_queues_along() -> None:
    server = Server()
    server.tell("c1", brokers=("broker-a",))
    server.tell("c2", brokers=("broker-b",))
    assert server.queues("c1") == [("broker-a", number) for number in range(4)]
    assert server.queues("c2") == [("broker-b", number) for number in range(4)]
    server.board.facts.closed("broker-b", 1, 0)
    server.board.facts.expire(10_000)
    assert server.queues("c1") == [("broker-a", number) for number in range(4)]
    assert not server.answer("c2").known
