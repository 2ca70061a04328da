"""`evenq.v1.Assignment`: brokers report facts and receive decisions; members' questions, request modes, explain and
simulate.

Thin: each call is translated, put to the engine, and translated back. All calls run on the one loop and none of them
waits between reading the engine and answering, so a question is always answered from one decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from evenq.errors import BadRequest
from evenq.model.names import RETRY_PREFIX
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import assignment_pb2
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.rpc import translation as to
from evenq_rebalancer.rpc.leader_gate import BEAT
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.rpc.telling import DecisionEncoder

__all__ = ["AssignmentService"]

log = logging.getLogger(__name__)

SERVICE = "/evenq.v1.Assignment"


class AssignmentService:
    """The handlers. `poke` is called when the engine may have something new to settle or to tell."""

    def __init__(
        self, engine: AssignmentEngine, streams: ReportStreams, *, clock: Clock, poke: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._clock = clock
        self._poke = poke
        self._telling = DecisionEncoder()

    def rpcs(self) -> list[Rpc]:
        """All calls, for the server."""
        pair = Resource.TOPIC_AND_GROUP
        return [
            Rpc(
                method=f"{SERVICE}/Report",
                kind=CallKind.BIDI,
                handler=self.report,
                response=assignment_pb2.Decision,
                access=Access(resource=Resource.BROKER, action=Action.INTERNAL),
            ),
            Rpc(
                method=f"{SERVICE}/Query",
                kind=CallKind.UNARY,
                handler=self.query,
                response=assignment_pb2.AssignmentResponse,
                access=Access(resource=pair, action=Action.CONSUME),
            ),
            Rpc(
                method=f"{SERVICE}/SetMessageRequestMode",
                kind=CallKind.UNARY,
                handler=self.set_message_request_mode,
                response=assignment_pb2.SetMessageRequestModeResponse,
                access=Access(resource=pair, action=Action.OPERATE),
            ),
            Rpc(
                method=f"{SERVICE}/GetMessageRequestMode",
                kind=CallKind.UNARY,
                handler=self.get_message_request_mode,
                response=assignment_pb2.GetMessageRequestModeResponse,
                access=Access(resource=pair, action=Action.DESCRIBE),
            ),
            Rpc(
                method=f"{SERVICE}/Explain",
                kind=CallKind.UNARY,
                handler=self.explain,
                response=assignment_pb2.ExplainResponse,
                access=Access(resource=Resource.GROUP, action=Action.DESCRIBE),
            ),
            Rpc(
                method=f"{SERVICE}/Simulate",
                kind=CallKind.UNARY,
                handler=self.simulate,
                response=assignment_pb2.SimulateResponse,
                access=Access(resource=pair, action=Action.DESCRIBE),
            ),
        ]

    async def report(self, requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        """A broker's open stream. First every decision that stands, then each new one. Ends when the broker ends
        it.
        """
        stream, outbox = self._streams.open()
        reader = spawn(self._read(stream, requests, context), name=f"reports of {context.peer}")
        reader.add_done_callback(lambda _: outbox.wake())
        # No await since `open`: no decision is lost between those that stand and those that come.
        for decision in self._engine.decisions():
            outbox.put(decision)
        try:
            while not (reader.done() or outbox.ended):
                decisions = await outbox.take()
                for decision in decisions:
                    yield self._telling.bytes_of(decision)
                if not decisions and not reader.done():
                    yield BEAT
            if reader.done():
                reader.result()  # raises what ended the reports
        finally:
            self._streams.close(stream)
            reader.cancel()
            await asyncio.wait([reader])
            if not reader.cancelled():
                reader.exception()  # seen, or raised above: not "never retrieved"

    async def _read(self, stream: int, requests: AsyncIterator[bytes], context: RpcContext) -> None:
        broker_name = ""
        try:
            async for data in requests:
                report = to.report_of(to.parse(assignment_pb2.BrokerReport, data), address=context.host)
                if not broker_name:
                    self._engine.facts.opened(report.broker_name, stream)
                    broker_name = report.broker_name
                    log.info(
                        "broker %s began to report", broker_name, extra={"broker": broker_name, "peer": context.peer}
                    )
                elif report.broker_name != broker_name:
                    raise BadRequest(
                        f"the stream is broker {broker_name!r}'s and {report.broker_name!r} reports on it; open another"
                    )
                self._engine.reported(stream, report, now_ms=self._clock.monotonic_ms())
                self._poke()
        finally:
            if broker_name:
                self._engine.facts.closed(broker_name, stream, self._clock.monotonic_ms())
                log.info("reports of broker %s ended", broker_name, extra={"broker": broker_name, "peer": context.peer})

    async def query(self, data: bytes, _context: RpcContext) -> bytes:
        """What one member should read of one topic."""
        question = to.question_of(to.parse(assignment_pb2.AssignmentRequest, data))
        result = self._engine.query(question, now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.now_ms())
        if self._engine.has_news:
            self._poke()
        mode = to.mode_message(result.mode)
        response = assignment_pb2.AssignmentResponse(
            status=to.ok(), known=result.known, strategy=result.strategy, reason=result.reason
        )
        if result.known:
            response.generation.CopyFrom(to.generation_message(result.generation))
        for queue in result.queues:
            response.queues.add(queue=to.queue_message(queue), mode=mode)
        return response.SerializeToString()

    async def set_message_request_mode(self, data: bytes, _context: RpcContext) -> bytes:
        """PULL or POP for a (group, topic)."""
        request = to.parse(assignment_pb2.SetMessageRequestModeRequest, data)
        group, topic = to.checked_pair(request.group, request.topic)
        self._engine.set_mode(group, topic, to.setting_of(request))
        self._poke()
        return assignment_pb2.SetMessageRequestModeResponse(status=to.ok()).SerializeToString()

    async def get_message_request_mode(self, data: bytes, _context: RpcContext) -> bytes:
        """What is set, or used while nothing is."""
        request = to.parse(assignment_pb2.GetMessageRequestModeRequest, data)
        setting = self._engine.mode(*to.checked_pair(request.group, request.topic))
        return assignment_pb2.GetMessageRequestModeResponse(
            status=to.ok(), mode=to.mode_message(setting.mode), pop_share_queue_num=setting.pop_share_queue_num
        ).SerializeToString()

    async def explain(self, data: bytes, _context: RpcContext) -> bytes:
        """Who holds each queue, since when and why."""
        request = to.parse(assignment_pb2.ExplainRequest, data)
        to.checked_pair(request.group, request.topic or "any")
        decisions = self._engine.explain(
            request.group, request.topic, now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.now_ms()
        )
        if self._engine.has_news:
            self._poke()
        response = assignment_pb2.ExplainResponse(status=to.ok())
        if decisions:
            response.generation.CopyFrom(to.generation_message(max(decision.generation for decision in decisions)))
            response.strategy = ", ".join(dict.fromkeys(decision.strategy for decision in decisions))
        for decision in decisions:
            response.queues.extend(to.holding_message(holding) for holding in decision.holdings)
        idle = [decision.idle_reasons() for decision in decisions]
        for client_id in sorted(set.intersection(*map(set, idle))) if idle else []:
            given_reasons = dict.fromkeys(reasons[client_id] for reasons in idle)
            response.idle_members.append(client_id)
            response.idle.add(client_id=client_id, reason="; ".join(given_reasons))
        problems = self._engine.problems(request.group, request.topic)
        response.problems.extend(
            f"{topic}: {problem}"
            for topic, problem in problems.items()
            if not topic.startswith(RETRY_PREFIX) or self._engine.facts.topic_version(topic)  # made when first needed
        )
        return response.SerializeToString()

    async def simulate(self, data: bytes, _context: RpcContext) -> bytes:
        """What would change with other members, queues or another strategy."""
        request = to.parse(assignment_pb2.SimulateRequest, data)
        group, topic = to.checked_pair(request.group, request.topic)
        result = self._engine.simulate(
            group, topic, to.wish_of(request), now_ms=self._clock.monotonic_ms(), wall_ms=self._clock.now_ms()
        )
        return assignment_pb2.SimulateResponse(
            status=to.ok(),
            queues=[to.holding_message(holding) for holding in result.holdings],
            moves=result.moves,
            queues_per_member_min=result.queues_per_member_min,
            queues_per_member_max=result.queues_per_member_max,
            cross_zone_now=result.cross_zone_now,
            cross_zone_then=result.cross_zone_then,
            topic_queues=result.topic_queues,
            strategy=result.strategy,
        ).SerializeToString()
