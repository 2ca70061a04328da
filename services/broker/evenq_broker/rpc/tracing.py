"""`evenq.v1.Admin/TraceMessage`: what became of one message, at every broker that holds a copy of it.

Where it lies comes from the message index, each group's state from the delivery state, which is always exact; who got
it when comes from `core.trace`, which forgets after `trace_bytes` and at a restart. Copies in `%RETRY%` and `%DLQ%`
topics of the groups that read it are told as well.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, Error, MessageNotFound
from evenq.model import GroupConfig, TopicConfig
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.store import StoredMessage
from evenq.wire.convert import ms_of
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.delivery import BLOCKED, READY
from evenq_broker.core.trace import Kind, Seen, Story
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.queries import found_of, index_must_be_on, topics_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs", "trace_everywhere"]

METHOD = "/evenq.v1.Admin/TraceMessage"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
COPIES_MAX = 32
EVENTS_MAX = 1_000
_SLICE = 100  # records looked at in one turn of the loop
_Event = admin_pb2.TraceEvent


def rpcs(broker: Broker) -> list[Rpc]:
    """The call of this module."""

    async def trace(request: bytes, context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.TraceMessageRequest, request)
        answer = await (_here(broker, asked, context) if asked.local else trace_everywhere(broker, asked, context))
        return answer.SerializeToString()

    return [rpc(METHOD, trace, admin_pb2.TraceMessageResponse)]


async def trace_everywhere(
    broker: Broker, asked: admin_pb2.TraceMessageRequest, context: RpcContext
) -> admin_pb2.TraceMessageResponse:
    """What all brokers know of copies in topics that the caller may describe. Raises BadRequest, MessageNotFound,
    NotImplementedYet (no index).
    """
    if not asked.message_id:
        raise BadRequest("the request names no message id; give the one that the send answered")
    told = admin_pb2.TraceMessageRequest(
        topic=asked.topic, message_id=asked.message_id, group=asked.group, local=True
    ).SerializeToString()
    answer, others = await asyncio.gather(
        _here(broker, admin_pb2.TraceMessageRequest.FromString(told), context), broker.cluster.ask_peers(METHOD, told)
    )
    for name, other in others:
        if isinstance(other, Error):
            answer.silent.append(name)
            continue
        part = admin_pb2.TraceMessageResponse.FromString(other)
        check(part.status)
        answer.traces.extend(one for one in part.traces if _may_describe(one, context))
    if not answer.traces:
        where = f"topic {asked.topic}" if asked.topic else "any topic"
        silent = f" ({', '.join(answer.silent)} did not answer)" if answer.silent else ""
        raise MessageNotFound(
            f"no message {asked.message_id!r} in {where}{silent}; retention may have removed it. "
            "By a key it is found with `evenq message find TOPIC --key KEY`"
        )
    answer.traces.sort(key=lambda trace: ms_of(trace.message.message.system_properties.store_timestamp))
    return answer


def _may_describe(trace: admin_pb2.MessageTrace, context: RpcContext) -> bool:
    # An id of somebody else's message finds its copies in their retry and dead-letter topics.
    return context.may_topic(Action.DESCRIBE, trace.message.queue.topic)


async def _here(
    broker: Broker, asked: admin_pb2.TraceMessageRequest, context: RpcContext
) -> admin_pb2.TraceMessageResponse:
    index_must_be_on(broker)
    answer = admin_pb2.TraceMessageResponse(status=OK)
    for topic in topics_of(broker, asked.topic):
        for stored in await _copies(broker, topic, asked.message_id):
            answer.traces.append(await _trace(broker, topic, stored, asked))
    # Copies of a message may lie at a broker that holds no original any more, so they are looked for by themselves.
    for group in [group for group in broker.groups.all() if asked.group in {"", group.name}]:
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            topic_of_group = broker.topics.get(f"{prefix}{group.name}")
            if topic_of_group is None or topic_of_group.name == asked.topic:
                continue
            for stored in await _copies(broker, topic_of_group, asked.message_id):
                answer.traces.append(await _trace(broker, topic_of_group, stored, asked))
    kept = [one for one in answer.traces if _may_describe(one, context)]
    return admin_pb2.TraceMessageResponse(status=OK, traces=kept)


async def _copies(broker: Broker, topic: TopicConfig, message_id: str) -> list[StoredMessage]:
    found = await broker.store.find(topic.topic_id, message_id.encode(), count_max=COPIES_MAX)
    return [one for one in found if definition_pb2.SystemProperties.FromString(one.system).message_id == message_id]


async def _trace(
    broker: Broker, topic: TopicConfig, stored: StoredMessage, asked: admin_pb2.TraceMessageRequest
) -> admin_pb2.MessageTrace:
    found = found_of(broker, topic, stored, body_max=1)
    found.message.body = b""
    trace = admin_pb2.MessageTrace(message=found)
    trace.events.add(at_ms=stored.store_ms, kind=_Event.STORED)
    seen: list[Seen] = []
    if broker.trace is not None:
        trace.remembered_since_ms = max(broker.trace.forgotten_ms, 1)
        seen = await _events(broker, stored)
    for number in broker.progress.groups_of(topic.topic_id):
        group = broker.groups.by_id(number)
        if group is None or asked.group not in {"", group.name}:
            continue
        state = _state(broker, group, topic, stored)
        buried_ms = await _buried(broker, group, topic, asked.message_id) if state.state == "FINISHED" else 0
        events = [one for one in seen if one.group_id == number]
        if buried_ms:
            state.state = "DEAD_LETTERED"
            _bury(trace, group, buried_ms)
            events = [one for one in events if one.kind is not Kind.ACKNOWLEDGED]  # the settling of the original
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


async def _events(broker: Broker, stored: StoredMessage) -> list[Seen]:
    assert broker.trace is not None
    story = Story(stored.topic_id, stored.queue_id, stored.queue_offset)
    entries = broker.trace.entries()
    for start in range(0, len(entries), _SLICE):
        for at_ms, record in entries[start : start + _SLICE]:
            if at_ms >= stored.store_ms - 1_000:  # two clocks: the wall's, and one that never jumps
                story.read(at_ms, record)
        await broker.clock.sleep_ms(0)
    return story.events()


def _state(broker: Broker, group: GroupConfig, topic: TopicConfig, stored: StoredMessage) -> admin_pb2.GroupTrace:
    state = admin_pb2.GroupTrace(group=group.name)
    queue = broker.progress.queue(group.group_id, topic.topic_id, stored.queue_id)
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


async def _buried(broker: Broker, group: GroupConfig, topic: TopicConfig, message_id: str) -> int:
    """When the group's copy in its dead-letter topic was stored, ms; 0: there is none."""
    letters = broker.topics.get(f"{DLQ_PREFIX}{group.name}")
    if letters is None or letters.topic_id == topic.topic_id:
        return 0
    for copy in await _copies(broker, letters, message_id):
        origin = definition_pb2.SystemProperties.FromString(copy.system).dead_letter_queue
        if origin.topic == topic.name:
            return copy.store_ms
    return 0


def _bury(trace: admin_pb2.MessageTrace, group: GroupConfig, at_ms: int) -> None:
    trace.events.add(at_ms=at_ms, kind=_Event.DEAD_LETTERED, group=group.name)
