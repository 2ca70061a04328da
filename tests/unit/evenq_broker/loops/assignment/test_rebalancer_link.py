"""Facts up, decisions down, questions passed on."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.rpc.cluster.routing import assign
from evenq_proofs.rpcs import fake_rpc

from evenq.errors import ConnectionFailed
from evenq.model import BalancePolicy, Generation, MessageQueue, Weight
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2

ACCESS = Access(Resource.BROKER, Action.INTERNAL)


class FakeRebalancer:
    """Another program's edge: keeps what is reported, answers what the test sets."""

    def __init__(self) -> None:
        self.redirect = ""
        """Not leading: whom it names."""
        self.asked = 0
        self.reports: list[assignment_pb2.BrokerReport] = []
        self.decisions: asyncio.Queue[bytes] = asyncio.Queue()
        self.answer = assignment_pb2.AssignmentResponse(status=definition_pb2.Status(code=definition_pb2.OK))

    def decide(self, counter: int, *queue_ids: int, known: bool = True) -> None:
        self.answer.known = known
        self.answer.generation.CopyFrom(common_pb2.Generation(epoch=1, counter=counter))
        del self.answer.queues[:]
        for queue_id in queue_ids:
            self.answer.queues.add(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=queue_id))

    def rpcs(self) -> list[Rpc]:
        service = "/evenq.v1.Assignment/"
        return [
            fake_rpc(service + "Report", self._report, assignment_pb2.Decision, kind=CallKind.BIDI, access=ACCESS),
            fake_rpc(service + "Query", self._query, assignment_pb2.AssignmentResponse, access=ACCESS),
        ]

    async def _report(self, requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncGenerator[bytes, None]:
        if self.redirect:
            yield assignment_pb2.Decision(leader=self.redirect).SerializeToString()
            return
        reading = asyncio.ensure_future(self._read(requests))
        try:
            yield b""  # a sign of life: it leads
            while True:
                yield await self.decisions.get()
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        async for request in requests:
            self.reports.append(assignment_pb2.BrokerReport.FromString(request))

    async def _query(self, _request: bytes, _context: RpcContext) -> bytes:
        self.asked += 1
        return self.answer.SerializeToString()


def member(client_id: str) -> Member:
    return Member(client_id=client_id, protocol=Protocol.EVENQ)


async def begin(stage: Any) -> tuple[FakeRebalancer, Any]:
    rebalancer = FakeRebalancer()
    stage.net.serve("r:1", rebalancer.rpcs())
    broker = await stage.broker("a", rebalancer="r:1")
    await stage.during(broker.catalog.create_topic("t", queues=4))
    await stage.during(broker.catalog.create_group("g", strategy="AVG"))
    await stage.clock.advance(50)
    return rebalancer, broker


async def test_the_first_report_is_full_and_later_ones_hold_only_what_changed(stage: Any) -> None:
    rebalancer, broker = await begin(stage)
    assert rebalancer.reports[0].full
    reported = {entry.name for report in rebalancer.reports for entry in report.topics}
    assert reported == {"t"}
    before = len(rebalancer.reports)
    for client_id in ("x", "y", "z"):
        broker.sessions.join("g", member(client_id))
    await stage.clock.advance(50)
    assert len(rebalancer.reports) == before + 1, "changes of a few milliseconds travel together"
    last = rebalancer.reports[-1]
    assert not last.full
    assert not last.topics
    assert [(facts.group, facts.strategy, len(facts.members)) for facts in last.groups] == [("g", "AVG", 3)]
    await stage.during(broker.catalog.delete_topic("t"))
    await stage.clock.advance(50)
    assert list(rebalancer.reports[-1].topics_gone) == ["t"]


async def test_a_decision_reaches_the_sessions_of_its_group(stage: Any) -> None:
    rebalancer, broker = await begin(stage)
    session = broker.sessions.join("g", member("x"))
    generation = common_pb2.Generation(epoch=1, counter=9)
    decision = assignment_pb2.Decision(group="g", topic="t", generation=generation)
    rebalancer.decisions.put_nowait(decision.SerializeToString())
    (news,) = await stage.during(session.take(broker.sessions))
    assert (news.topic, news.generation.counter) == ("t", 9)


async def test_a_request_mode_that_a_decision_tells_is_told_to_the_next_leader(stage: Any) -> None:
    rebalancer, _ = await begin(stage)
    generation = common_pb2.Generation(epoch=1, counter=9)
    mode = assignment_pb2.TopicMode(topic="t", mode=assignment_pb2.POP, pop_share_queue_num=2, generation=generation)
    for group in ("g", "stranger"):
        decision = assignment_pb2.Decision(group=group, topic="t", generation=generation, set_mode=mode)
        rebalancer.decisions.put_nowait(decision.SerializeToString())
    await stage.clock.advance(50)
    stage.net.stop("r:1")
    await stage.clock.advance(1_000)
    rebalancer.reports.clear()
    stage.net.serve("r:1", rebalancer.rpcs())
    await stage.until(lambda: bool(rebalancer.reports))
    assert [(facts.group, list(facts.modes)) for facts in rebalancer.reports[0].groups] == [("g", [mode])]


async def test_what_waits_by_a_decision_is_told_to_the_next_leader_and_only_when_a_stream_begins(stage: Any) -> None:
    rebalancer, broker = await begin(stage)
    generation = common_pb2.Generation(epoch=1, counter=9)
    place = assignment_pb2.HeldPlace(client_id="x", place="instance web-0", until_wall_ms=77)
    place.queues.add(broker_name="a", queue_ids=[1, 3])
    for group in ("g", "stranger"):
        decision = assignment_pb2.Decision(group=group, topic="t", generation=generation, held=[place])
        rebalancer.decisions.put_nowait(decision.SerializeToString())
    broker.sessions.join("g", member("y"))
    await stage.clock.advance(50)
    assert not any(facts.holds for report in rebalancer.reports for facts in report.groups)
    stage.net.stop("r:1")
    await stage.clock.advance(1_000)
    rebalancer.reports.clear()
    stage.net.serve("r:1", rebalancer.rpcs())
    await stage.until(lambda: bool(rebalancer.reports))
    (facts,) = rebalancer.reports[0].groups
    kept = assignment_pb2.TopicHolds(topic="t", generation=generation, places=[place])
    assert (facts.group, list(facts.holds)) == ("g", [kept])


async def test_a_broken_report_stream_starts_again_with_everything(stage: Any) -> None:
    rebalancer, _ = await begin(stage)
    stage.net.stop("r:1")
    await stage.clock.advance(1_000)
    rebalancer.reports.clear()
    stage.net.serve("r:1", rebalancer.rpcs())
    await stage.until(lambda: bool(rebalancer.reports))
    assert rebalancer.reports[0].full
    assert [entry.name for entry in rebalancer.reports[0].topics] == ["t"]


async def test_the_last_answer_is_repeated_while_the_rebalancer_is_away_and_then_computed_here(stage: Any) -> None:
    rebalancer, broker = await begin(stage)
    group = broker.catalog.groups.get("g")

    async def queues() -> list[int]:
        answer = await stage.during(
            assign(broker.catalog, group, "t", "x", membership=broker.membership, rebalancer=broker.rebalancer)
        )
        return [queue.queue_id for queue in answer.queues]

    rebalancer.decide(1, 3, 1)
    assert await queues() == [3, 1]
    stage.net.stop("r:1")
    assert await queues() == [3, 1]
    await stage.clock.advance(30_000)
    assert await queues() == [0, 1, 2, 3], "alone in the group, by AVG"


async def test_nothing_known_keeps_what_one_has_and_no_queues_means_none(stage: Any) -> None:
    rebalancer, broker = await begin(stage)
    group = broker.catalog.groups.get("g")
    rebalancer.decide(1, 2)
    await stage.during(
        assign(broker.catalog, group, "t", "x", membership=broker.membership, rebalancer=broker.rebalancer)
    )
    rebalancer.decide(2, known=False)
    assert [
        q.queue_id
        for q in (
            await stage.during(
                assign(broker.catalog, group, "t", "x", membership=broker.membership, rebalancer=broker.rebalancer)
            )
        ).queues
    ] == [2]
    rebalancer.decide(3)
    assert (
        await stage.during(
            assign(broker.catalog, group, "t", "x", membership=broker.membership, rebalancer=broker.rebalancer)
        )
    ).queues == ()


async def begin_with_two(stage: Any) -> tuple[FakeRebalancer, FakeRebalancer, Any]:
    """`r:1` follows `r:2`, which leads; the broker knows `r:1` first."""
    follower, leader = FakeRebalancer(), FakeRebalancer()
    follower.redirect = "r:2"
    stage.net.serve("r:1", follower.rpcs())
    stage.net.serve("r:2", leader.rpcs())
    broker = await stage.broker("a", rebalancer=" r:1, r:2 ")
    await stage.during(broker.catalog.create_topic("t", queues=4))
    await stage.during(broker.catalog.create_group("g", strategy="AVG"))
    await stage.clock.advance(50)
    return follower, leader, broker


async def test_a_follower_sends_the_broker_to_the_leader_which_alone_is_told_and_asked(stage: Any) -> None:
    follower, leader, broker = await begin_with_two(stage)
    assert not follower.reports
    assert leader.reports[0].full
    broker.sessions.join("g", member("y"))
    await stage.clock.advance(20)
    reported = [(group.group, len(group.members)) for group in leader.reports[-1].groups]
    assert reported == [("g", 1)], "the stream that was left takes nothing away"
    leader.decide(1, 2)
    await stage.during(
        assign(
            broker.catalog,
            broker.catalog.groups.get("g"),
            "t",
            "x",
            membership=broker.membership,
            rebalancer=broker.rebalancer,
        )
    )
    assert (follower.asked, leader.asked) == (0, 1)


async def test_while_nobody_leads_the_last_answer_stands_without_a_question_and_calls_say_to_try_again(
    stage: Any,
) -> None:
    follower, leader, broker = await begin_with_two(stage)
    group, link = broker.catalog.groups.get("g"), broker.rebalancer
    leader.decide(1, 2)
    await stage.during(
        assign(broker.catalog, group, "t", "x", membership=broker.membership, rebalancer=broker.rebalancer)
    )
    stage.net.stop("r:2")
    follower.redirect = "?"
    await stage.clock.advance(3_000)
    assert not link.connected
    answer = await stage.during(
        assign(broker.catalog, group, "t", "x", membership=broker.membership, rebalancer=broker.rebalancer)
    )
    assert [queue.queue_id for queue in answer.queues] == [2]
    with pytest.raises(ConnectionFailed, match="leads at the moment"):
        await link.forward("/evenq.v1.Assignment/Explain", b"", 100)
    assert not link.gone()
    follower.redirect = ""
    follower.decide(2, 3)
    await stage.clock.advance(2_000)
    assert follower.reports[0].full
    answer = await stage.during(
        assign(broker.catalog, group, "t", "x", membership=broker.membership, rebalancer=broker.rebalancer)
    )
    assert [queue.queue_id for queue in answer.queues] == [3]


async def test_a_leader_that_falls_silent_is_left(stage: Any) -> None:
    follower, leader, _broker = await begin_with_two(stage)
    follower.redirect = ""
    for _ in range(4):
        await stage.clock.advance(2_000)
        leader.decisions.put_nowait(b"")
    await stage.clock.advance(3_000)
    assert not follower.reports, "it gave signs of life"
    await stage.clock.advance(6_000)
    await stage.until(lambda: bool(follower.reports))


async def test_rebalancers_that_send_it_round_in_circles_are_asked_with_pauses(stage: Any) -> None:
    _follower, leader, broker = await begin_with_two(stage)
    leader.redirect = "r:1"
    leader.decisions.put_nowait(assignment_pb2.Decision(leader="r:1").SerializeToString())
    await stage.clock.advance(5_000)
    assert not broker.rebalancer.connected
    leader.redirect = ""
    await stage.clock.advance(3_000)
    assert broker.rebalancer.connected


async def test_holders_are_told_by_locks_and_by_answers_in_every_first_report(stage: Any) -> None:
    rebalancer, broker = await begin(stage)
    session = broker.sessions.join("g", member("x"))
    queue = MessageQueue("t", "a", 1)
    await stage.during(broker.sessions.locking.lock("g", "x", [queue], wait_ms=0, generation=Generation(7, 8)))
    rebalancer.decide(9, 1, 3, -1)
    await stage.during(
        assign(
            broker.catalog,
            broker.catalog.groups.get("g"),
            "t",
            "x",
            membership=broker.membership,
            rebalancer=broker.rebalancer,
        )
    )
    await stage.clock.advance(2_500)
    stage.net.stop("r:1")
    await stage.clock.advance(1_000)
    rebalancer.reports.clear()
    stage.net.serve("r:1", rebalancer.rpcs())
    await stage.until(lambda: bool(rebalancer.reports))
    assert held(rebalancer.reports[0]) == [(1, "x", 7, 8), (1, "x", 1, 9), (3, "x", 1, 9)]
    broker.sessions.join("g", member("y"))
    await stage.clock.advance(50)
    assert held(rebalancer.reports[-1]) == [], "only the next leader needs them"
    broker.sessions.leave(session)
    stage.net.stop("r:1")
    await stage.clock.advance(1_000)
    rebalancer.reports.clear()
    stage.net.serve("r:1", rebalancer.rpcs())
    await stage.until(lambda: bool(rebalancer.reports))
    assert held(rebalancer.reports[0]) == []


def held(report: assignment_pb2.BrokerReport) -> list[tuple[int, str, int, int]]:
    (group,) = report.groups
    return [(row.queue.queue_id, row.holder, row.generation.epoch, row.generation.counter) for row in group.held]


async def test_zone_policy_and_lags_are_told_where_they_count(stage: Any) -> None:
    rebalancer = FakeRebalancer()
    stage.net.serve("r:1", rebalancer.rpcs())
    broker = await stage.broker("a", rebalancer="r:1", zone="north")
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("even"))
    await stage.during(broker.catalog.create_group("weighed", balance=BalancePolicy(weight=Weight.LAG, moves_max=3)))
    topic = broker.catalog.topics.get("t")
    for name in ("even", "weighed"):
        broker.ledger.progress.commit(broker.catalog.groups.get(name).group_id, topic.topic_id, 0, 0)
    await stage.clock.advance(6_000)
    assert rebalancer.reports[0].zone == "north"
    assert list(rebalancer.reports[0].brokers) == ["a"]
    facts = {group.group: group for report in rebalancer.reports for group in report.groups}
    assert (facts["weighed"].balance.weight, facts["weighed"].balance.moves_max) == ("LAG", 3)
    assert not facts["even"].HasField("balance")
    lags = [lag for report in rebalancer.reports for lag in report.lags]
    assert {lag.group for lag in lags} == {"weighed"}


async def test_a_newcomer_waits_for_the_first_decision_and_not_for_a_rebalancer_that_is_not_there(stage: Any) -> None:
    rebalancer, broker = await begin(stage)
    (query,) = [rpc.handler for rpc in broker.rpcs() if rpc.method == "/evenq.v1.Assignment/Query"]
    asked = assignment_pb2.AssignmentRequest(group="g", topic="t", client_id="x").SerializeToString()

    async def report() -> assignment_pb2.AssignmentResponse:
        context = RpcContext("Query", (), "1.2.3.4:5", None)
        return assignment_pb2.AssignmentResponse.FromString(await stage.during(query(asked, context)))

    broker.sessions.join("g", replace(member("x"), joined_ms=stage.clock.now_ms()))
    assert not (await report()).known, "the rebalancer hears of it in a moment"
    rebalancer.decide(1, 2)
    assert [row.queue.queue_id for row in (await report()).queues] == [2]
    stage.net.stop("r:1")
    await stage.clock.advance(1_000)
    asked = assignment_pb2.AssignmentRequest(group="g", topic="t", client_id="y").SerializeToString()
    broker.sessions.join("g", replace(member("y"), joined_ms=stage.clock.now_ms()))
    assert not (await report()).known, "the next leader will say"
    await stage.clock.advance(4_000)
    rebalancer.decide(2, known=False)
    stage.net.serve("r:1", rebalancer.rpcs())
    await stage.until(lambda: broker.rebalancer.connected)
    assert not (await report()).known, "it has just begun and is still collecting reports"
    await stage.clock.advance(4_000)
    assert (await report()).known, "it does not hear of the group"
    stage.net.stop("r:1")
    await stage.clock.advance(20_000)
    broker.sessions.join("g", replace(member("y"), joined_ms=stage.clock.now_ms()))
    assert (await report()).known, "no rebalancer leads for that long, so that this broker decides"


async def test_a_broker_that_never_found_a_rebalancer_divides_by_itself_soon(stage: Any) -> None:
    broker = await stage.broker("a", rebalancer="r:1")
    await stage.clock.advance(2_000)
    assert not broker.rebalancer.gone()
    await stage.clock.advance(2_000)
    assert broker.rebalancer.gone()
