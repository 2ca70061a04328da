"""Facts up, decisions down, questions passed on."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from evenq_broker.core.members import Member, Protocol
from evenq_broker.rpc.routing import assign

from evenq.serving.rpc import Access, Action, Kind, Resource, Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2

Run = Callable[[Callable[[Any], Awaitable[None]]], None]
ACCESS = Access(Resource.BROKER, Action.INTERNAL)


class FakeRebalancer:
    """Another program's edge: keeps what is reported, answers what it is told to answer."""

    def __init__(self) -> None:
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
            Rpc(
                method=service + "Report",
                kind=Kind.BIDI,
                handler=self._report,
                response=assignment_pb2.Decision,
                access=ACCESS,
            ),
            Rpc(
                method=service + "Query",
                kind=Kind.UNARY,
                handler=self._query,
                response=assignment_pb2.AssignmentResponse,
                access=ACCESS,
            ),
        ]

    async def _report(self, requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncGenerator[bytes, None]:
        reading = asyncio.ensure_future(self._read(requests))
        try:
            while True:
                yield await self.decisions.get()
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[bytes]) -> None:
        async for request in requests:
            self.reports.append(assignment_pb2.BrokerReport.FromString(request))

    async def _query(self, _request: bytes, _context: RpcContext) -> bytes:
        return self.answer.SerializeToString()


def member(client_id: str) -> Member:
    return Member(client_id=client_id, protocol=Protocol.EVENQ)


async def begin(stage: Any) -> tuple[FakeRebalancer, Any]:
    rebalancer = FakeRebalancer()
    stage.net.serve("r:1", rebalancer.rpcs())
    broker = await stage.broker("a", rebalancer="r:1")
    await stage.during(broker.create_topic("t", queues=4))
    await stage.during(broker.create_group("g", strategy="AVG"))
    await stage.clock.advance(50)
    return rebalancer, broker


def test_the_first_report_is_full_and_later_ones_hold_only_what_changed(run: Run) -> None:
    async def story(stage: Any) -> None:
        rebalancer, broker = await begin(stage)
        assert rebalancer.reports[0].full
        told = {entry.name for report in rebalancer.reports for entry in report.topics}
        assert told == {"t"}
        before = len(rebalancer.reports)
        for client_id in ("x", "y", "z"):
            broker.cluster.sessions.join("g", member(client_id))
        await stage.clock.advance(50)
        assert len(rebalancer.reports) == before + 1, "changes of a few milliseconds travel together"
        last = rebalancer.reports[-1]
        assert not last.full
        assert not last.topics
        assert [(facts.group, facts.strategy, len(facts.members)) for facts in last.groups] == [("g", "AVG", 3)]
        await stage.during(broker.delete_topic("t"))
        await stage.clock.advance(50)
        assert list(rebalancer.reports[-1].topics_gone) == ["t"]

    run(story)


def test_a_decision_reaches_the_sessions_of_its_group(run: Run) -> None:
    async def story(stage: Any) -> None:
        rebalancer, broker = await begin(stage)
        session = broker.cluster.sessions.join("g", member("x"))
        generation = common_pb2.Generation(epoch=1, counter=9)
        decision = assignment_pb2.Decision(group="g", topic="t", generation=generation)
        rebalancer.decisions.put_nowait(decision.SerializeToString())
        (news,) = await stage.during(session.take(broker.cluster.sessions))
        assert (news.topic, news.generation.counter) == ("t", 9)

    run(story)


def test_a_broken_report_stream_starts_again_with_everything(run: Run) -> None:
    async def story(stage: Any) -> None:
        rebalancer, _ = await begin(stage)
        stage.net.stop("r:1")
        await stage.clock.advance(1_000)
        rebalancer.reports.clear()
        stage.net.serve("r:1", rebalancer.rpcs())
        await stage.until(lambda: bool(rebalancer.reports))
        assert rebalancer.reports[0].full
        assert [entry.name for entry in rebalancer.reports[0].topics] == ["t"]

    run(story)


def test_the_last_answer_is_repeated_while_the_rebalancer_is_away_and_then_computed_here(run: Run) -> None:
    async def story(stage: Any) -> None:
        rebalancer, broker = await begin(stage)
        group = broker.groups.get("g")

        async def queues() -> list[int]:
            answer = await stage.during(assign(broker, group, "t", "x"))
            return [queue.queue_id for queue in answer.queues]

        rebalancer.decide(1, 3, 1)
        assert await queues() == [3, 1]
        stage.net.stop("r:1")
        assert await queues() == [3, 1]
        await stage.clock.advance(30_000)
        assert await queues() == [0, 1, 2, 3], "alone in the group, by AVG"

    run(story)


def test_nothing_known_keeps_what_one_has_and_no_queues_means_none(run: Run) -> None:
    async def story(stage: Any) -> None:
        rebalancer, broker = await begin(stage)
        group = broker.groups.get("g")
        rebalancer.decide(1, 2)
        await stage.during(assign(broker, group, "t", "x"))
        rebalancer.decide(2, known=False)
        assert [q.queue_id for q in (await stage.during(assign(broker, group, "t", "x"))).queues] == [2]
        rebalancer.decide(3)
        assert (await stage.during(assign(broker, group, "t", "x"))).queues == ()

    run(story)
