"""The calls of `apache.rocketmq.v2.Admin` about groups: subscriptions, clients, lag, resets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from evenq.errors import BadRequest, ConnectionFailed, Error, GroupNotFound, PreconditionFailed
from evenq.model import GroupConfig, TopicConfig
from evenq.serving.auth.calls import ADMIN_V2, rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.convert import duration_ms_of, requested_ms_of, set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2 as evenq_pb2
from evenq_broker.core.delivery.progress import QueueProgress
from evenq_broker.core.state.records import Unsubscribed
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import filter_of
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.clients.client_list import ClientList
from evenq_broker.rpc.cluster.forwarding import MARK
from evenq_broker.rpc.groups.offsets import OffsetResets

_SQL = 1  # evenq.v1.Filter.SQL
_M = TypeVar("_M", bound=Message)


async def others(
    method: str, request: bytes, context: RpcContext, response: type[_M], *, cluster: ClusterLink
) -> list[_M]:
    """Returns the answers of the other brokers that succeed; nothing for a call that is forwarded itself."""
    return (await others_and_silent(method, request, context, response, cluster=cluster))[0]


async def others_and_silent(
    method: str, request: bytes, context: RpcContext, response: type[_M], *, cluster: ClusterLink
) -> tuple[list[_M], list[str]]:
    """As `others`, with the names of brokers that do not answer or are missing, ascending."""
    if MARK in context.headers:
        return [], []
    answers = await cluster.peers.ask_peers(ADMIN_V2 + method, request, metadata={MARK: "1"})
    silent = {name for name, result in answers if isinstance(result, Error)}
    responses = [response.FromString(result) for _, result in answers if not isinstance(result, Error)]
    known = [one for one in responses if one.status.code == definition_pb2.OK]  # type: ignore[attr-defined]  # each has one
    return known, sorted({*silent, *cluster.known.out_of_reach()})


def client_info(summary: evenq_pb2.ClientSummary) -> admin_pb2.ClientInfo:
    """Returns a client in the form of the protocol; SDKs begin their client ids with the hostname."""
    return admin_pb2.ClientInfo(
        client_id=summary.client_id,
        version=summary.version,
        language=summary.language,
        hostname=summary.client_id.partition("@")[0],
        message_model=admin_pb2.CLUSTERING,
    )


class GroupAdmin:
    """The handlers of one broker. A call about other brokers is sent to them and merged here."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        client_list: ClientList,
        long_polls: LongPolls,
        sessions: Sessions,
        resets: OffsetResets,
    ) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._client_list = cluster, client_list
        self._long_polls, self._sessions, self._resets = long_polls, sessions, resets

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(ADMIN_V2 + "ListSubscription", self.list_subscriptions),
            rpc(ADMIN_V2 + "DescribeSubscription", self.describe_subscriptions),
            rpc(ADMIN_V2 + "DeleteSubscription", self.delete_subscription),
            rpc(ADMIN_V2 + "DescribeGroupAccumulation", self.accumulation),
            rpc(ADMIN_V2 + "ListConsumerConnection", self.connections),
            rpc(ADMIN_V2 + "ResetGroupOffset", self.reset),
            rpc(ADMIN_V2 + "QueryTimeSpan", self.time_span),
        ]

    async def list_subscriptions(self, data: bytes, context: RpcContext) -> bytes:
        """Lists subscriptions of living members, then topics that groups have read before, as this broker knows."""
        request = parsed(admin_pb2.ListSubscriptionRequest, data, context)
        topic, group = request.topic.name, request.group.name
        response = admin_pb2.ListSubscriptionResponse(status=OK)
        seen: set[tuple[str, str]] = set()
        for _, info in await self._subscribed(group, topic):
            key = (info.group.name, info.topic.name)
            if key not in seen:
                response.subscription_info.append(info)
            seen.add(key)
        for queue in self._ledger.progress.queues():
            reader, read = (
                self._catalog.groups.by_id(queue.group_id),
                self._catalog.topics.by_id(queue.topic_id),
            )
            if reader is None or read is None or (reader.name, read.name) in seen:
                continue
            if group in {"", reader.name} and topic in {"", read.name}:
                seen.add((reader.name, read.name))
                info = response.subscription_info.add(message_model=admin_pb2.CLUSTERING, subscription_consistency=True)
                info.group.name, info.topic.name = reader.name, read.name
                info.expression.type, info.expression.expression = definition_pb2.TAG, "*"
        return response.SerializeToString()

    async def describe_subscriptions(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeSubscriptionRequest, data, context)
        group = request.group.name
        response = admin_pb2.DescribeSubscriptionResponse(status=OK)
        for summary, info in await self._subscribed(group, request.topic.name):
            response.client_subscription_info.add(client_info=client_info(summary), subscription_info=info)
        return response.SerializeToString()

    async def delete_subscription(self, data: bytes, context: RpcContext) -> bytes:
        """Deletes a group's progress on a topic, on all brokers. Raises PreconditionFailed while a member reads it."""
        request = parsed(admin_pb2.DeleteSubscriptionRequest, data, context)
        group, topic = request.group.name, request.topic.name
        if MARK not in context.headers:
            reading = await self._subscribed(group, topic)
            if reading:
                raise PreconditionFailed(
                    f"{len(reading)} members of group {group} read topic {topic}, among them "
                    f"{reading[0][0].client_id}; stop them first"
                )
        known, read = self._catalog.groups.get(group), self._catalog.topics.get(topic)
        if known is not None and read is not None and read.topic_id in self._ledger.progress.topics_of(known.group_id):
            self._ledger.progress.forget(known.group_id, read.topic_id)
            self._sessions.fences.forget(group, topic)
            self._long_polls.wake_topic(read.topic_id)
            given_up = Unsubscribed(known.group_id, read.topic_id)
            self._catalog.unsubscribed(given_up)
            await self._ledger.journal.record(given_up)
        else:
            await self._ledger.journal.settled()  # an earlier call's record may not be safe yet (decision 62)
        elsewhere = await others(
            "DeleteSubscription", data, context, admin_pb2.DeleteSubscriptionResponse, cluster=self._cluster
        )
        if MARK not in context.headers and len(elsewhere) < len(self._cluster.peers.all()):
            raise ConnectionFailed("deleted here, but not every broker answered; repeat it when all answer")
        if known is None and MARK not in context.headers and not elsewhere:
            raise _unknown(group)
        return admin_pb2.DeleteSubscriptionResponse(status=OK).SerializeToString()

    async def _subscribed(
        self, group: str, topic: str
    ) -> list[tuple[evenq_pb2.ClientSummary, admin_pb2.SubscriptionInfo]]:
        clients = (await self._client_list.everywhere(group)).clients
        filters: dict[tuple[str, str], set[tuple[int, str]]] = {}
        subscriptions: list[tuple[evenq_pb2.ClientSummary, admin_pb2.SubscriptionInfo]] = []
        for client in clients:
            for entry in client.subscriptions:
                if topic not in {"", entry.topic}:
                    continue
                expression = filter_of(entry.filter)
                info = admin_pb2.SubscriptionInfo(online=True, message_model=admin_pb2.CLUSTERING)
                info.group.name, info.topic.name = client.group, entry.topic
                info.expression.type = definition_pb2.SQL if entry.filter.type == _SQL else definition_pb2.TAG
                info.expression.expression = expression.expression
                set_ms(info.last_update_timestamp, entry.version or client.joined_ms)
                filters.setdefault((client.group, entry.topic), set()).add(
                    (info.expression.type, info.expression.expression)
                )
                subscriptions.append((client, info))
        for client, info in subscriptions:
            info.subscription_consistency = len(filters[client.group, info.topic.name]) == 1
        return subscriptions

    async def connections(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ListConsumerConnectionRequest, data, context)
        group, topic = request.group.name, request.topic.name
        response = admin_pb2.ListConsumerConnectionResponse(status=OK)
        for client in (await self._client_list.everywhere(group)).clients:
            reads = {entry.topic for entry in client.subscriptions}
            if not topic or not reads or topic in reads:
                response.client_info.append(client_info(client))
        if not response.client_info and not await self._is_known(group):
            raise _unknown(group)
        return response.SerializeToString()

    async def _is_known(self, group: str) -> bool:
        if self._catalog.groups.get(group) is not None:
            return True
        request = evenq_pb2.DescribeGroupRequest(group=group, local=True).SerializeToString()
        answers = await self._cluster.peers.ask_peers("/evenq.v1.Admin/DescribeGroup", request)
        responses = [
            evenq_pb2.DescribeGroupResponse.FromString(one) for _, one in answers if not isinstance(one, Error)
        ]
        return any(one.status.code == definition_pb2.OK for one in responses)

    async def accumulation(self, data: bytes, context: RpcContext) -> bytes:
        """Returns lag by topic and in total; the status reports lower bounds while brokers are away."""
        request = parsed(admin_pb2.DescribeGroupAccumulationRequest, data, context)
        name = request.group.name
        topics = {topic.name for topic in request.topics}
        group = self._catalog.groups.get(name)
        response = admin_pb2.DescribeGroupAccumulationResponse(status=OK)
        if group is not None:
            await self._accumulate(group, topics, response)
        responses, silent = await others_and_silent(
            "DescribeGroupAccumulation",
            data,
            context,
            admin_pb2.DescribeGroupAccumulationResponse,
            cluster=self._cluster,
        )
        if silent:
            response.status.message = f"at least: the messages at {', '.join(silent)} cannot be counted"
        if group is None and not responses:
            raise _unknown(name)
        for other in responses:
            _add(response.accumulation, other.accumulation)
            for topic, figures in other.topic_accumulation.items():
                _add(response.topic_accumulation[topic], figures)
        return response.SerializeToString()

    async def _accumulate(
        self, group: GroupConfig, topics: set[str], response: admin_pb2.DescribeGroupAccumulationResponse
    ) -> None:
        for topic, queue in self._read_by(group, topics):
            low, high = self._ledger.store.queue_range(queue.topic_id, queue.queue_id)
            start = max(queue.next, low)
            figures = admin_pb2.DescribeGroupAccumulationResponse.GroupAccumulation(
                inflight_messages=queue.inflight(low, high), accumulation=queue.lag(low, high)
            )
            figures.ready_messages = figures.accumulation - figures.inflight_messages
            times = await self._times(queue, [start, max(queue.committed - 1, low)])
            if start in times and start < high:
                set_duration_ms(figures.deliver_delay_time, max(0, self._runtime.clock.now_ms() - times[start]))
            figures.last_consume_timestamp = times.get(queue.committed - 1, 0)
            _add(response.accumulation, figures)
            _add(response.topic_accumulation[topic.name], figures)

    async def time_span(self, data: bytes, context: RpcContext) -> bytes:
        """Returns the store times of the oldest, the newest and the next message to consume, for each queue."""
        request = parsed(admin_pb2.QueryTimeSpanRequest, data, context)
        name = request.group.name
        topics = {topic.name for topic in request.topics}
        group = self._catalog.groups.get(name)
        response = admin_pb2.QueryTimeSpanResponse(status=OK)
        for topic, queue in self._read_by(group, topics) if group is not None else ():
            low, high = self._ledger.store.queue_range(queue.topic_id, queue.queue_id)
            times = await self._times(queue, [low, high - 1, queue.committed])
            span = response.queue_time_span_list.add(
                min_timestamp=times.get(low, 0),
                max_timestamp=times.get(high - 1, 0),
                consume_timestamp=times.get(queue.committed, times.get(high - 1, 0)),
            )
            behind = queue.committed < high and queue.committed in times
            span.delay_time_ms = max(0, self._runtime.clock.now_ms() - times[queue.committed]) if behind else 0
            span.message_queue.topic.name, span.message_queue.id = topic.name, queue.queue_id
            span.message_queue.broker.name = self._runtime.settings.broker_name
        responses = await others("QueryTimeSpan", data, context, admin_pb2.QueryTimeSpanResponse, cluster=self._cluster)
        if group is None and not responses:
            raise _unknown(name)
        for other in responses:
            response.queue_time_span_list.extend(other.queue_time_span_list)
        return response.SerializeToString()

    async def reset(self, data: bytes, context: RpcContext) -> bytes:
        """Moves a live group to a time, on all brokers. Raises ConnectionFailed if one of them has not done it."""
        request = parsed(admin_pb2.ResetGroupOffsetRequest, data, context)
        if not request.HasField("reset_timestamp"):
            raise BadRequest("the request names no reset_timestamp; give the time to go to")
        reset = evenq_pb2.ResetOffsetsRequest(
            group=request.group.name,
            topic=request.topic.name,
            to=evenq_pb2.TIMESTAMP,
            value=max(0, requested_ms_of(request.reset_timestamp, "reset_timestamp")),
        )
        failed = [move for move in (await self._resets.everywhere(reset)).moves if move.error]
        if failed:
            missing = "; ".join(f"{move.queue.broker_name}: {move.error}" for move in failed)
            raise ConnectionFailed(f"group {reset.group} is moved, but not on every broker ({missing}); repeat it")
        return admin_pb2.ResetGroupOffsetResponse(status=OK).SerializeToString()

    def _read_by(self, group: GroupConfig, topics: set[str]) -> Iterable[tuple[TopicConfig, QueueProgress]]:
        for queue in self._ledger.progress.queues():
            topic = self._catalog.topics.by_id(queue.topic_id)
            if queue.group_id == group.group_id and topic is not None and (not topics or topic.name in topics):
                yield topic, queue

    async def _times(self, queue: QueueProgress, offsets: Sequence[int]) -> dict[int, int]:
        valid = sorted({offset for offset in offsets if offset >= 0})
        messages = await self._ledger.store.read_at(queue.topic_id, queue.queue_id, valid)
        return {message.queue_offset: message.store_ms for message in messages}


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
