"""Where a group begins on the queues of a topic, and whether anything there waits for it.

A group begins a topic once, and for all queues of the topic in one step, so that nothing sent later is missed: at its
first receive here (one that waits at another broker counts, see `loops.polls.cluster_polls`), when an official SDK
sends its settings, before its start returns (`rpc.clients.telemetry`), or when the first member that keeps its
own progress is about to read a queue. Then its policy decides (RB-42). It decides once:

- A queue that comes later, on this broker, is read from its first message.
- If the group has begun the topic at another broker, this one joined later, or was away: the group begins at what was
  stored here since then, whatever its policy. Brokers ask each other for how long that is ago. Their clocks are not
  compared, and a broker that restarted since does not know: then the group begins at the first message. Where none of
  them answers, because all of them stop or start just now, what the member says of itself counts.
- If the group read a topic of this name that was deleted, or a member waited for it before there was one, all that is
  in it came after the group: it begins at the first message.

What nobody says does not count: the policy applies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from evenq.errors import Error
from evenq.model import GroupConfig, StartFrom, StartPolicy, TopicConfig
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq_broker.core.delivery.progress import READY
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.state.records import Op
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.cluster import begun_question, begun_since
from evenq_broker.runtime import Runtime

__all__ = ["AS_CONFIGURED", "GroupStarts", "is_young"]

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Data/QueryOffsets"
BEGUN_MAX = 100_000


AS_CONFIGURED = StartPolicy()


def is_young(ledger: Ledger, topic_id: int, queue_id: int) -> bool:
    """Whether the queue still has its first message, and it can be read without the disk (RB-46)."""
    low, high = ledger.store.queue_range(topic_id, queue_id)
    if not low == 0 < high:
        return False
    return ledger.store.read_hot(topic_id, queue_id, 0, count_max=1, bytes_max=1, tag_hashes=None) is not None


class GroupStarts:
    """The starts of all groups at one broker."""

    def __init__(
        self, runtime: Runtime, catalog: Catalog, ledger: Ledger, *, cluster: ClusterLink, membership: GroupTables
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._cluster, self._membership = cluster, membership
        self._begun_ms: dict[tuple[int, int], int] = {}
        """When groups (id) began topics (id), monotonic ms, since this process started. The oldest go first."""

    async def begin(self, group: GroupConfig, topic: TopicConfig, policy: StartPolicy = AS_CONFIGURED) -> None:
        """Let the group begin on each queue of the topic where it has not; durable when it returns. A receive waits for
        it: "from now on" must mean the same after a crash. The topic or the group may be gone when it returns.
        """
        known = self._known(group, topic)
        offsets: Mapping[int, int] = {}
        if not any(known) and not self._reads_all(group, topic, policy):
            offsets = await self._by_policy(group, topic, policy)
            if not self._exist(group, topic):
                return
        record = None if all(known) else self._start(group, topic, offsets)
        if record is not None:
            await record

    def begin_at_first(self, group: GroupConfig, topic: TopicConfig) -> None:
        """Let a group that waited before there was anything begin at the first messages."""
        if not all(self._known(group, topic)):
            self._start(group, topic, {})

    def noted(self, group: GroupConfig, topic: TopicConfig) -> None:
        """The group begins on the topic in this step."""
        key = (group.group_id, topic.topic_id)
        if not any(self._known(group, topic)):
            self._begun_ms[key] = self._runtime.clock.monotonic_ms()
            if len(self._begun_ms) > BEGUN_MAX:
                del self._begun_ms[next(iter(self._begun_ms))]

    def begun_ms(self, group: GroupConfig, topic: TopicConfig) -> int:
        """How long ago the group began on the topic here, ms, at least 1; -1: it did, at the first message or at a time
        that is not known; 0: it did not.
        """
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
                if high > low and self._reads_all(group, topic, AS_CONFIGURED):
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

    def _exist(self, group: GroupConfig, topic: TopicConfig) -> bool:
        catalog = self._catalog
        return catalog.topics.by_id(topic.topic_id) is not None and catalog.groups.by_id(group.group_id) is not None

    def _start(self, group: GroupConfig, topic: TopicConfig, offsets: Mapping[int, int]) -> asyncio.Future[None] | None:
        """At these offsets, by queue; at the first message of other queues."""
        progress, store = self._ledger.progress, self._ledger.store
        if offsets:  # a group that reads the topic from its first message does so at every broker, whenever it joined
            self.noted(group, topic)
        ops: list[Op] = []
        for one in range(topic.read_queues):
            low, high = store.queue_range(topic.topic_id, one)
            op = progress.start(group.group_id, topic.topic_id, one, min(max(offsets.get(one, low), low), high))
            if op is not None:
                ops.append(op)
        return self._ledger.journal.record(*ops)

    def _reads_all(self, group: GroupConfig, topic: TopicConfig, policy: StartPolicy) -> bool:
        """Dead letters are always read from the first one: a group that looks at them wants those that are there."""
        start_from = policy.start_from or group.start_from
        if start_from == StartFrom.FIRST or (start_from == StartFrom.TIMESTAMP and policy.timestamp_ms <= 0):
            return True
        if topic.name.startswith((DLQ_PREFIX, RETRY_PREFIX)):
            return True
        return self._waited(group, topic) or self._catalog.awaits(group, topic.name)

    def _waited(self, group: GroupConfig, topic: TopicConfig) -> bool:
        """True if a member wanted the topic before there was one: all that is in it came after the member."""
        made_ms = self._catalog.made_ms.get(topic.name)
        members = self._membership.members
        return made_ms is not None and any(
            member.joined_ms <= made_ms and member.reads(topic.name) for member in members.members(group.name)
        )

    async def _by_policy(self, group: GroupConfig, topic: TopicConfig, policy: StartPolicy) -> dict[int, int]:
        store, topic_id = self._ledger.store, topic.topic_id
        # Now: what is sent while others are asked comes after the start.
        offsets = {one: self._end(topic_id, one, policy) for one in range(topic.read_queues)}
        asked_ms = self._runtime.clock.now_ms()
        since_ms = await self._begun_elsewhere(group, topic)
        if since_ms is None and policy.begun_ms:
            since_ms = 0 if policy.begun_ms < 0 else max(0, asked_ms - policy.begun_ms)
        if (policy.start_from or group.start_from) == StartFrom.TIMESTAMP:
            offsets = {one: await store.offset_at(topic_id, one, policy.timestamp_ms) for one in offsets}
        if since_ms is not None:
            log.info(
                "group %s: it has begun topic %s at another broker, and begins here with what came since", group.name,
                topic.name, extra={"group": group.name, "topic": topic.name},
            )  # fmt: skip
            for one, offset in offsets.items():
                offsets[one] = min(offset, await store.offset_at(topic_id, one, since_ms))
        return offsets

    def _end(self, topic_id: int, queue_id: int, policy: StartPolicy) -> int:
        if policy.young_from_first and is_young(self._ledger, topic_id, queue_id):
            return 0
        return self._ledger.store.queue_range(topic_id, queue_id)[1]

    async def _begun_elsewhere(self, group: GroupConfig, topic: TopicConfig) -> int | None:
        """Since when, by the clock of this broker's log; 0: since before anything here. None: it has not."""
        await self._cluster.facts_settled()
        own, peers = self._runtime.settings.broker_name, self._cluster.peers
        names = [at.broker.name for at in self._catalog.routes.route(topic.name) if at.broker.name != own]
        asked_ms = self._runtime.clock.now_ms()
        question = begun_question(group.name, topic.name)
        answers = await asyncio.gather(
            *(peers.ask(name, METHOD, question, repeatable=True) for name in names), return_exceptions=True
        )
        since: list[int] = []
        for name, answer in zip(names, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                ago_ms = begun_since(answer)
            except Error as error:
                log.info("broker %s does not say whether group %s reads %s: %s", name, group.name, topic.name, error)
                continue
            if ago_ms:
                since.append(0 if ago_ms < 0 else max(0, asked_ms - ago_ms))
        return min(since, default=None)
