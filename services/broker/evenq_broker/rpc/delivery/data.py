"""`evenq.v1.Data`: Pull and Scan for members that keep their own progress. Publish is in `rpc.sending.publishing`,
offsets are in `rpc.delivery.member_progress`.

The hot path: stored bytes are sent unchanged (`rpc.delivery.queue_blocks`). Messages in memory are read without an
await; only others wait for the disk. A pull without messages is parked, and the dispatch of new messages wakes it
(LP-1, LP-3). Followers answer reads by `rpc.delivery.follower_data`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from evenq.errors import IllegalOffset, QueueReplaced
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Frames, Rpc, RpcContext
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
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import generation_of
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
from evenq_broker.stats import GroupTopicStats


def rpcs(
    kernel: Kernel,
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
    progress = MemberProgress(
        kernel, starts=starts, sessions=sessions, long_polls=long_polls, delayed_retries=delayed_retries
    )
    data = _Data(kernel, membership=membership, sessions=sessions, long_polls=long_polls, progress=progress)
    publishing = PublishHandler(kernel, cluster=cluster, cluster_catalog=cluster_catalog, deduplicator=deduplicator)
    service = "/evenq.v1.Data/"
    return [
        rpc(service + "Publish", publishing.publish, plain=publishing.plain),
        rpc(service + "Pull", data.pull),
        rpc(service + "Scan", data.scan),
        rpc(service + "QueryOffsets", progress.query_offsets),
        rpc(service + "CommitOffsets", progress.commit_offsets),
        rpc(service + "CountDeliveries", progress.count_deliveries),
        rpc(service + "SendBack", progress.send_back),
    ]


class _Data:
    def __init__(
        self,
        kernel: Kernel,
        *,
        membership: GroupTables,
        sessions: Sessions,
        long_polls: LongPolls,
        progress: MemberProgress,
    ) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._membership, self._sessions, self._long_polls = membership, sessions, long_polls
        self._progress, self._named = progress, NamedQueues(kernel.runtime, kernel.catalog)
        copies = kernel.runtime.leadership.copies > 1
        self._far_behind_bytes = kernel.runtime.settings.replication.behind_bytes_max() if copies else 0

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
            # An offset after the queue's end is of another log, or a mistake: the group would skip new messages (D6).
            known = 0 <= request.committed <= self._ledger.store.queue_range(topic.topic_id, queue.queue_id)[1]
            if known and sessions.locking.may_commit(group.name, request.client_id, queue, generation):
                self._progress.commit(group, topic, queue, request.client_id, request.committed)
        requested_filter = compiled_filter(request.filter)
        until_ms = self._named.until_ms(request.wait_ms, context)
        # If the counter is unchanged, no lock changed its holder while this waited, so most pulls need no second check
        # of the fence (OC-18).
        seen = self._membership.locks.changes
        result = await self._read_until(topic, queue, request, requested_filter, until_ms, user=caller_of(context))
        if group is not None and self._membership.locks.changes != seen:
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
        """HA-9: returns True if a reader at this message should read from another copy of the log (LQ-69)."""
        behind_max = self._far_behind_bytes
        return behind_max > 0 and self._ledger.store.stats.log_end - message.log_offset > behind_max

    def _handed(self, group: GroupConfig, topic: TopicConfig, queue: MessageQueue, client_id: str, until: int) -> None:
        """Notes that the holder of the queue gets the messages below `until`."""
        progress = self._ledger.progress.queue(group.group_id, topic.topic_id, queue.queue_id)
        if progress is not None and progress.handed < until:
            fences = self._sessions.fences
            if not (fences and fences.ignores(group.name, queue, client_id, now_ms=self._runtime.clock.monotonic_ms())):
                progress.handed = until

    def _passed(self, topic: TopicConfig, queue: MessageQueue, request: data_pb2.PullRequest, until: int) -> None:
        """Notes that the holder's filter skips all messages from its offset to `until`."""
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
        # Reads until a message passes the filter, the queue's end is reached and the time is up, or the queue is gone.
        # A long search yields to other calls, and ends after some turns: the answer has the offset to continue at.
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
            if stepped and request.owner and request.committed >= 0:  # it commits what it has passed
                self._passed(topic, queue, request, position)
            if position < result.max_offset and stepped:
                await self._runtime.clock.sleep_ms(0)
                continue
            grown = [(topic.topic_id, queue_id, position)]
            if left_ms <= 0 or not await self._long_polls.for_growth(grown, left_ms, user=user):
                return result
            # While this was parked, the topic may have been deleted, closed, or created again with another id.
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
        """Returns the counters of the group that a scan names, if it exists. A scan creates no group."""
        group = self._catalog.groups.get(name) if name else None
        return GroupTopicStats() if group is None else self._runtime.stats.group_topic(group.group_id, topic.topic_id)
