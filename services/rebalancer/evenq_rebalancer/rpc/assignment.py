"""Service `evenq.v1.Assignment`: reports of brokers, decisions for them, queries, request modes, explain and simulate.

Each call is translated, passed to the engine, and translated back. All calls run on one loop, and none waits between
the read of the engine and its answer, so a query is always answered from one decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from evenq.errors import BadRequest
from evenq.model import MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import assignment_pb2
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.rpc import translation as to
from evenq_rebalancer.rpc.leader_gate import BEAT
from evenq_rebalancer.rpc.streams import ReportStreams

log = logging.getLogger(__name__)
SERVICE = "/evenq.v1.Assignment/"
SHARED_QUEUES_MAX = 20_000
"""Most queues in the shares, and in the holds, of one message (about 60 KB); above it they are left out."""
KEPT_MAX = 1_000


class AssignmentService:
    """Handlers of the service. `poke` is called when the engine may have new changes or decisions."""

    def __init__(
        self, engine: AssignmentEngine, streams: ReportStreams, *, clock: Clock, poke: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._clock = clock
        self._poke = poke
        self._telling = DecisionEncoder()

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "Report", self.report),
            rpc(SERVICE + "Query", self.query),
            rpc(SERVICE + "SetMessageRequestMode", self.set_message_request_mode),
            rpc(SERVICE + "GetMessageRequestMode", self.get_message_request_mode),
            rpc(SERVICE + "Explain", self.explain),
            rpc(SERVICE + "Simulate", self.simulate),
        ]

    async def report(self, requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        """Serves a broker's stream: first all current decisions, then new ones, until the broker or term ends it."""
        stream, outbox = self._streams.open()
        reader = spawn(self._read(stream, requests, context), name=f"reports of {context.peer}")
        reader.add_done_callback(lambda _: outbox.wake())
        # No await since `open`: no decision is lost between the current and the new ones.
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
                reader.result()  # raises the error that ended the reports
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
        """Answers which queues of a topic one member should read."""
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
        request = to.parse(assignment_pb2.SetMessageRequestModeRequest, data)
        group, topic = to.checked_pair(request.group, request.topic)
        self._engine.set_mode(group, topic, to.setting_of(request))
        self._poke()
        return assignment_pb2.SetMessageRequestModeResponse(status=to.ok()).SerializeToString()

    async def get_message_request_mode(self, data: bytes, _context: RpcContext) -> bytes:
        """Answers the request mode that is set or in use."""
        request = to.parse(assignment_pb2.GetMessageRequestModeRequest, data)
        setting = self._engine.mode(*to.checked_pair(request.group, request.topic))
        return assignment_pb2.GetMessageRequestModeResponse(
            status=to.ok(), mode=to.mode_message(setting.mode), pop_share_queue_num=setting.pop_share_queue_num
        ).SerializeToString()

    async def explain(self, data: bytes, _context: RpcContext) -> bytes:
        """Answers the owner of each queue, since when and why."""
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
            # A retry topic is created when it is first needed: its absence is not a problem.
            if not topic.startswith(RETRY_PREFIX) or self._engine.facts.topic_version(topic)
        )
        return response.SerializeToString()

    async def simulate(self, data: bytes, _context: RpcContext) -> bytes:
        """Answers the effects of other members, queues or another strategy."""
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


class DecisionEncoder:
    """Encoder that keeps the bytes of the newest decisions: each is encoded once for all streams.

    A decision carries each member's share. Otherwise every member of a group would query its share after each change,
    just while the moved queues rest (decision 18). It carries the holds too, for the next leader.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[Decision, bytes]] = {}

    def bytes_of(self, decision: Decision) -> bytes:
        key = (decision.group, decision.topic)
        known = self._kept.get(key)
        if known is not None and known[0] is decision:
            return known[1]
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        data = _message(decision).SerializeToString()
        self._kept[key] = (decision, data)
        return data


def _message(decision: Decision) -> assignment_pb2.Decision:
    message = assignment_pb2.Decision(
        group=decision.group, topic=decision.topic, generation=to.generation_message(decision.generation)
    )
    inputs = decision.inputs
    if inputs.held and inputs.one_owner and len(inputs.held) <= SHARED_QUEUES_MAX:
        message.held.extend(_held(inputs.held))
    if inputs.mode is not None:
        message.set_mode.CopyFrom(to.topic_mode_message(decision.topic, inputs.mode, decision.generation))
    if inputs.one_owner and len(inputs.queues) <= SHARED_QUEUES_MAX:
        message.shares.SetInParent()
        for client_id in inputs.clustering:
            member = message.shares.members.add(client_id=client_id)
            member.share.strategy = decision.strategy
            for broker_name, queue_ids in _by_broker(decision.shares.get(client_id, ())):
                member.share.queues.add(broker_name=broker_name, queue_ids=queue_ids)
    return message


def _held(held: Mapping[MessageQueue, Hold]) -> Iterable[assignment_pb2.HeldPlace]:
    waiting: dict[str, tuple[Hold, list[MessageQueue]]] = {}
    for queue, hold in held.items():
        waiting.setdefault(hold.client_id, (hold, []))[1].append(queue)
    return (to.held_place_message(hold, _by_broker(queues)) for hold, queues in waiting.values())


def _by_broker(queues: Iterable[MessageQueue]) -> Iterable[tuple[str, list[int]]]:
    ids_by_broker: dict[str, list[int]] = {}
    for queue in queues:
        ids_by_broker.setdefault(queue.broker_name, []).append(queue.queue_id)
    return ids_by_broker.items()
