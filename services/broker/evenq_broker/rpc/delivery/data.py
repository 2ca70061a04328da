"""`evenq.v1.Data`: blocks in (`rpc.sending.publishing`), blocks out, and offsets (`rpc.delivery.member_progress`), for
members that keep their own progress.

The hot path: what is stored goes out as it is (`rpc.delivery.queue_blocks`). Reads are answered from memory without
leaving the call; only what is not there waits for the disk. A pull that finds nothing is parked and woken by the
dispatch of new messages (LP-1, LP-3). A follower answers these reads by `rpc.delivery.follower_data`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from evenq.errors import IllegalOffset, QueueReplaced
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.serving.rpc import CallKind, Frames, Rpc, RpcContext
from evenq.store import ReadResult, StoredMessage
from evenq.wire.stubs.evenq.v1 import data_pb2
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.delivery.filters import TURNS_MIN, MessageFilter
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress.starting import GroupStarts
from evenq_broker.loops.sending.dedup import Deduplicator
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.translation import generation_of
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.cluster.forwarding import caller_of
from evenq_broker.rpc.delivery.member_progress import MemberProgress
from evenq_broker.rpc.delivery.named_queues import NamedQueues, out_of_range
from evenq_broker.rpc.delivery.queue_blocks import (
    PULL_BYTES_DEFAULT,
    PULL_DEFAULT,
    PULL_MAX,
    compiled_filter,
    must_be_readable,
    nothing_new,
    outside,
    pulled,
    read_queue,
    replaced,
    scan_size,
    scanned,
)
from evenq_broker.rpc.sending.publishing import PublishHandler
from evenq_broker.runtime import Runtime
from evenq_broker.stats import GroupTopicStats

__all__ = ["rpcs"]


def rpcs(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    *,
    cluster: ClusterLink,
    cluster_catalog: ClusterCatalog,
    membership: GroupTables,
    starts: GroupStarts,
    sessions: Sessions,
    long_polls: LongPolls,
    deduplicator: Deduplicator | None,
    delayed_retries: DelayedRetries,
) -> list[Rpc]:
    """The calls of this module."""
    progress = MemberProgress(
        runtime, catalog, ledger, starts=starts, sessions=sessions, long_polls=long_polls,
        delayed_retries=delayed_retries,
    )  # fmt: skip
    data = _Data(
        runtime, catalog, ledger, membership=membership, sessions=sessions, long_polls=long_polls, progress=progress
    )
    publishing = PublishHandler(
        runtime, catalog, ledger, cluster=cluster, cluster_catalog=cluster_catalog, deduplicator=deduplicator
    )
    service = "/evenq.v1.Data/"
    return [
        replace(rpc(service + "Publish", publishing.publish, data_pb2.PublishResponse), plain=publishing.plain),
        rpc(service + "Pull", data.pull, data_pb2.PullResponse),
        rpc(service + "Scan", data.scan, data_pb2.ScanBlock, CallKind.SERVER_STREAM),
        rpc(service + "QueryOffsets", progress.query_offsets, data_pb2.QueryOffsetsResponse),
        rpc(service + "CommitOffsets", progress.commit_offsets, data_pb2.CommitOffsetsResponse),
        rpc(service + "CountDeliveries", progress.count_deliveries, data_pb2.CountDeliveriesResponse),
        rpc(service + "SendBack", progress.send_back, data_pb2.SendBackResponse),
    ]


class _Data:
    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        ledger: Ledger,
        *,
        membership: GroupTables,
        sessions: Sessions,
        long_polls: LongPolls,
        progress: MemberProgress,
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._membership, self._sessions, self._long_polls = membership, sessions, long_polls
        self._progress, self._named = progress, NamedQueues(runtime, catalog)
        copies = runtime.leadership.copies > 1
        self._far_behind_bytes = runtime.settings.replication.behind_bytes_max() if copies else 0

    # ------------------------------------------------------------------------------------------------ pull and scan

    async def pull(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(data_pb2.PullRequest, data)
        try:
            return await self._pull(request, context)
        except QueueReplaced as error:
            return replaced(error, context)

    async def _pull(self, request: data_pb2.PullRequest, context: RpcContext) -> bytes:
        topic, queue = self._named.readable(request.queue, request.uid)
        must_be_readable(topic, queue.queue_id)
        group = await self._catalog.ensure_group(request.group) if request.group else None
        if group is not None:
            sessions = self._sessions
            generation = generation_of(request.generation)
            self._must_hold(group.name, request, queue)
            if sessions.fences:
                sessions.fences.read(group.name, queue, request.client_id, request.offset)
            # An offset behind the queue's end is of another log, or a mistake: kept, the group would skip what comes
            # (D6).
            known = 0 <= request.committed <= self._ledger.store.queue_range(topic.topic_id, queue.queue_id)[1]
            if known and sessions.locking.may_commit(group.name, request.client_id, queue, generation):
                self._progress.commit(group, topic, queue, request.client_id, request.committed)
        requested_filter = compiled_filter(request.filter)
        until_ms = self._named.until_ms(request.wait_ms, context)
        # One number tells that no lock changed hands while this waited; most pulls need no second look at the fence
        # (OC-18).
        seen = self._membership.locks.changes
        result = await self._read_until(topic, queue, request, requested_filter, until_ms, user=caller_of(context))
        if group is not None and self._membership.locks.changes != seen:  # maybe it changed hands meanwhile
            self._must_hold(group.name, request, queue)
        if isinstance(result, IllegalOffset):
            return outside(result, request.offset, context)
        messages = result.messages
        if group is not None and request.owner:
            self._handed(group, topic, queue, request.client_id, result.next_offset)
        if not messages:
            return nothing_new(queue, result)
        response = pulled(result, far_behind=request.any_copy and self._is_far_behind(messages[-1]))
        if group is not None:
            stats = self._runtime.stats.group_topic(group.group_id, topic.topic_id)
            stats.messages_out += len(messages)
            stats.bytes_out += len(response)
            stats.went([message.store_ms for message in messages], self._runtime.clock.now_ms())
        return response

    def _is_far_behind(self, message: StoredMessage) -> bool:
        """HA-9: whether a reader that has come to this message had better read from another copy of the log (LQ-69)."""
        behind_max = self._far_behind_bytes
        return behind_max > 0 and self._ledger.store.stats.log_end - message.log_offset > behind_max

    def _handed(self, group: GroupConfig, topic: TopicConfig, queue: MessageQueue, client_id: str, until: int) -> None:
        """The holder of the queue gets what is below `until`."""
        progress = self._ledger.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        if progress is not None and progress.handed < until:
            fences = self._sessions.fences
            if not (fences and fences.ignores(group.name, queue, client_id, now_ms=self._runtime.clock.monotonic_ms())):
                progress.handed = until

    def _passed(self, topic: TopicConfig, queue: MessageQueue, request: data_pb2.PullRequest, until: int) -> None:
        """The holder's filter leaves out all from where it pulls to `until`."""
        group = self._catalog.groups.get(request.group)
        progress = group and self._ledger.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        if progress:
            fences, now_ms = self._sessions.fences, self._runtime.clock.monotonic_ms()
            if not (fences and fences.ignores(request.group, queue, request.client_id, now_ms=now_ms)):
                progress.passed = (request.offset, until)

    def _must_hold(self, group: str, request: data_pb2.PullRequest, queue: MessageQueue) -> None:
        locking = self._sessions.locking
        locking.must_stay()
        locking.must_hold(group, request.client_id, queue, generation_of(request.generation), owner=request.owner)

    async def _read_until(
        self,
        topic: TopicConfig,
        queue: MessageQueue,
        request: data_pb2.PullRequest,
        requested_filter: MessageFilter,
        until_ms: int,
        *,
        user: str,
    ) -> ReadResult | IllegalOffset:
        # Reads until something fits the filter, the queue's end is reached and the time is over, or the queue is gone.
        # A filter has turns with everybody else, and an end: the answer says where to go on.
        count = min(request.batch_max or PULL_DEFAULT, PULL_MAX)
        size = min(request.bytes_max or PULL_BYTES_DEFAULT, self._runtime.settings.receive_bytes_max)
        position, queue_id = request.offset, queue.queue_id
        turns = 0
        while True:
            low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
            if not low <= position <= high:
                return out_of_range(position, low, high)
            result = await read_queue(
                self._ledger.store, topic.topic_id, queue_id, position, count, size, requested_filter
            )
            left_ms = until_ms - self._runtime.clock.monotonic_ms()
            turns += 1
            if result.messages or (left_ms <= 0 and (result.next_offset >= high or turns >= TURNS_MIN)):
                return result
            stepped, position = result.next_offset > position, result.next_offset
            if stepped and request.owner and request.committed >= 0:  # it commits what it passed by itself
                self._passed(topic, queue, request, position)
            if position < result.max_offset and stepped:
                await self._runtime.clock.sleep_ms(0)
                continue
            grown = [(topic.topic_id, queue_id, position)]
            if left_ms <= 0 or not await self._long_polls.for_growth(grown, left_ms, user=user):
                return result
            # The topic may have been deleted or closed while this was parked, or made anew: the store knows it by
            # another number then.
            self._named.readable(request.queue, request.uid or self._catalog.queue_uid(topic))
            if request.group:
                self._must_hold(request.group, request, queue)

    async def scan(self, data: bytes, context: RpcContext) -> AsyncGenerator[Frames, None]:
        request = parsed(data_pb2.ScanRequest, data)
        topic, queue = self._named.readable(request.queue, request.uid)
        size = scan_size(request, self._runtime.settings.receive_bytes_max)
        taken = self._taken(request.group, topic)
        store, ids = self._ledger.store, (topic.topic_id, queue.queue_id)
        far_behind = request.any_copy and self._far_behind_bytes > 0 and await self._begins_far_behind(*ids, request)
        async for block in scanned(store, *ids, request, context, size=size, taken=taken, far_behind=far_behind):
            yield block

    async def _begins_far_behind(self, topic_id: int, queue_id: int, request: data_pb2.ScanRequest) -> bool:
        return any(map(self._is_far_behind, await self._ledger.store.read_at(topic_id, queue_id, [request.start])))

    def _taken(self, name: str, topic: TopicConfig) -> GroupTopicStats:
        """Where a scan counts what it gives: at the group that it names, if that is one. A scan makes none."""
        group = self._catalog.groups.get(name) if name else None
        return GroupTopicStats() if group is None else self._runtime.stats.group_topic(group.group_id, topic.topic_id)
