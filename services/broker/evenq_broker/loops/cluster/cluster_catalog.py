"""Topics and groups of the whole cluster: made, widened and deleted on every live broker.

Creating a topic everywhere is one decision (TQ-2): the first live broker by name decides type and counts, the others
follow. So two brokers that create the same topic at the same time end with equal counts. Many first sends to one new
topic make it once; the others wait for the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from evenq.errors import Error, NotFound
from evenq.model import MIXED_KINDS, MessageType, QueueCounts, TopicConfig
from evenq.runtime.tasks import outlasting, spawn
from evenq_broker.core.state.records import ChangeKind
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.cluster.link import ROUTE_WAIT_MS, ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire import cluster as wire
from evenq_broker.loops.wire.cluster import Placement
from evenq_broker.loops.wire.translation import counts_of

log = logging.getLogger(__name__)

ROUNDS_MAX = 3


class ClusterCatalog:
    """Topics and groups of all brokers together."""

    def __init__(self, kernel: Kernel, cluster: ClusterLink, sender: ChangeSender) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._peers, self._sender = cluster, cluster.peers, sender
        self._own_name = kernel.runtime.settings.broker_name
        self._creating: dict[str, asyncio.Future[None]] = {}

    # ------------------------------------------------------------------------------------------------ topics

    async def ensure_topic(self, name: str, *, message_type: MessageType | None = None) -> TopicConfig:
        """Returns the topic, created on every broker if that is allowed. Raises IllegalTopic, TopicNotFound."""
        topic = self._catalog.topics.get(name)
        if topic is not None:
            return topic
        self._catalog.may_make(name)
        kind = message_type or MessageType.NORMAL
        await self._once(name, self.create_topic(name, message_type=kind))
        topic = self._catalog.topics.get(name)
        if topic is None:
            self._catalog.must_belong_here(name)  # the routes may have come meanwhile
            topic = await self._catalog.create_topic(name, message_type=kind)
        return topic

    async def topic_made(self, name: str) -> None:
        """Waits until a topic that is being made is everywhere: clients keep an incomplete route for 30 s."""
        running = self._creating.get(name)
        if running is not None:
            await outlasting(running)

    async def create_topic(
        self,
        name: str,
        *,
        message_type: MessageType = MessageType.NORMAL,
        queues: int = 0,
        retention_ms: int | None = None,
        brokers: Mapping[str, int] | None = None,
    ) -> list[Placement]:
        """Creates or widens the topic on every live broker with equal counts; returns the results, ascending by broker
        name.

        `queues` per broker, 0 = as elsewhere, or the default; `retention_ms` as for `Catalog.create_topic`. With
        `brokers` only there, each with its own number (0 = `queues`), and from then on no other broker adds it by
        itself (TQ-4). Raises errors of creating it here, and NotFound for a broker that is not alive.
        """
        await self._cluster.facts_settled()
        known = await self._counts_elsewhere(name)
        kind = known[0].message_type if known else message_type
        if message_type is MessageType.MIXED and kind in MIXED_KINDS:
            kind = MessageType.MIXED
        if brokers or any(counts.chosen for counts in known):
            wanted_at = dict(brokers) if brokers else {counts.broker_name: queues for counts in known}
            if self._own_name in wanted_at:
                self._catalog.must_have_room(name)
            return await self._place_chosen(name, kind, queues, retention_ms, wanted_at)
        self._catalog.must_have_room(name)  # before another broker has it, and this one not
        uid = self._catalog.uids.shared(counts.uid for counts in known)
        counts = [counts.write_queues for counts in known]
        count = max([queues, *counts] if queues or counts else [self._catalog.default_queues(kind)])
        placements: list[Placement] = []
        for _ in range(ROUNDS_MAX):
            placements = await self._place_topic(name, kind, count, retention_ms, uid)
            widths = [placement.counts.write_queues for placement in placements if placement.counts is not None]
            most = max(widths, default=count)
            if all(width == most for width in widths):
                break
            count = most
        await self.topic_widened(name, [p.broker_name for p in placements if p.error])
        await self._until_routed(name, [p.broker_name for p in placements if not p.error])
        return placements

    async def delete_topic(self, name: str) -> list[tuple[str, Error]]:
        """Deletes the topic on every broker; returns those that do it later because they failed or are missing."""
        with self._sender.asking(name):
            others = [*self._cluster.known.names(), *(peer.name for peer in self._peers.all())]
            # On its way to brokers that it may reach after this deletion: they need the uid, too.
            on_its_way = self._sender.holds(ChangeKind.TOPIC_MADE, name)
            await self._end_topic(name, {at.counts.uid for at in self._catalog.routes.route(name)}, others)
            answers = await self._cluster.ask_all("/evenq.v1.Admin/DeleteTopic", wire.delete_topic(name))
            failed = _failures(answers, wire.check_topic_deleted)
            if not on_its_way:
                self._sender.confirmed(ChangeKind.TOPIC_DELETED, name, _others_than(failed, answers))
            return failed

    async def end_topic(self, name: str) -> None:
        """Forgets HERE a topic that is deleted everywhere. Brokers that are away delete it when they return."""
        await self._end_topic(name, (), [one.name for one in self._cluster.known.missing()])

    async def _end_topic(self, name: str, uids: Iterable[str], waiting: Collection[str]) -> None:
        topic = self._catalog.topics.get(name)
        for uid in sorted({*uids, topic.uid if topic else ""} - {""}):
            self._catalog.uids.end(uid)
            self._sender.remember(ChangeKind.TOPIC_DELETED, name, uid=uid, waiting=waiting)
        # All of it is one record: nothing is awaited before.
        self._cluster.known.topic_deleted(name)
        await self._catalog.delete_topic(name)

    async def topic_widened(self, name: str, failed: Iterable[str] = ()) -> None:
        """Notes a topic made or widened at live brokers except `failed`; they and missing ones do it later. Durable."""
        topic = self._catalog.topics.get(name)
        if topic is not None and topic.uid and not topic.chosen:
            waiting = [*failed, *(one.name for one in self._cluster.known.missing())]
            self._sender.remember(ChangeKind.TOPIC_MADE, name, uid=topic.uid, waiting=waiting)
            self._catalog.changes.routes.notify()
            await self._catalog.settled()

    async def create_group(self, request: bytes) -> list[tuple[str, Error]]:
        """Creates the group on all other live brokers (`wire.create_group`); returns those that failed, and why."""
        answers = await self._peers.ask_peers("/evenq.v1.Admin/CreateGroup", request)
        return _failures(answers, wire.check_group_created)

    async def delete_group(self, name: str) -> list[tuple[str, Error]]:
        """Deletes the group on every broker; returns those that do it later because they failed or are missing."""
        with self._sender.asking(name):
            await self._end_group(name, [*self._cluster.known.names(), *(peer.name for peer in self._peers.all())])
            answers = await self._cluster.ask_all("/evenq.v1.Admin/DeleteGroup", wire.delete_group(name))
            failed = _failures(answers, wire.check_group_deleted)
            self._sender.confirmed(ChangeKind.GROUP_DELETED, name, _others_than(failed, answers))
            return failed

    async def end_group(self, name: str) -> None:
        """Forgets HERE a group that is deleted everywhere. Does nothing for an unknown one."""
        await self._end_group(name, [one.name for one in self._cluster.known.missing()])

    async def _end_group(self, name: str, waiting: Collection[str]) -> None:
        self._sender.remember(ChangeKind.GROUP_DELETED, name, waiting=waiting)
        await self._catalog.delete_group(name)

    # ------------------------------------------------------------------------------------------------ inside

    async def _counts_elsewhere(self, name: str) -> list[QueueCounts]:
        """Returns the counts at other brokers, which first delete a topic that was deleted while they were away."""
        route, ended = self._catalog.routes.route(name), self._catalog.uids.ended
        await self._sender.send_to(at.broker.name for at in route if ended(at.counts.uid))
        return [at.counts for at in route if not ended(at.counts.uid)]

    async def _once(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        running = self._creating.get(name)
        if running is not None:
            work.close()
            await outlasting(running)
            return
        task = spawn(work, name=f"create topic {name}")
        self._creating[name] = task
        task.add_done_callback(lambda _: self._creating.pop(name, None))
        await outlasting(task)

    async def _place_topic(
        self, name: str, kind: MessageType, queues: int, retention_ms: int | None, uid: str
    ) -> list[Placement]:
        names = sorted({self._own_name, *(peer.name for peer in self._peers.all())})
        placements: list[Placement] = []
        while names and not any(not placement.error for placement in placements):
            first = await self._place(names.pop(0), name, kind, queues, retention_ms, uid)  # decides type and counts
            placements.append(first)
            if first.counts is not None:
                uid = first.counts.uid or uid
                kind = first.counts.message_type
                queues = max(queues, first.counts.write_queues)
        others = (self._place(broker, name, kind, queues, retention_ms, uid) for broker in names)
        placements += await asyncio.gather(*others)
        return sorted(placements, key=lambda placement: placement.broker_name)

    async def _place_chosen(
        self, name: str, kind: MessageType, queues: int, retention_ms: int | None, wanted_at: dict[str, int]
    ) -> list[Placement]:
        live = {self._own_name, *(peer.name for peer in self._peers.all())}
        missing = sorted(set(wanted_at) - live)
        if missing:
            raise NotFound(f"no live broker is named {', '.join(missing)}; the cluster has {', '.join(sorted(live))}")
        uid = self._catalog.uids.shared(at.counts.uid for at in self._catalog.routes.route(name))
        elsewhere = sorted({at.broker.name for at in self._catalog.routes.route(name)} - set(wanted_at))
        places = [
            *((broker, wanted_at[broker] or queues) for broker in sorted(wanted_at)),
            *((broker, 0) for broker in elsewhere if broker in live),  # they learn that it is chosen; counts stay
        ]
        placements = await asyncio.gather(
            *(self._place(broker, name, kind, count, retention_ms, uid, chosen=True) for broker, count in places)
        )
        await self._until_routed(name, [p.broker_name for p in placements if not p.error])
        return sorted(placements, key=lambda placement: placement.broker_name)

    async def _place(
        self,
        broker_name: str,
        name: str,
        kind: MessageType,
        queues: int,
        retention_ms: int | None,
        uid: str,
        *,
        chosen: bool = False,
    ) -> Placement:
        if broker_name == self._own_name:
            topic = await self._catalog.create_topic(
                name, message_type=kind, queues=queues, retention_ms=retention_ms, chosen=chosen, uid=uid
            )
            return Placement(broker_name, counts_of(broker_name, topic))
        request = wire.create_topic(name, kind, queues=queues, retention_ms=retention_ms, chosen=chosen, uid=uid)
        try:
            response = await self._peers.ask(broker_name, "/evenq.v1.Admin/CreateTopic", request, repeatable=True)
            return Placement(broker_name, wire.created_counts(broker_name, response))
        except Error as error:
            log.warning(
                "topic %s was not created at broker %s: %s",
                name,
                broker_name,
                error.message,
                extra={"topic": name, "peer": broker_name},
            )
            return Placement(broker_name, error=error.message)

    async def _until_routed(self, topic: str, broker_names: Sequence[str]) -> None:
        # The answer waits for the complete route: a client would keep an incomplete one for half a minute.
        deadline_ms = self._runtime.clock.monotonic_ms() + ROUTE_WAIT_MS
        while True:
            seen = self._catalog.changes.routes.count
            here = {at.broker.name for at in self._catalog.routes.route(topic)}
            left_ms = deadline_ms - self._runtime.clock.monotonic_ms()
            if here.issuperset(broker_names) or left_ms <= 0:
                return
            await self._catalog.changes.routes.wait(seen, clock=self._runtime.clock, timeout_ms=left_ms)


def _others_than(failed: Iterable[tuple[str, Error]], answers: Iterable[tuple[str, bytes | Error]]) -> list[str]:
    names = {name for name, _ in failed}
    return [name for name, _ in answers if name not in names]


def _failures(
    answers: Iterable[tuple[str, bytes | Error]],
    check: Callable[[bytes], None],
) -> list[tuple[str, Error]]:
    failed: list[tuple[str, Error]] = []
    for name, result in answers:
        if isinstance(result, Error):
            failed.append((name, result))
            continue
        try:
            check(result)
        except Error as error:
            failed.append((name, error))
    return failed
