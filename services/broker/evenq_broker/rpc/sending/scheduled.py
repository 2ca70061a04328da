"""Delayed messages that are not due yet: their list (`evenq.v1.Admin/ListScheduled`), and their recall."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

from evenq.errors import BadRequest, TopicNotFound
from evenq.model import TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.store import StoredTimer
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.sending.recalls import recall_broker_of
from evenq_broker.core.sending.validation import DELAYED_MESSAGE
from evenq_broker.core.state.frames import text_field
from evenq_broker.core.transactions.half_messages import HALF_MESSAGE, unpack_half
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import OK, OK_STATUS, answers_of, parsed
from evenq_broker.rpc.cluster.forwarding import forward, owner_of

METHOD = "/evenq.v1.Admin/ListScheduled"
COUNT_DEFAULT = 100
COUNT_MAX = 1_000
SCANNED_MAX = 10_000
BATCH = 8
"""Timers in memory at a time; each may have a body of some MiB."""
KINDS = {DELAYED_MESSAGE: "DELAY", HALF_MESSAGE: "TRANSACTION"}


class RecallHandler:
    """RecallMessage (wire contract 3.13): cancels a delayed message before its time. Recalling twice is OK."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster = cluster

    async def recall(self, data: bytes, context: RpcContext) -> bytes:
        """Cancels the message's timer, here or at the broker that keeps it."""
        request = parsed(service_pb2.RecallMessageRequest, data, context)
        address = owner_of(self._kernel, recall_broker_of(request.recall_handle), context, cluster=self._cluster)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        named = self._ledger.recalls.read(request.recall_handle)
        topic = self._catalog.topics.by_id(named.topic_id)
        name = request.topic.name
        if topic is None or topic.name != name:
            raise BadRequest(f"the recall handle is not of topic {name!r}; give the topic that the message was sent to")
        recalled = await self._ledger.store.cancel_timers([named.timer_id])
        if not recalled:
            self._must_be_recalled_before(named.timer_id, named.due_ms)
        return OK_STATUS + text_field(2, named.message_id)

    def _must_be_recalled_before(self, timer_id: int, due_ms: int) -> None:
        if due_ms <= self._runtime.clock.now_ms():
            raise BadRequest(
                f"the message was due at {_utc(due_ms)}: it is too late to recall it. It is delivered, "
                "unless it was recalled before"
            )
        stats = self._ledger.store.stats
        if timer_id < stats.log_end - stats.log_bytes:
            raise BadRequest(
                "the message is older than the log that the broker keeps, so this handle cannot recall it any more; it "
                "will be delivered"
            )


class ScheduledHandler:
    """ListScheduled: delayed messages that are not due yet, and open transactions, on all brokers.

    Nothing changes and no body is returned. Timers have no index by topic, so a call reads those that are due
    next, at most `SCANNED_MAX`, and returns those of the topic; `more` says that later ones were not read or not
    returned. A broker answers one call at a time, because each reads the log.
    """

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink) -> None:
        self._kernel, self._cluster = kernel, cluster
        self._one_at_a_time = asyncio.Semaphore(1)

    def rpcs(self) -> list[Rpc]:
        return [rpc(METHOD, self.listed)]

    async def listed(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ListScheduledRequest, data)
        if not 0 <= request.max <= COUNT_MAX:
            raise BadRequest(f"max is {request.max} messages, the range is 1 to {COUNT_MAX}; 0 = {COUNT_DEFAULT}")
        count_max = request.max or COUNT_DEFAULT
        if request.local:
            return _permitted(await self._here(request.topic, count_max), context).SerializeToString()
        self._must_exist(request.topic)
        local_request = admin_pb2.ListScheduledRequest(topic=request.topic, max=count_max, local=True)
        response, others = await asyncio.gather(
            self._here(request.topic, count_max), self._cluster.ask_all(METHOD, local_request.SerializeToString())
        )
        for part in answers_of(admin_pb2.ListScheduledResponse, others, silent=response.silent):
            response.messages.extend(part.messages)
            response.more |= part.more
        soonest = sorted(response.messages, key=lambda one: (one.due_ms, one.broker_name, one.message_id))
        response.more |= len(soonest) > count_max
        del response.messages[:]
        response.messages.extend(soonest[:count_max])
        return _permitted(response, context).SerializeToString()

    def _must_exist(self, topic: str) -> None:
        catalog = self._kernel.catalog
        if topic and not catalog.routes.route(topic) and catalog.topics.get(topic) is None:
            raise TopicNotFound(f"no topic {topic!r} on any live broker; see `evenq topic list`")

    async def _here(self, topic: str, count_max: int) -> admin_pb2.ListScheduledResponse:
        """Returns the timers of this broker that are due next, of one topic or of all."""
        response, store = admin_pb2.ListScheduledResponse(status=OK), self._kernel.ledger.store
        async with self._one_at_a_time, aclosing(store.timers.soonest(SCANNED_MAX + 1, batch=BATCH)) as timers:
            scanned = 0
            async for timer in timers:
                scanned += 1
                if scanned > SCANNED_MAX or len(response.messages) >= count_max:
                    response.more = True
                    break
                of_topic = self._kernel.catalog.topics.by_id(timer.topic_id)
                if of_topic is None or timer.kind not in KINDS:
                    continue
                if of_topic.name == topic or (not topic and not is_system_topic(of_topic.name)):
                    response.messages.append(self._message(timer, of_topic))
        return response

    def _message(self, timer: StoredTimer, topic: TopicConfig) -> admin_pb2.ScheduledMessage:
        is_half = timer.kind == HALF_MESSAGE
        head = definition_pb2.Message.FromString(unpack_half(timer.head)[1] if is_half else timer.head)
        system = definition_pb2.SystemProperties.FromString(timer.system)
        handle = ""
        if not is_half and system.message_id:
            recalls = self._kernel.ledger.recalls
            handle = recalls.make(timer.topic_id, timer.log_offset, timer.due_ms, system.message_id)
        return admin_pb2.ScheduledMessage(
            broker_name=self._kernel.runtime.settings.broker_name,
            topic=topic.name,
            kind=KINDS[timer.kind],
            due_ms=timer.due_ms,
            stored_ms=timer.store_ms,
            message_id=system.message_id,
            tag=system.tag,
            keys=system.keys,
            body_bytes=len(head.body),
            recall_handle=handle,
        )


def _permitted(response: admin_pb2.ListScheduledResponse, context: RpcContext) -> admin_pb2.ListScheduledResponse:
    """Removes messages of topics that the caller may not describe, and handles of those that it may not publish to."""
    kept = [one for one in response.messages if context.may_topic(Action.DESCRIBE, one.topic)]
    for one in kept:
        if not context.may_topic(Action.PUBLISH, one.topic):
            one.recall_handle = ""
    if len(kept) < len(response.messages):
        del response.messages[:]
        response.messages.extend(kept)
    return response


def _utc(at_ms: int) -> str:
    """Returns the time as people read it; the broker's own time zone would mislead clients elsewhere."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
