"""The calls of `apache.rocketmq.v2.Admin` about groups: subscriptions, clients, how far behind, moving them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from evenq.errors import BadRequest, ConnectionFailed, Error, GroupNotFound, PreconditionFailed
from evenq.model import GroupConfig, TopicConfig
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.convert import duration_ms_of, ms_of, set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2 as evenq_pb2
from evenq_broker.core.delivery import QueueProgress
from evenq_broker.core.journal import Unsubscribed
from evenq_broker.loops.translation import filter_of
from evenq_broker.rpc.access import ADMIN_V2, rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.client_list import clients_everywhere
from evenq_broker.rpc.forwarding import MARK
from evenq_broker.rpc.offsets import reset_everywhere

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["client_info", "others", "rpcs"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
_SQL = 1  # evenq.v1.Filter.SQL
_M = TypeVar("_M", bound=Message)


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    groups = _Groups(broker)
    a = admin_pb2
    unary = [
        ("ListSubscription", groups.list_subscriptions, a.ListSubscriptionResponse),
        ("DescribeSubscription", groups.describe_subscriptions, a.DescribeSubscriptionResponse),
        ("DeleteSubscription", groups.delete_subscription, a.DeleteSubscriptionResponse),
        ("DescribeGroupAccumulation", groups.accumulation, a.DescribeGroupAccumulationResponse),
        ("ListConsumerConnection", groups.connections, a.ListConsumerConnectionResponse),
        ("ResetGroupOffset", groups.reset, a.ResetGroupOffsetResponse),
        ("QueryTimeSpan", groups.time_span, a.QueryTimeSpanResponse),
    ]
    return [rpc(ADMIN_V2 + name, handler, response) for name, handler, response in unary]


async def others(broker: Broker, method: str, request: bytes, context: RpcContext, response: type[_M]) -> list[_M]:
    """What the other brokers answer; nothing for a call that is itself such a question. Who fails is left out."""
    return (await others_and_silent(broker, method, request, context, response))[0]


async def others_and_silent(
    broker: Broker, method: str, request: bytes, context: RpcContext, response: type[_M]
) -> tuple[list[_M], list[str]]:
    """The same, and the names of brokers that do not answer or are missing, ascending."""
    if MARK in context.headers:
        return [], []
    answers = await broker.cluster.ask_peers(ADMIN_V2 + method, request, metadata={MARK: "1"})
    silent = {name for name, answer in answers if isinstance(answer, Error)}
    told = [response.FromString(answer) for _, answer in answers if not isinstance(answer, Error)]
    known = [one for one in told if one.status.code == definition_pb2.OK]  # type: ignore[attr-defined]  # each has one
    return known, sorted({*silent, *broker.cluster.known.out_of_reach()})


def client_info(summary: evenq_pb2.ClientSummary) -> admin_pb2.ClientInfo:
    """The protocol's words for a client; the hostname is what SDKs put in front of their ids."""
    return admin_pb2.ClientInfo(
        client_id=summary.client_id,
        version=summary.version,
        language=summary.language,
        hostname=summary.client_id.partition("@")[0],
        message_model=admin_pb2.CLUSTERING,
    )


class _Groups:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # ------------------------------------------------------------------------------------------------ subscriptions

    async def list_subscriptions(self, request: bytes, context: RpcContext) -> bytes:
        """Those of living members; then what groups once read and nobody reads now (as this broker knows it)."""
        asked = parsed(admin_pb2.ListSubscriptionRequest, request, context)
        topic, group = asked.topic.name, asked.group.name
        answer = admin_pb2.ListSubscriptionResponse(status=OK)
        seen: set[tuple[str, str]] = set()
        for _, told in await self._subscribed(group, topic):
            key = (told.group.name, told.topic.name)
            if key not in seen:
                answer.subscription_info.append(told)
            seen.add(key)
        for queue in self._broker.progress.queues():
            reader, read = self._broker.groups.by_id(queue.group_id), self._broker.topics.by_id(queue.topic_id)
            if reader is None or read is None or (reader.name, read.name) in seen:
                continue
            if group in {"", reader.name} and topic in {"", read.name}:
                seen.add((reader.name, read.name))
                told = answer.subscription_info.add(message_model=admin_pb2.CLUSTERING, subscription_consistency=True)
                told.group.name, told.topic.name = reader.name, read.name
                told.expression.type, told.expression.expression = definition_pb2.TAG, "*"
        return answer.SerializeToString()

    async def describe_subscriptions(self, request: bytes, context: RpcContext) -> bytes:
        """One entry per client and topic."""
        asked = parsed(admin_pb2.DescribeSubscriptionRequest, request, context)
        group = asked.group.name
        answer = admin_pb2.DescribeSubscriptionResponse(status=OK)
        for summary, told in await self._subscribed(group, asked.topic.name):
            answer.client_subscription_info.add(client_info=client_info(summary), subscription_info=told)
        return answer.SerializeToString()

    async def delete_subscription(self, request: bytes, context: RpcContext) -> bytes:
        """Forget a group's progress on a topic, on all brokers. Raises PreconditionFailed while somebody reads it."""
        asked = parsed(admin_pb2.DeleteSubscriptionRequest, request, context)
        group, topic = asked.group.name, asked.topic.name
        if MARK not in context.headers:
            reading = await self._subscribed(group, topic)
            if reading:
                raise PreconditionFailed(
                    f"{len(reading)} members of group {group} read topic {topic}, among them "
                    f"{reading[0][0].client_id}; stop them first"
                )
        known, read = self._broker.groups.get(group), self._broker.topics.get(topic)
        if known is not None and read is not None and read.topic_id in self._broker.progress.topics_of(known.group_id):
            self._broker.progress.forget(known.group_id, read.topic_id)
            self._broker.waiting.wake_topic(read.topic_id)
            await self._broker.journal.record(Unsubscribed(known.group_id, read.topic_id))
        elsewhere = await others(
            self._broker, "DeleteSubscription", request, context, admin_pb2.DeleteSubscriptionResponse
        )
        if MARK not in context.headers and len(elsewhere) < len(self._broker.cluster.peers()):
            raise ConnectionFailed("done here, but not every broker answered; do it again when they do")
        if known is None and MARK not in context.headers and not elsewhere:
            raise _unknown(group)
        return admin_pb2.DeleteSubscriptionResponse(status=OK).SerializeToString()

    async def _subscribed(
        self, group: str, topic: str
    ) -> list[tuple[evenq_pb2.ClientSummary, admin_pb2.SubscriptionInfo]]:
        clients = (await clients_everywhere(self._broker, group)).clients
        filters: dict[tuple[str, str], set[tuple[int, str]]] = {}
        found: list[tuple[evenq_pb2.ClientSummary, admin_pb2.SubscriptionInfo]] = []
        for client in clients:
            for entry in client.subscriptions:
                if topic not in {"", entry.topic}:
                    continue
                wanted = filter_of(entry.filter)
                told = admin_pb2.SubscriptionInfo(online=True, message_model=admin_pb2.CLUSTERING)
                told.group.name, told.topic.name = client.group, entry.topic
                told.expression.type = definition_pb2.SQL if entry.filter.type == _SQL else definition_pb2.TAG
                told.expression.expression = wanted.expression
                set_ms(told.last_update_timestamp, entry.version or client.joined_ms)
                filters.setdefault((client.group, entry.topic), set()).add(
                    (told.expression.type, told.expression.expression)
                )
                found.append((client, told))
        for client, told in found:
            told.subscription_consistency = len(filters[client.group, told.topic.name]) == 1
        return found

    async def connections(self, request: bytes, context: RpcContext) -> bytes:
        """The group's living members, of both protocols."""
        asked = parsed(admin_pb2.ListConsumerConnectionRequest, request, context)
        group, topic = asked.group.name, asked.topic.name
        answer = admin_pb2.ListConsumerConnectionResponse(status=OK)
        for client in (await clients_everywhere(self._broker, group)).clients:
            reads = {entry.topic for entry in client.subscriptions}
            if not topic or not reads or topic in reads:
                answer.client_info.append(client_info(client))
        if not answer.client_info and not await self._is_known(group):
            raise _unknown(group)
        return answer.SerializeToString()

    async def _is_known(self, group: str) -> bool:
        if self._broker.groups.get(group) is not None:
            return True
        request = evenq_pb2.DescribeGroupRequest(group=group, local=True).SerializeToString()
        answers = await self._broker.cluster.ask_peers("/evenq.v1.Admin/DescribeGroup", request)
        told = [evenq_pb2.DescribeGroupResponse.FromString(one) for _, one in answers if not isinstance(one, Error)]
        return any(one.status.code == definition_pb2.OK for one in told)

    # ------------------------------------------------------------------------------------------------ progress

    async def accumulation(self, request: bytes, context: RpcContext) -> bytes:
        """In flight, ready, and the age of the oldest message not delivered yet, by topic and in all; while brokers are
        away the status says so: it is at least so much.
        """
        asked = parsed(admin_pb2.DescribeGroupAccumulationRequest, request, context)
        name = asked.group.name
        topics = {topic.name for topic in asked.topics}
        group = self._broker.groups.get(name)
        answer = admin_pb2.DescribeGroupAccumulationResponse(status=OK)
        if group is not None:
            await self._accumulate(group, topics, answer)
        told, silent = await others_and_silent(
            self._broker, "DescribeGroupAccumulation", request, context, admin_pb2.DescribeGroupAccumulationResponse
        )
        if silent:
            answer.status.message = f"at least: what {', '.join(silent)} has cannot be looked at"
        if group is None and not told:
            raise _unknown(name)
        for other in told:
            _add(answer.accumulation, other.accumulation)
            for topic, figures in other.topic_accumulation.items():
                _add(answer.topic_accumulation[topic], figures)
        return answer.SerializeToString()

    async def _accumulate(
        self, group: GroupConfig, topics: set[str], answer: admin_pb2.DescribeGroupAccumulationResponse
    ) -> None:
        broker = self._broker
        for topic, queue in self._read_by(group, topics):
            low, high = broker.store.queue_range(queue.topic_id, queue.queue_id)
            start = max(queue.next, low)
            figures = admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation(
                inflight_messages=len(queue.pending), ready_messages=max(0, high - start)
            )
            figures.accumulation = figures.inflight_messages + figures.ready_messages
            times = await self._times(queue, [start, max(queue.committed - 1, low)])
            if start in times and start < high:
                set_duration_ms(figures.deliver_delay_time, max(0, broker.clock.now_ms() - times[start]))
            figures.last_consume_timestamp = times.get(queue.committed - 1, 0)
            _add(answer.accumulation, figures)
            _add(answer.topic_accumulation[topic.name], figures)

    async def time_span(self, request: bytes, context: RpcContext) -> bytes:
        """When the oldest, the newest and the next message to consume of each queue were stored."""
        asked = parsed(admin_pb2.QueryTimeSpanRequest, request, context)
        name = asked.group.name
        topics = {topic.name for topic in asked.topics}
        broker, group = self._broker, self._broker.groups.get(name)
        answer = admin_pb2.QueryTimeSpanResponse(status=OK)
        for topic, queue in self._read_by(group, topics) if group is not None else ():
            low, high = broker.store.queue_range(queue.topic_id, queue.queue_id)
            times = await self._times(queue, [low, high - 1, queue.committed])
            span = answer.queue_time_span_list.add(
                min_timestamp=times.get(low, 0),
                max_timestamp=times.get(high - 1, 0),
                consume_timestamp=times.get(queue.committed, times.get(high - 1, 0)),
            )
            behind = queue.committed < high and queue.committed in times
            span.delay_time_ms = max(0, broker.clock.now_ms() - times[queue.committed]) if behind else 0
            span.message_queue.topic.name, span.message_queue.id = topic.name, queue.queue_id
            span.message_queue.broker.name = broker.settings.broker_name
        told = await others(broker, "QueryTimeSpan", request, context, admin_pb2.QueryTimeSpanResponse)
        if group is None and not told:
            raise _unknown(name)
        for other in told:
            answer.queue_time_span_list.extend(other.queue_time_span_list)
        return answer.SerializeToString()

    async def reset(self, request: bytes, context: RpcContext) -> bytes:
        """Move a live group to a time, on all brokers. Raises ConnectionFailed if one of them has not done it."""
        asked = parsed(admin_pb2.ResetGroupOffsetRequest, request, context)
        if not asked.HasField("reset_timestamp"):
            raise BadRequest("the request names no reset_timestamp; give the time to go to")
        told = evenq_pb2.ResetOffsetsRequest(
            group=asked.group.name,
            topic=asked.topic.name,
            to=evenq_pb2.TIMESTAMP,
            value=max(0, ms_of(asked.reset_timestamp)),
        )
        failed = [move for move in (await reset_everywhere(self._broker, told)).moves if move.error]
        if failed:
            missing = "; ".join(f"{move.queue.broker_name}: {move.error}" for move in failed)
            raise ConnectionFailed(f"group {told.group} is moved, but not on every broker ({missing}); do it again")
        return admin_pb2.ResetGroupOffsetResponse(status=OK).SerializeToString()

    def _read_by(self, group: GroupConfig, topics: set[str]) -> Iterable[tuple[TopicConfig, QueueProgress]]:
        for queue in self._broker.progress.queues():
            topic = self._broker.topics.by_id(queue.topic_id)
            if queue.group_id == group.group_id and topic is not None and (not topics or topic.name in topics):
                yield topic, queue

    async def _times(self, queue: QueueProgress, offsets: Sequence[int]) -> dict[int, int]:
        wanted = sorted({offset for offset in offsets if offset >= 0})
        found = await self._broker.store.read_at(queue.topic_id, queue.queue_id, wanted)
        return {message.queue_offset: message.store_ms for message in found}


def _unknown(group: str) -> GroupNotFound:
    return GroupNotFound(f"no consumer group {group!r}; create it with `evenq group create {group}`")


def _add(
    total: admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation,
    more: admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation,
) -> None:
    total.inflight_messages += more.inflight_messages
    total.ready_messages += more.ready_messages
    total.accumulation += more.accumulation
    if more.HasField("deliver_delay_time"):
        longest = max(duration_ms_of(total.deliver_delay_time), duration_ms_of(more.deliver_delay_time))
        set_duration_ms(total.deliver_delay_time, longest)
    total.last_consume_timestamp = max(total.last_consume_timestamp, more.last_consume_timestamp)
