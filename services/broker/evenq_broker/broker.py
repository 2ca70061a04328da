"""The composition of the broker: creates the parts, connects them, starts and ends them in order.

`app.py` calls `open` (store, journal replay), opens the servers, then calls `start` (loops) with the addresses that
clients receive, and `close` at the end. Everything runs on one event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

from evenq.model import BrokerAddress, Generation
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.serving.rpc import Rpc
from evenq.store.io.disk import Disk
from evenq.wire.addresses import split_addresses
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.delivery.unanswered import hold_by_time
from evenq_broker.core.diagnosis.backlog import Backlog
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.polls.poll_table import PollTable
from evenq_broker.core.shares import UsersNow, no_users
from evenq_broker.core.state.records import Locked
from evenq_broker.loops.assignment.grants import Grants
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.dead_letters.mover import DeadLetterMover
from evenq_broker.loops.delivery.ending import DeliveryShutdown
from evenq_broker.loops.diagnosis.span_export import SpanExport
from evenq_broker.loops.diagnosis.span_follower import SpanFollower
from evenq_broker.loops.diagnosis.watching import watch_heads
from evenq_broker.loops.groups.departures import Departures
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.groups.settings import GroupSettings
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.polls.cluster_polls import ClusterPolls
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress.starting import GroupStarts
from evenq_broker.loops.resizing.resizing import left_here
from evenq_broker.loops.sending.dedup import Deduplicator
from evenq_broker.loops.sending.delays import due
from evenq_broker.loops.sending.schedules import Schedules
from evenq_broker.loops.staging.staging import Staging
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.state.table_ends import GroupTableEnds
from evenq_broker.loops.transactions.transactions import Transactions
from evenq_broker.rpc.every_call import every_call
from evenq_broker.runtime import ONE_COPY, Leadership, Runtime
from evenq_broker.settings import BrokerSettings


class Broker:
    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        rng: random.Random,
        net: Net,
        disk: Disk | None = None,
        leadership: Leadership = ONE_COPY,
        users: UsersNow = no_users,
    ) -> None:
        """`disk` replaces the data folder; None: the folder of the settings. `users`: see `core.shares`."""
        runtime = self.runtime = Runtime(settings, clock=clock, rng=rng, net=net, leadership=leadership, users=users)
        ledger = self.ledger = Ledger(runtime, disk=disk)
        catalog = self.catalog = Catalog(runtime, ledger)
        kernel = self.kernel = Kernel(runtime, catalog, ledger)
        self.cluster = ClusterLink(kernel)
        self.change_sender = ChangeSender(kernel, self.cluster)
        self.cluster_catalog = ClusterCatalog(kernel, self.cluster, self.change_sender)
        self.stuck_queues, self.backlog = StuckQueues(), Backlog()
        self.delayed_retries = DelayedRetries()
        self.membership = GroupTables()
        ledger.keeps({Locked: self._lock_restored}, self._locks)
        self.clients = ConnectedClients(kernel)
        polls = PollTable(polls_max=settings.polls_max, users=users)
        self.starts = GroupStarts(kernel, cluster=self.cluster, membership=self.membership)
        self.cluster_polls = ClusterPolls(kernel, polls, cluster=self.cluster, starts=self.starts)
        self.long_polls = LongPolls(kernel, polls, self.cluster_polls)
        self.ending = DeliveryShutdown(kernel, clients=self.clients, long_polls=self.long_polls)
        self.dead_letter_mover = DeadLetterMover(kernel, long_polls=self.long_polls)
        self.transactions = Transactions(kernel, cluster=self.cluster, clients=self.clients)
        self.staging = Staging(kernel, cluster=self.cluster)
        self.lite = Lites(kernel, cluster=self.cluster, clients=self.clients, long_polls=self.long_polls)
        self.schedules = Schedules(kernel)
        self.deduplicator = Deduplicator(kernel) if settings.duplicates_window_ms else None
        rebalancers = split_addresses(settings.rebalancer)
        self.rebalancer = RebalancerLink(kernel, rebalancers, membership=self.membership) if rebalancers else None
        self.grants = Grants(kernel, long_polls=self.long_polls, rebalancer=self.rebalancer)
        self.sessions = Sessions(
            kernel,
            membership=self.membership,
            clients=self.clients,
            long_polls=self.long_polls,
            grants=self.grants,
            rebalancer=self.rebalancer,
        )
        self.departures = Departures(
            kernel, clients=self.clients, cluster=self.cluster, long_polls=self.long_polls, sessions=self.sessions
        )
        self.group_settings = GroupSettings(kernel, cluster=self.cluster, unconfirmed=self.change_sender.unconfirmed)
        self.span_export = self.span_follower = None
        if settings.tracing.otlp_endpoint:
            self.span_export = SpanExport(settings.tracing, cluster=settings.cluster, broker_name=settings.broker_name)
            self.span_follower = SpanFollower(kernel, self.span_export.add)
        self._connect()

    def _connect(self) -> None:
        """Connects parts that would otherwise have to refer to each other."""
        catalog, progress, stats = self.catalog, self.ledger.progress, self.runtime.stats
        progress.on_over = self.dead_letter_mover.over
        self.cluster_polls.on_elsewhere = self.long_polls.ready_elsewhere
        progress.on_unblocked = lambda queue: self.long_polls.ready(queue.group_id, queue.topic_id, queue.queue_id)
        self.clients.on_end(self.long_polls.end_client)
        self.clients.on_end(self.lite.end_client)
        self.clients.on_end(self.sessions.ended_v2)
        self.clients.on_release = self.long_polls.sooner
        catalog.on_topic_gone(self.lite.end_topic)
        catalog.on_topic_gone(lambda topic: self.schedules.forget_topic(topic.topic_id))
        catalog.on_topic_gone(lambda topic: stats.forget_topic(topic.topic_id))
        catalog.on_topic_gone(lambda topic: self.delayed_retries.forget_topic(topic.topic_id))
        catalog.on_topic_gone(lambda topic: self.long_polls.wake_topic(topic.topic_id))
        catalog.on_topic_gone(lambda topic: self.sessions.locking.topic_gone(topic.name))
        catalog.on_topic_gone(lambda topic: self.sessions.fences.forget_topic(topic.name))
        catalog.on_group_gone(lambda group: stats.forget_group(group.group_id))
        catalog.on_group_gone(lambda group: self.sessions.locking.group_gone(group.name))
        catalog.on_group_gone(lambda group: self.sessions.fences.forget_group(group.name))
        catalog.on_group_gone(lambda group: self.lite.subscriptions.end_group(group.name))
        catalog.on_group_changed(self.sessions.settings_changed)
        if self.rebalancer is not None:
            self.rebalancer.on_decision = self.sessions.assignment_changed
            self.catalog.changes.on_facts(self.rebalancer.changed)
        self.catalog.changes.on_routes(self.sessions.routes_changed)
        self.cluster.known.on_forgotten += [self.staging.broker_forgotten, self.change_sender.broker_forgotten]

    async def open(self) -> None:
        """Opens the store and rebuilds the state. Raises StoreLocked, StoreCorrupted."""
        ahead_ms = await self.ledger.open(self.catalog.retention_ms, GroupTableEnds(self.kernel))
        self.catalog.opened()
        self.lite.skip_ms(ahead_ms)
        self.lite.inherit(self.runtime.leadership.lite_sets)
        self.delayed_retries.begin(self.ledger.store.stats.log_end)
        if self.deduplicator is not None:
            await self.deduplicator.restore()
        self._end_unanswered()
        self.departures.expect()

    def _end_unanswered(self) -> None:
        """Redelivers soon what push consumers may not have received before the previous process ended."""
        settings, ledger, now_ms = self.runtime.settings, self.ledger, self.runtime.now_ms()
        unsure = hold_by_time(
            ledger.progress,
            given_from_ms=ledger.store.last_store_ms - settings.attempt_keep_ms,
            held_ms=settings.renew_max_ms,
            until_ms=now_ms + settings.invisible_default_ms,
            now_ms=now_ms,
        )
        ops = [queue.op(offset, queue.pending[offset]) for queue, offset in unsure]
        if ops:
            ledger.journal.record(*ops)

    async def start(self, addresses: Sequence[BrokerAddress]) -> None:
        """Starts the loops. `addresses`: those that clients receive, the default listener first."""
        runtime, store = self.runtime, self.ledger.store
        runtime.begin(addresses)
        store.on_failure = runtime.fail  # poisoned: the content of the disk is unknown (architecture 5)
        store.fire_timers(
            partial(
                due,
                self.catalog,
                transactions=self.transactions,
                staging=self.staging,
                delayed_retries=self.delayed_retries,
            )
        )
        self.schedules.start()
        self.staging.start()
        self.long_polls.start()
        if self.span_export is not None and self.span_follower is not None:
            self.span_export.start()
            self.span_follower.start()
        self.departures.start()
        runtime.spawn(
            watch_heads(self.kernel, lite=self.lite, stuck_queues=self.stuck_queues, backlog=self.backlog),
            name="queue heads",
        )
        self.cluster_polls.start()
        runtime.spawn(self.lite.sweep(), name="lite topics")
        runtime.spawn(self.lite.learn(), name="lite subscriptions")
        if self.deduplicator is not None:
            self.deduplicator.start()
        await self.cluster.start()
        if self.rebalancer is not None:
            runtime.spawn(self.rebalancer.run(), name="rebalancer link")
        runtime.spawn(self.sessions.sweep(), name="session sweep")
        runtime.spawn(self.change_sender.run(), name="changes for brokers that were away")
        await self.cluster.first_word()
        await self.group_settings.start()

    async def leave(self, drain_ms: int = 0) -> None:
        """Announces the end of this broker; members get `drain_ms` to finish and commit, then their sessions end."""
        if not self.cluster.started:
            return
        if self.catalog.draining:
            left = left_here(self.kernel, membership=self.membership, lite=self.lite, schedules=self.schedules.table)
            await self.cluster.known.goodbye(left)
        if drain_ms > 0:
            await asyncio.gather(self.sessions.hand_over(drain_ms), self.cluster.goodbye())
            self.sessions.close()
        else:
            await self.cluster.goodbye()

    async def close(self) -> None:
        """Ends polls and loops, flushes and closes the store. Idempotent."""
        self.long_polls.close()
        self.cluster_polls.close()
        self.sessions.close()
        await self.leave()
        self.cluster.stop()
        if self.span_export is not None and self.span_follower is not None:
            await self.span_follower.close()
            await self.span_export.close()
        await self.runtime.close()
        await self.transactions.close()
        await self.staging.close()
        if self.deduplicator is not None:
            await self.deduplicator.close()
        # Last: the parts above still write records while they end.
        await self.ledger.close()

    def rpcs(self) -> list[Rpc]:
        return every_call(self)

    def _locks(self) -> list[Locked]:
        return [
            Locked(group, queue, client_id, generation.epoch, generation.counter)
            for group, queue, client_id, generation in self.membership.locks.remembered()
        ]

    def _lock_restored(self, op: Locked) -> None:
        self.membership.locks.restore(op.group, op.queue, op.client_id, Generation(op.epoch, op.counter))
