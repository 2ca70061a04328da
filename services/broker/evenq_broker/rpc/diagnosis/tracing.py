"""`evenq.v1.Admin/TraceMessage`: the history of one message, at every broker that has a copy of it.

The message index finds it. The state of each group comes from the delivery state, which is always exact. Clients and
times come from `core.diagnosis.trace`, which keeps `trace_bytes` and is empty after a restart. Copies in the `%RETRY%`
and `%DLQ%` topics of its groups are included.
"""

from __future__ import annotations

import asyncio

from evenq.errors import BadRequest, MessageNotFound
from evenq.model import GroupConfig, TopicConfig
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.store import StoredMessage
from evenq.wire.convert import ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.delivery.progress import BLOCKED, READY
from evenq_broker.core.diagnosis.trace import Story, TraceEvent, TraceEventKind
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.rpc.answers import OK, answers_of, parsed
from evenq_broker.rpc.diagnosis.queries import found_of, index_must_be_on, topics_of

METHOD = "/evenq.v1.Admin/TraceMessage"
COPIES_MAX = 32
EVENTS_MAX = 1_000
_SLICE = 100  # records looked at in one turn of the loop
_Event = admin_pb2.TraceEvent


def rpcs(kernel: Kernel, *, cluster: ClusterLink) -> list[Rpc]:
    async def trace(data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.TraceMessageRequest, data)
        response = await (
            _here(kernel, request, context)
            if request.local
            else trace_everywhere(kernel, request, context, cluster=cluster)
        )
        return response.SerializeToString()

    return [rpc(METHOD, trace)]


async def trace_everywhere(
    kernel: Kernel, request: admin_pb2.TraceMessageRequest, context: RpcContext, *, cluster: ClusterLink
) -> admin_pb2.TraceMessageResponse:
    """Returns all traces that the caller may see. Raises BadRequest, MessageNotFound, NotImplementedYet (no index)."""
    if not request.message_id:
        raise BadRequest("the request names no message id; give the one that the send returned")
    local_request = admin_pb2.TraceMessageRequest(
        topic=request.topic, message_id=request.message_id, group=request.group, local=True
    ).SerializeToString()
    response, others = await asyncio.gather(
        _here(kernel, admin_pb2.TraceMessageRequest.FromString(local_request), context),
        cluster.ask_all(METHOD, local_request),
    )
    for part in answers_of(admin_pb2.TraceMessageResponse, others, silent=response.silent):
        response.traces.extend(one for one in part.traces if _may_describe(one, context))
    if not response.traces:
        where = f"topic {request.topic}" if request.topic else "any topic"
        silent = f" ({', '.join(response.silent)} did not answer)" if response.silent else ""
        raise MessageNotFound(
            f"no message {request.message_id!r} in {where}{silent}; retention may have removed it. "
            "To find it by a key, use `evenq message find TOPIC --key KEY`"
        )
    response.traces.sort(key=lambda trace: ms_of(trace.message.message.system_properties.store_timestamp))
    return response


def _may_describe(trace: admin_pb2.MessageTrace, context: RpcContext) -> bool:
    # The id of a message also finds its copies in retry and dead-letter topics of other groups.
    return context.may_topic(Action.DESCRIBE, trace.message.queue.topic)


async def _here(
    kernel: Kernel, request: admin_pb2.TraceMessageRequest, context: RpcContext
) -> admin_pb2.TraceMessageResponse:
    index_must_be_on(kernel.runtime)
    response = admin_pb2.TraceMessageResponse(status=OK)
    for topic in topics_of(kernel, request.topic):
        for stored in await _copies(kernel.ledger, topic, request.message_id):
            response.traces.append(await _trace(kernel, topic, stored, request))
    # A broker may have copies without the original, so they are looked for separately.
    for group in [group for group in kernel.catalog.groups.all() if request.group in {"", group.name}]:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            topic_of_group = kernel.catalog.topics.get(f"{prefix}{group.name}")
            if topic_of_group is None or topic_of_group.name == request.topic:
                continue
            for stored in await _copies(kernel.ledger, topic_of_group, request.message_id):
                response.traces.append(await _trace(kernel, topic_of_group, stored, request))
    kept = [one for one in response.traces if _may_describe(one, context)]
    return admin_pb2.TraceMessageResponse(status=OK, traces=kept)


async def _copies(ledger: Ledger, topic: TopicConfig, message_id: str) -> list[StoredMessage]:
    candidates = await ledger.store.find(topic.topic_id, message_id.encode(), count_max=COPIES_MAX)
    return [
        one for one in candidates if definition_pb2.SystemProperties.FromString(one.system).message_id == message_id
    ]


async def _trace(
    kernel: Kernel, topic: TopicConfig, stored: StoredMessage, request: admin_pb2.TraceMessageRequest
) -> admin_pb2.MessageTrace:
    match = found_of(kernel.runtime, topic, stored, body_max=1)
    match.message.body = b""
    trace = admin_pb2.MessageTrace(message=match)
    trace.events.add(at_ms=stored.store_ms, kind=_Event.STORED)
    seen: list[TraceEvent] = []
    if kernel.ledger.trace is not None:
        trace.remembered_since_ms = max(kernel.ledger.trace.forgotten_ms, 1)
        seen = await _events(kernel, stored)
    for number in kernel.ledger.progress.groups_of(topic.topic_id):
        group = kernel.catalog.groups.by_id(number)
        if group is None or request.group not in {"", group.name}:
            continue
        state = _state(kernel.ledger, group, topic, stored)
        buried_ms = await _buried(kernel, group, topic, request.message_id) if state.state == "FINISHED" else 0
        events = [one for one in seen if one.group_id == number]
        if buried_ms:
            state.state = "DEAD_LETTERED"
            _bury(trace, group, buried_ms)
            # The acknowledgement is that of the original after its burial.
            events = [one for one in events if one.kind is not TraceEventKind.ACKNOWLEDGED]
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


async def _events(kernel: Kernel, stored: StoredMessage) -> list[TraceEvent]:
    assert kernel.ledger.trace is not None
    story = Story(stored.topic_id, stored.queue_id, stored.queue_offset)
    entries = kernel.ledger.trace.entries()
    for start in range(0, len(entries), _SLICE):
        for at_ms, record in entries[start : start + _SLICE]:
            if at_ms >= stored.store_ms - 1_000:  # two clocks: the wall clock, and one that never jumps
                story.read(at_ms, record)
        await kernel.runtime.clock.sleep_ms(0)
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


async def _buried(kernel: Kernel, group: GroupConfig, topic: TopicConfig, message_id: str) -> int:
    """Returns the store time of the group's copy in its dead-letter topic, ms; 0: there is none."""
    letters = kernel.catalog.topics.get(f"{DLQ_PREFIX}{group.name}")
    if letters is None or letters.topic_id == topic.topic_id:
        return 0
    for copy in await _copies(kernel.ledger, letters, message_id):
        origin = definition_pb2.SystemProperties.FromString(copy.system).dead_letter_queue
        if origin.topic == topic.name:
            return copy.store_ms
    return 0


def _bury(trace: admin_pb2.MessageTrace, group: GroupConfig, at_ms: int) -> None:
    trace.events.add(at_ms=at_ms, kind=_Event.DEAD_LETTERED, group=group.name)
