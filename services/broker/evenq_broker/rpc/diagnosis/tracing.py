"""`evenq.v1.Admin/TraceMessage`: what became of one message, at every broker that holds a copy of it.

Where it lies comes from the message index, each group's state from the delivery state, which is always exact; who got
it when comes from `core.diagnosis.trace`, which forgets after `trace_bytes` and at a restart. Copies in `%RETRY%` and
`%DLQ%` topics of the groups that read it are followed as well.
"""

from __future__ import annotations

import asyncio

from evenq.errors import BadRequest, Error, MessageNotFound
from evenq.model import GroupConfig, TopicConfig
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.store import StoredMessage
from evenq.wire.convert import ms_of
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.delivery.progress import BLOCKED, READY
from evenq_broker.core.diagnosis.trace import Story, TraceEvent, TraceEventKind
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.diagnosis.queries import found_of, index_must_be_on, topics_of
from evenq_broker.runtime import Runtime

__all__ = ["rpcs", "trace_everywhere"]

METHOD = "/evenq.v1.Admin/TraceMessage"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
COPIES_MAX = 32
EVENTS_MAX = 1_000
_SLICE = 100  # records looked at in one turn of the loop
_Event = admin_pb2.TraceEvent


def rpcs(runtime: Runtime, catalog: Catalog, ledger: Ledger, *, cluster: ClusterLink) -> list[Rpc]:
    """The call of this module."""

    async def trace(data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.TraceMessageRequest, data)
        response = await (
            _here(runtime, catalog, ledger, request, context)
            if request.local
            else trace_everywhere(runtime, catalog, ledger, request, context, cluster=cluster)
        )
        return response.SerializeToString()

    return [rpc(METHOD, trace, admin_pb2.TraceMessageResponse)]


async def trace_everywhere(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    request: admin_pb2.TraceMessageRequest,
    context: RpcContext,
    *,
    cluster: ClusterLink,
) -> admin_pb2.TraceMessageResponse:
    """What all brokers know of copies in topics that the caller may describe. Raises BadRequest, MessageNotFound,
    NotImplementedYet (no index).
    """
    if not request.message_id:
        raise BadRequest("the request names no message id; give the one that the send answered")
    local_request = admin_pb2.TraceMessageRequest(
        topic=request.topic, message_id=request.message_id, group=request.group, local=True
    ).SerializeToString()
    response, others = await asyncio.gather(
        _here(runtime, catalog, ledger, admin_pb2.TraceMessageRequest.FromString(local_request), context),
        cluster.ask_all(METHOD, local_request),
    )
    for name, other in others:
        if isinstance(other, Error):
            response.silent.append(name)
            continue
        part = admin_pb2.TraceMessageResponse.FromString(other)
        check(part.status)
        response.traces.extend(one for one in part.traces if _may_describe(one, context))
    if not response.traces:
        where = f"topic {request.topic}" if request.topic else "any topic"
        silent = f" ({', '.join(response.silent)} did not answer)" if response.silent else ""
        raise MessageNotFound(
            f"no message {request.message_id!r} in {where}{silent}; retention may have removed it. "
            "By a key it is found with `evenq message find TOPIC --key KEY`"
        )
    response.traces.sort(key=lambda trace: ms_of(trace.message.message.system_properties.store_timestamp))
    return response


def _may_describe(trace: admin_pb2.MessageTrace, context: RpcContext) -> bool:
    # An id of another group's message finds its copies in their retry and dead-letter topics.
    return context.may_topic(Action.DESCRIBE, trace.message.queue.topic)


async def _here(
    runtime: Runtime, catalog: Catalog, ledger: Ledger, request: admin_pb2.TraceMessageRequest, context: RpcContext
) -> admin_pb2.TraceMessageResponse:
    index_must_be_on(runtime)
    response = admin_pb2.TraceMessageResponse(status=OK)
    for topic in topics_of(runtime, catalog, request.topic):
        for stored in await _copies(ledger, topic, request.message_id):
            response.traces.append(await _trace(runtime, catalog, ledger, topic, stored, request))
    # Copies of a message may lie at a broker that holds no original any more, so they are looked for by themselves.
    for group in [group for group in catalog.groups.all() if request.group in {"", group.name}]:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            topic_of_group = catalog.topics.get(f"{prefix}{group.name}")
            if topic_of_group is None or topic_of_group.name == request.topic:
                continue
            for stored in await _copies(ledger, topic_of_group, request.message_id):
                response.traces.append(await _trace(runtime, catalog, ledger, topic_of_group, stored, request))
    kept = [one for one in response.traces if _may_describe(one, context)]
    return admin_pb2.TraceMessageResponse(status=OK, traces=kept)


async def _copies(ledger: Ledger, topic: TopicConfig, message_id: str) -> list[StoredMessage]:
    candidates = await ledger.store.find(topic.topic_id, message_id.encode(), count_max=COPIES_MAX)
    return [
        one for one in candidates if definition_pb2.SystemProperties.FromString(one.system).message_id == message_id
    ]


async def _trace(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    topic: TopicConfig,
    stored: StoredMessage,
    request: admin_pb2.TraceMessageRequest,
) -> admin_pb2.MessageTrace:
    match = found_of(runtime, topic, stored, body_max=1)
    match.message.body = b""
    trace = admin_pb2.MessageTrace(message=match)
    trace.events.add(at_ms=stored.store_ms, kind=_Event.STORED)
    seen: list[TraceEvent] = []
    if ledger.trace is not None:
        trace.remembered_since_ms = max(ledger.trace.forgotten_ms, 1)
        seen = await _events(runtime, ledger, stored)
    for number in ledger.progress.groups_of(topic.topic_id):
        group = catalog.groups.by_id(number)
        if group is None or request.group not in {"", group.name}:
            continue
        state = _state(ledger, group, topic, stored)
        buried_ms = await _buried(catalog, ledger, group, topic, request.message_id) if state.state == "FINISHED" else 0
        events = [one for one in seen if one.group_id == number]
        if buried_ms:
            state.state = "DEAD_LETTERED"
            _bury(trace, group, buried_ms)
            events = [
                one for one in events if one.kind is not TraceEventKind.ACKNOWLEDGED
            ]  # the settling of the original
        if not state.attempt:
            state.attempt = max((one.attempt for one in events), default=0)
        trace.groups.append(state)
        for one in events[-EVENTS_MAX:]:
            trace.events.add(
                at_ms=one.at_ms,
                kind=_Event.Kind.Value(one.kind),
                group=group.name,
                client_id=one.client_id,
                attempt=one.attempt,
                until_ms=one.until_ms,
            )
    trace.events.sort(key=lambda event: event.at_ms)
    return trace


async def _events(runtime: Runtime, ledger: Ledger, stored: StoredMessage) -> list[TraceEvent]:
    assert ledger.trace is not None
    story = Story(stored.topic_id, stored.queue_id, stored.queue_offset)
    entries = ledger.trace.entries()
    for start in range(0, len(entries), _SLICE):
        for at_ms, record in entries[start : start + _SLICE]:
            if at_ms >= stored.store_ms - 1_000:  # two clocks: the wall's, and one that never jumps
                story.read(at_ms, record)
        await runtime.clock.sleep_ms(0)
    return story.events()


def _state(ledger: Ledger, group: GroupConfig, topic: TopicConfig, stored: StoredMessage) -> admin_pb2.GroupTrace:
    state = admin_pb2.GroupTrace(group=group.name)
    queue = ledger.progress.queue(group.group_id, topic.topic_id, stored.queue_id)
    if queue is None or stored.queue_offset >= queue.next:
        state.state = "WAITING"
        return state
    entry = queue.pending.get(stored.queue_offset)
    if entry is None:
        state.state = "FINISHED"
        return state
    state.attempt = entry.attempt
    if entry.deadline_ms == READY:
        state.state = "RETRY"
    elif entry.deadline_ms == BLOCKED:
        state.state = "BLOCKED"
    else:
        state.state = "IN_FLIGHT"
        state.client_id, state.until_ms = entry.client_id, entry.deadline_ms
    return state


async def _buried(catalog: Catalog, ledger: Ledger, group: GroupConfig, topic: TopicConfig, message_id: str) -> int:
    """When the group's copy in its dead-letter topic was stored, ms; 0: there is none."""
    letters = catalog.topics.get(f"{DLQ_PREFIX}{group.name}")
    if letters is None or letters.topic_id == topic.topic_id:
        return 0
    for copy in await _copies(ledger, letters, message_id):
        origin = definition_pb2.SystemProperties.FromString(copy.system).dead_letter_queue
        if origin.topic == topic.name:
            return copy.store_ms
    return 0


def _bury(trace: admin_pb2.MessageTrace, group: GroupConfig, at_ms: int) -> None:
    trace.events.add(at_ms=at_ms, kind=_Event.DEAD_LETTERED, group=group.name)
