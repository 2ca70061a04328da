"""`evenq.v1.Staging`: rows that become messages batch by batch, for exactly-once sinks (`loops.staging`)."""

from __future__ import annotations

from collections.abc import Collection

from evenq.errors import BadRequest, NotImplementedYet
from evenq.model import MessageType, TopicConfig
from evenq.model.names import broker_problem, topic_problem
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.store import TimerAppend
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import staging_pb2
from evenq_broker.core.sending.validation import MessageLimits
from evenq_broker.core.staging.decisions import BatchContent, OnDecided, QueryWriter
from evenq_broker.core.staging.rows import TOKEN_BYTES, Passed, build, rows_of
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.staging.staging import Origin, Staging
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.cluster.forwarding import caller_of
from evenq_broker.rpc.sending.send import must_be_open, must_be_writable
from evenq_broker.runtime import limits_of

SERVICE = "/evenq.v1.Staging/"
FIXED_TOPICS_MAX = 16
_ON_DECIDED: dict[int, OnDecided] = {
    staging_pb2.ON_DECIDED_SKIP: OnDecided.SKIP,
    staging_pb2.ON_DECIDED_WRITE: OnDecided.WRITE,
}


class StagingCalls:
    def __init__(self, kernel: Kernel, *, cluster_catalog: ClusterCatalog, staging: Staging) -> None:
        self._kernel = kernel
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster_catalog, self._staging = cluster_catalog, staging
        self._limits: MessageLimits | None = None
        self._passed: Passed | None = None
        """Checked tags and message groups of the topic that was written to last."""

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "Begin", self.begin),
            rpc(SERVICE + "Stage", self.stage),
            rpc(SERVICE + "Decide", self.decide),
            rpc(SERVICE + "Abandon", self.abandon),
            rpc(SERVICE + "RollForward", self.roll_forward),
            rpc(SERVICE + "Outcome", self.outcome),
        ]

    async def begin(self, data: bytes, context: RpcContext) -> bytes:
        """Returns the query's coordinator, and whether this broker is it and has decided the batch.

        A call that only reads gets the names of all live brokers, too: any of them may know the coordinator. A query
        without one should not choose a drained broker.
        """
        request = parsed(staging_pb2.BeginRequest, data)
        _must_be_brokers([request.coordinator] if request.coordinator else [])
        fixed = request.fixed_topics if request.HasField("fixed_topics") else None
        if fixed:
            _must_be_kept(request.topics)
        coordinator, decided = await self._staging.deciding.begin(
            request.query_id,
            request.batch_id,
            request.coordinator,
            writer=_writer(request.topics, context, fixed=fixed),
            on_decided=_on_decided(request.on_decided),
        )
        response = staging_pb2.BeginResponse(status=OK, coordinator=coordinator, decided=decided)
        if not request.coordinator:
            response.brokers.extend(view.name for view in self._catalog.routes.brokers())
            response.draining = self._catalog.draining
        return response.SerializeToString()

    async def stage(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(staging_pb2.StageRequest, data)
        if not request.query_id or not request.coordinator or request.sequence < 0 or request.batch_id < 0:
            raise BadRequest(
                "staged rows need a query id, a coordinator, and a batch id and sequence of 0 or more; call Begin first"
            )
        _must_be_brokers([request.coordinator])
        token = _token(request.token)
        must_be_open(request.topic)
        topic = self._catalog.topics.get(request.topic)
        if topic is None:  # refused rows must not create a topic
            self._built(request, self._catalog.prospect(request.topic, MessageType.NORMAL))
            topic = await self._cluster_catalog.ensure_topic(request.topic)
        must_be_writable(self._kernel, topic)
        _must_take_rows(topic)
        block, count = self._built(request, topic)
        origin = Origin(
            query_id=request.query_id,
            batch_id=request.batch_id,
            partition_id=request.partition_id,
            attempt_id=request.attempt_id,
            token=token,
            sequence=request.sequence,
            coordinator=request.coordinator,
        )
        await self._staging.stage(origin, topic, block, count, user=caller_of(context))
        return staging_pb2.StageResponse(
            status=OK, query_bytes=self._staging.table.query_bytes(request.query_id)
        ).SerializeToString()

    def _built(self, request: staging_pb2.StageRequest, topic: TopicConfig) -> tuple[TimerAppend, int]:
        """Returns the rows ready for the store, and their number. Raises Error for rows that are not valid."""
        if self._limits is None:
            self._limits = limits_of(self._runtime)
        rows = rows_of(request.rows, self._limits)
        if self._passed is None or self._passed.topic is not topic:
            self._passed = Passed(topic)
        block = build(
            rows,
            topic,
            self._limits,
            token=request.token,
            sequence=request.sequence,
            now_ms=self._runtime.clock.now_ms(),
            empty_message=definition_pb2.Message,
            passed=self._passed,
        )
        return block, rows.count

    async def decide(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(staging_pb2.DecideRequest, data)
        winners = {_token(winner.token): list(winner.brokers) for winner in request.winners}
        _must_be_brokers({name for winner in request.winners for name in winner.brokers})
        content = request.content if request.HasField("content") else None
        deciding = self._staging.deciding
        already = await deciding.decide(
            request.query_id,
            request.batch_id,
            winners,
            writer=_writer(request.topics, context),
            content=None if content is None else BatchContent(max(0, content.rows), content.checksum),
            on_decided=_on_decided(request.on_decided),
        )
        behind = await deciding.roll_forward(request.query_id)
        return staging_pb2.DecideResponse(status=OK, already=already, behind=behind).SerializeToString()

    async def abandon(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(staging_pb2.AbandonRequest, data)
        tokens = list(map(_token, request.tokens))
        decided = await self._staging.deciding.abandon(
            request.query_id, request.batch_id, tokens, writer=_writer(request.topics, context)
        )
        return staging_pb2.AbandonResponse(status=OK, decided=decided).SerializeToString()

    async def roll_forward(self, data: bytes, _context: RpcContext) -> bytes:
        """Carries out a decision that a coordinator sends."""
        request = parsed(staging_pb2.RollForwardRequest, data)
        rows = await self._staging.roll_forward(
            (request.query_id, request.batch_id), request.coordinator, frozenset(map(_token, request.winners))
        )
        return staging_pb2.RollForwardResponse(status=OK, rows=rows).SerializeToString()

    async def outcome(self, data: bytes, _context: RpcContext) -> bytes:
        """Returns a decision to another broker."""
        request = parsed(staging_pb2.OutcomeRequest, data)
        tokens, expired = (list(map(_token, listed)) for listed in (request.tokens, request.expired))
        outcome = await self._staging.deciding.outcome(
            request.query_id, request.batch_id, request.broker_name, tokens, expired
        )
        return staging_pb2.OutcomeResponse(
            status=OK,
            decided=outcome.decided,
            winners=map(bytes.fromhex, outcome.winners),
            dropped=map(bytes.fromhex, outcome.dropped),
        ).SerializeToString()


def _token(token: bytes) -> str:
    if len(token) != TOKEN_BYTES:
        raise BadRequest(f"the token of a staging has {len(token)} bytes, it must be {TOKEN_BYTES} random ones")
    return token.hex()


def _writer(topics: Collection[str], context: RpcContext, *, fixed: bool | None = None) -> QueryWriter:
    if not topics:
        raise BadRequest("the request names no topic; name those that the query writes to")
    return QueryWriter(user=caller_of(context), topics=tuple(topics), fixed=fixed)


def _must_be_kept(topics: Collection[str]) -> None:
    if len(topics) > FIXED_TOPICS_MAX:
        raise BadRequest(
            f"the query writes to {len(topics)} fixed topics, the limit is {FIXED_TOPICS_MAX}; set fixed_topics=false"
        )
    for topic in topics:
        if problem := topic_problem(topic):
            raise BadRequest(problem)


def _must_be_brokers(names: Collection[str]) -> None:
    """Raises BadRequest: the names are kept, so they must be valid names of brokers."""
    for name in names:
        if problem := broker_problem(name):
            raise BadRequest(problem)


def _on_decided(value: int) -> OnDecided:
    return _ON_DECIDED.get(value, OnDecided.FAIL)


def _must_take_rows(topic: TopicConfig) -> None:
    if topic.message_type is MessageType.LITE:
        raise NotImplementedYet(f"topic {topic.name} takes LITE messages, which cannot be staged; use SendMessage")
