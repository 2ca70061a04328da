"""`evenq.v1.Staging`: rows that become messages batch by batch, for sinks that are exactly once.

The rows are kept by `loops.staging`, the decisions made by `loops.deciding`; here requests are read and checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import BadRequest, NotImplementedYet
from evenq.model import MessageType, TopicConfig
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import staging_pb2
from evenq_broker.core.staged_rows import TOKEN_BYTES, Passed, build, rows_of
from evenq_broker.core.validation import Limits
from evenq_broker.loops.staging import Origin
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.send import limits_of, must_be_open, must_be_writable

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
SERVICE = "/evenq.v1.Staging/"


class StagingCalls:
    """The handlers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limits: Limits | None = None
        self._passed: Passed | None = None
        """Of the topic that was written to last."""

    async def begin(self, request: bytes, _context: RpcContext) -> bytes:
        """What this broker knows of a query."""
        asked = parsed(staging_pb2.BeginRequest, request)
        _must_name_topics(asked.topics)
        deciding = self._broker.staging.deciding
        coordinator, decided = await deciding.begin(asked.query_id, asked.batch_id, asked.coordinator)
        return staging_pb2.BeginResponse(status=OK, coordinator=coordinator, decided=decided).SerializeToString()

    async def stage(self, request: bytes, _context: RpcContext) -> bytes:
        """Keep a block of rows."""
        broker = self._broker
        asked = parsed(staging_pb2.StageRequest, request)
        if not asked.query_id or not asked.coordinator or asked.sequence < 0 or asked.batch_id < 0:
            raise BadRequest(
                "staged rows need a query id, a coordinator, and a batch id and sequence of 0 or more; ask Begin first"
            )
        token = _token(asked.token)
        must_be_open(asked.topic)
        topic = broker.topics.get(asked.topic) or await broker.ensure_topic(asked.topic)
        must_be_writable(broker, topic)
        _must_take_rows(topic)
        if self._limits is None:
            self._limits = limits_of(broker)
        rows = rows_of(asked.rows, self._limits)
        now_ms = broker.clock.now_ms()
        if self._passed is None or self._passed.topic is not topic:
            self._passed = Passed(topic)
        block = build(
            rows, topic, self._limits, token=asked.token, sequence=asked.sequence, now_ms=now_ms, passed=self._passed
        )
        origin = Origin(
            query_id=asked.query_id, batch_id=asked.batch_id, partition_id=asked.partition_id,
            attempt_id=asked.attempt_id, token=token, sequence=asked.sequence, coordinator=asked.coordinator,
        )  # fmt: skip
        await broker.staging.stage(origin, topic, block, rows.count)
        return staging_pb2.StageResponse(
            status=OK, query_bytes=broker.staging.table.query_bytes(asked.query_id)
        ).SerializeToString()

    async def decide(self, request: bytes, _context: RpcContext) -> bytes:
        """Decide a batch and roll it forward."""
        asked = parsed(staging_pb2.DecideRequest, request)
        _must_name_topics(asked.topics)
        winners = {_token(winner.token): list(winner.brokers) for winner in asked.winners}
        deciding = self._broker.staging.deciding
        already = await deciding.decide(asked.query_id, asked.batch_id, winners)
        behind = await deciding.roll_forward(asked.query_id)
        return staging_pb2.DecideResponse(status=OK, already=already, behind=behind).SerializeToString()

    async def abandon(self, request: bytes, _context: RpcContext) -> bytes:
        """Take stagings back."""
        asked = parsed(staging_pb2.AbandonRequest, request)
        _must_name_topics(asked.topics)
        tokens = list(map(_token, asked.tokens))
        decided = await self._broker.staging.deciding.abandon(asked.query_id, asked.batch_id, tokens)
        return staging_pb2.AbandonResponse(status=OK, decided=decided).SerializeToString()

    async def roll_forward(self, request: bytes, _context: RpcContext) -> bytes:
        """A coordinator tells a decision."""
        asked = parsed(staging_pb2.RollForwardRequest, request)
        rows = await self._broker.staging.roll_forward(
            (asked.query_id, asked.batch_id), asked.coordinator, frozenset(map(_token, asked.winners))
        )
        return staging_pb2.RollForwardResponse(status=OK, rows=rows).SerializeToString()

    async def outcome(self, request: bytes, _context: RpcContext) -> bytes:
        """A broker asks for a decision."""
        asked = parsed(staging_pb2.OutcomeRequest, request)
        tokens, expired = (list(map(_token, listed)) for listed in (asked.tokens, asked.expired))
        found = await self._broker.staging.deciding.outcome(
            asked.query_id, asked.batch_id, asked.broker_name, tokens, expired
        )
        return staging_pb2.OutcomeResponse(
            status=OK, decided=found.decided, winners=map(bytes.fromhex, found.winners),
            dropped=map(bytes.fromhex, found.dropped),
        ).SerializeToString()  # fmt: skip


def _token(token: bytes) -> str:
    if len(token) != TOKEN_BYTES:
        raise BadRequest(f"the token of a staging has {len(token)} bytes, it must be {TOKEN_BYTES} random ones")
    return token.hex()


def _must_name_topics(topics: object) -> None:
    if not topics:
        raise BadRequest("the request names no topic; name those that the query writes to")


def _must_take_rows(topic: TopicConfig) -> None:
    if topic.message_type is MessageType.LITE:
        raise NotImplementedYet(f"topic {topic.name} takes LITE messages, which cannot be staged; send them")


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    calls = StagingCalls(broker)
    return [
        rpc(SERVICE + "Begin", calls.begin, staging_pb2.BeginResponse),
        rpc(SERVICE + "Stage", calls.stage, staging_pb2.StageResponse),
        rpc(SERVICE + "Decide", calls.decide, staging_pb2.DecideResponse),
        rpc(SERVICE + "Abandon", calls.abandon, staging_pb2.AbandonResponse),
        rpc(SERVICE + "RollForward", calls.roll_forward, staging_pb2.RollForwardResponse),
        rpc(SERVICE + "Outcome", calls.outcome, staging_pb2.OutcomeResponse),
    ]
