"""Start of a group on the queues of a topic, and whether messages wait for it there.

A group begins a topic once, on all its queues in one step, so that it misses nothing that is sent later: at its first
receive here or at another broker (`loops.polls.cluster_polls`), with the settings of an official SDK
(`rpc.clients.telemetry`), or before the first read of a member that keeps its own progress. The group's policy decides
(RB-42), with these exceptions; docs/internals/consumers.md explains them:

- The first request of an official SDK, settings or receive, begins at the first message of queues that still have it
  in memory (RB-46). Its start and its receives are different moments, and settings may arrive after a receive or never.
- A queue that is created later on this broker is read from its first message.
- The group has begun the topic at another broker: then it begins at the messages stored here since. Brokers query each
  other for how long ago that was; if none knows a start, the one that the member reports counts.
- A broker of the topic does not answer, or left less than `AWAY_MS` ago. It may be the only one that knows the group.
  So queues whose first message is younger than `AWAY_MS` are read from that message.
- The group read a deleted topic of this name, or a member waited for the topic before it existed: all its messages came
  after the group, and it begins at the first one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from evenq.errors import ConnectionFailed, Error, RequestTimeout
from evenq.model import GroupConfig, StartFrom, StartPolicy, TopicConfig
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq_broker.core.cluster.routes import AWAY_MS
from evenq_broker.core.delivery.progress import READY
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.state.records import Op
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.cluster import begun_question, begun_since

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Data/QueryOffsets"
BEGUN_MAX = 100_000
UNANSWERED = (ConnectionFailed, RequestTimeout)


AS_CONFIGURED = StartPolicy()


def is_young(ledger: Ledger, topic_id: int, queue_id: int) -> bool:
    """True if the queue still has its first message, and it can be read without the disk (RB-46)."""
    low, high = ledger.store.queue_range(topic_id, queue_id)
    if not low == 0 < high:
        return False
    return ledger.store.read_hot(topic_id, queue_id, 0, count_max=1, bytes_max=1, tag_hashes=None) is not None


def reads_all(
    catalog: Catalog,
    group: GroupConfig,
    topic: TopicConfig,
    policy: StartPolicy = AS_CONFIGURED,
    *,
    membership: GroupTables,
) -> bool:
    """True if the group begins at the first message. Dead letters are always read from the first one."""
    start_from = policy.start_from or group.start_from
    if start_from == StartFrom.FIRST or (start_from == StartFrom.TIMESTAMP and policy.timestamp_ms <= 0):
        return True
    if topic.name.startswith((DLQ_PREFIX, RETRY_PREFIX)) or catalog.awaits(group, topic.name):
        return True
    # A member that subscribed before the topic existed: all its messages came after the member.
    made_ms = catalog.made_ms.get(topic.name)
    return made_ms is not None and any(
        member.joined_ms <= made_ms and member.reads(topic.name) for member in membership.members.members(group.name)
    )


class GroupStarts:
    """The starts of all groups at one broker."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, membership: GroupTables) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._membership = cluster, membership
        self.official = StartPolicy(young_from_first=kernel.runtime.settings.young_from_first)
        """For official SDKs, at their settings or their first receive (RB-46)."""
        self._begun_ms: dict[tuple[int, int], int] = {}
        """Time when groups (id) began topics (id), monotonic ms, since this process started. The oldest are dropped."""

    async def begin(self, group: GroupConfig, topic: TopicConfig, policy: StartPolicy = AS_CONFIGURED) -> None:
        """Begins the group on each queue of the topic where it has not begun; durable when it returns. A receive waits
        for it: "from now on" must mean the same after a crash. The topic or the group may be gone when it returns.
        """
        known = self._known(group, topic)
        offsets: Mapping[int, int] = {}
        if not any(known) and not reads_all(self._catalog, group, topic, policy, membership=self._membership):
            offsets = await self._by_policy(group, topic, policy)
            if self._catalog.gone(group, topic):
                return
        record = None if all(known) else self._start(group, topic, offsets)
        if record is not None:
            await record

    def begin_at_first(self, group: GroupConfig, topic: TopicConfig) -> None:
        """Begins a group that waited before the topic existed at the first messages."""
        if not all(self._known(group, topic)):
            self._start(group, topic, {})

    def noted(self, group: GroupConfig, topic: TopicConfig) -> None:
        """Notes that the group begins on the topic in this step."""
        key = (group.group_id, topic.topic_id)
        if not any(self._known(group, topic)):
            self._begun_ms[key] = self._runtime.clock.monotonic_ms()
            if len(self._begun_ms) > BEGUN_MAX:
                del self._begun_ms[next(iter(self._begun_ms))]

    def begun_ms(self, group: GroupConfig, topic: TopicConfig) -> int:
        """Returns how long ago the group began here, ms, at least 1; -1: at an unknown time; 0: it has not begun."""
        if not any(self._known(group, topic)):
            return -1 if self._catalog.awaits(group, topic.name) else 0
        since_ms = self._begun_ms.get((group.group_id, topic.topic_id))
        return -1 if since_ms is None else max(1, self._runtime.clock.monotonic_ms() - since_ms)

    def deliverable(self, group: GroupConfig, topic: TopicConfig) -> bool:
        """True if a receive of the group would find a message on some queue of the topic, filters aside."""
        ledger = self._ledger
        for queue_id in range(topic.read_queues):
            queue = ledger.progress.queue(group.group_id, topic.topic_id, queue_id)
            low, high = ledger.store.queue_range(topic.topic_id, queue_id)
            if queue is None:
                if high > low and reads_all(self._catalog, group, topic, membership=self._membership):
                    return True
                continue
            if max(queue.next, low) < high and not queue.reading and ledger.progress.room(queue) > 0:
                return True
            if any((entry := queue.pending.get(one)) is not None and entry.deadline_ms == READY for one in queue.ready):
                return True
        return False

    # ------------------------------------------------------------------------------------------------ inside

    def _known(self, group: GroupConfig, topic: TopicConfig) -> list[bool]:
        progress = self._ledger.progress
        return [progress.queue(group.group_id, topic.topic_id, one) is not None for one in range(topic.read_queues)]

    def _start(self, group: GroupConfig, topic: TopicConfig, offsets: Mapping[int, int]) -> asyncio.Future[None] | None:
        """Begins at these offsets, by queue; other queues at the first message."""
        progress, store = self._ledger.progress, self._ledger.store
        if offsets:  # without: a group that reads from the first message does so at every broker, whenever it joined
            self.noted(group, topic)
        ops: list[Op] = []
        for one in range(topic.read_queues):
            low, high = store.queue_range(topic.topic_id, one)
            op = progress.start(group.group_id, topic.topic_id, one, min(max(offsets.get(one, low), low), high))
            if op is not None:
                ops.append(op)
        return self._ledger.journal.record(*ops)

    async def _by_policy(self, group: GroupConfig, topic: TopicConfig, policy: StartPolicy) -> dict[int, int]:
        store, topic_id = self._ledger.store, topic.topic_id
        # Read before the peers are queried: messages sent meanwhile come after the start.
        offsets = {one: self._end(topic_id, one, policy) for one in range(topic.read_queues)}
        asked_ms = self._runtime.clock.now_ms()
        since_ms, unanswered = await self._begun_elsewhere(group, topic)
        if since_ms is None and policy.begun_ms:
            since_ms = 0 if policy.begun_ms < 0 else max(0, asked_ms - policy.begun_ms)
        if (policy.start_from or group.start_from) == StartFrom.TIMESTAMP:
            offsets = {one: await store.offset_at(topic_id, one, policy.timestamp_ms) for one in offsets}
        if since_ms is not None:
            log.info(
                "group %s: it has begun topic %s at another broker, and begins here at the messages stored since",
                group.name,
                topic.name,
                extra={"group": group.name, "topic": topic.name},
            )
            for one, offset in offsets.items():
                offsets[one] = min(offset, await store.offset_at(topic_id, one, since_ms))
        if unanswered:
            log.info(
                "group %s: it may have begun topic %s at the broker %s, which does not answer; queues that are younger "
                "than %d min are read from their first message",
                group.name,
                topic.name,
                ", ".join(unanswered),
                AWAY_MS // 60_000,
                extra={"group": group.name, "topic": topic.name},
            )
            for one in offsets:
                if await self._began_lately(topic_id, one, asked_ms):
                    offsets[one] = 0
        return offsets

    async def _began_lately(self, topic_id: int, queue_id: int, now_ms: int) -> bool:
        """True if the queue's first message is there, and was stored within `AWAY_MS`."""
        store = self._ledger.store
        low, high = store.queue_range(topic_id, queue_id)
        return low == 0 < high and await store.offset_at(topic_id, queue_id, now_ms - AWAY_MS) == 0

    def _end(self, topic_id: int, queue_id: int, policy: StartPolicy) -> int:
        if policy.young_from_first and is_young(self._ledger, topic_id, queue_id):
            return 0
        return self._ledger.store.queue_range(topic_id, queue_id)[1]

    async def _begun_elsewhere(self, group: GroupConfig, topic: TopicConfig) -> tuple[int | None, list[str]]:
        """Returns when the group began elsewhere, in this log's time, and the brokers of the topic that did not answer.
        0: before any message here; None: none of the others knows a start.
        """
        await self._cluster.facts_settled()
        own, peers = self._runtime.settings.broker_name, self._cluster.peers
        routes, now_ms = self._catalog.routes, self._runtime.clock.monotonic_ms()
        there = [at.broker.name for at in routes.route(topic.name) if at.broker.name != own]
        # A broker leaves the routes before it ends, and still answers meanwhile.
        gone = {view.name for view in routes.left(topic.name, now_ms)} | self._missed(topic)
        names = [*there, *sorted(gone - {own, *there})]
        asked_ms = self._runtime.clock.now_ms()
        question = begun_question(group.name, topic.name)
        answers = await asyncio.gather(
            *(peers.ask(name, METHOD, question, repeatable=name in there, leaving=True) for name in names),
            return_exceptions=True,
        )
        since: list[int] = []
        unanswered: list[str] = []
        for name, answer in zip(names, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                ago_ms = begun_since(answer)
            except Error as error:
                log.info("broker %s does not report whether group %s reads %s: %s", name, group.name, topic.name, error)
                if isinstance(error, UNANSWERED):
                    unanswered.append(name)
                continue
            if ago_ms:
                since.append(0 if ago_ms < 0 else max(0, asked_ms - ago_ms))
        return min(since, default=None), unanswered

    def _missed(self, topic: TopicConfig) -> set[str]:
        """Returns brokers of the topic that have been missing for less than `AWAY_MS`, as this broker remembers them,
        also across restarts of the nameservers.
        """
        since_ms = self._runtime.clock.now_ms() - AWAY_MS
        away = self._cluster.known.away(topic.name)
        return {one.name for one in away if not one.gone_ms or one.gone_ms > since_ms}
