"""Sends changes of topics and groups to brokers that were away or did not answer: deletions, and topics that were made
or widened.

An operator's change goes to every live broker at the same time (`loops.cluster.cluster_catalog`). Before that it is in
the journal, with the brokers that have not confirmed it (`core.cluster.unconfirmed_changes`), and leaves it when all
have. Remaining changes are sent to every broker that appears, also to those that need not confirm them: they
remember them, too, so a change outlives the brokers of its time. A receiving broker applies a change if it has not,
remembers it if others have not, and answers when both are durable.

A topic is deleted only if it has the uid of the deletion. A group is deleted only if it is older than the deletion and
the sender still waits for this broker. Changes are sent in the order of their requests, so a topic that was made again
is made after its predecessor is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from evenq.errors import Error
from evenq.model import TopicConfig
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.cluster.unconfirmed_changes import CHANGES_MAX, KEPT_MS, ChangeId, UnconfirmedChanges
from evenq_broker.core.state.records import ChangeKind, ChangePut
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire import cluster as wire
from evenq_broker.loops.wire.cluster import PeerChange

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/CatalogChanges"
PAGE = 200
AGAIN_MS = 5_000
"""Pause before a peer that is in the routes and did not answer, or rejected a change, is called again."""
LOOK_MS = 3_600_000
"""How often the age of changes is checked."""
NAMED_MAX = 5


@dataclass(slots=True)
class _SentChanges:
    """Changes that were sent to one peer since it appeared."""

    incarnation: str
    ids: set[ChangeId] = field(default_factory=set)
    version: int = -1
    """Of the table, when all of it was sent to the peer."""
    silent: bool = False
    """It did not answer; that was logged."""
    refused: set[ChangeId] = field(default_factory=set)


class ChangeSender:
    """The changes that this broker remembers for others."""

    def __init__(self, kernel: Kernel, cluster: ClusterLink) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster = cluster
        self._own_name = kernel.runtime.settings.broker_name
        self.unconfirmed = UnconfirmedChanges()
        kernel.catalog.uids.remembered = self.unconfirmed
        kernel.ledger.keeps({ChangePut: self.unconfirmed.apply}, self.unconfirmed.dump)
        self._sent: dict[str, _SentChanges] = {}
        self._asking: list[str] = []
        """Topics and groups that a running call changes at all live brokers."""

    # ------------------------------------------------------------------------------------------------ requested here

    def remember(self, kind: ChangeKind, name: str, *, waiting: Iterable[str], uid: str = "") -> None:
        """Notes a change that these brokers have not confirmed; it is in the journal's record of this step."""
        waits = tuple(sorted({*waiting} - {self._own_name}))
        self._record(self.unconfirmed.asked(ChangePut(kind, name, uid, self._runtime.clock.now_ms(), waits)))

    def holds(self, kind: ChangeKind, name: str) -> bool:
        """True if brokers have not confirmed such a change."""
        return any((one.kind, one.name) == (kind, name) for one in self.unconfirmed.all())

    def confirmed(self, kind: ChangeKind, name: str, broker_names: Iterable[str]) -> None:
        """Notes that these brokers have made this change, by their answers to a call."""
        ids = [ChangeId.of(one) for one in self.unconfirmed.all() if (one.kind, one.name) == (kind, name)]
        for broker_name in broker_names:
            self._record(self.unconfirmed.confirmed(ids, broker_name))

    @contextmanager
    def asking(self, name: str) -> Iterator[None]:
        """Stops the loop from sending a change of this topic or group while a call sends it to all live brokers."""
        self._asking.append(name)
        try:
            yield
        finally:
            self._asking.remove(name)
            if len(self.unconfirmed):
                self._catalog.changes.routes.notify()

    def broker_forgotten(self, name: str) -> None:
        """Ends the wait for a broker that was removed for good."""
        self._record(self.unconfirmed.broker_forgotten(name))

    # ------------------------------------------------------------------------------------------------ sent

    async def run(self) -> None:
        """Runs as a loop of the broker."""
        while True:
            seen = self._catalog.changes.routes.count
            self._give_up(self.unconfirmed.expired(self._runtime.clock.now_ms()), f"{KEPT_MS // 86_400_000} days")
            all_done = await self.send_to(view.name for view in self._cluster.peers.all())
            again_ms = None if not len(self.unconfirmed) else LOOK_MS if all_done else AGAIN_MS
            await self._catalog.changes.routes.wait(seen, clock=self._runtime.clock, timeout_ms=again_ms)

    async def send_to(self, broker_names: Iterable[str]) -> bool:
        """Sends these brokers all missing changes; False: some have to be sent again."""
        here = {view.name: view for view in self._cluster.peers.all()}
        self._sent = {
            name: sent
            for name, sent in self._sent.items()
            if name in here and here[name].incarnation == sent.incarnation
        }
        wanted = [here[name] for name in broker_names if name in here]
        return all(await asyncio.gather(*map(self._send, wanted)))

    async def _send(self, peer: RegisteredBroker) -> bool:
        sent = self._sent.setdefault(peer.name, _SentChanges(peer.incarnation))
        version = self.unconfirmed.version
        if sent.version == version:
            return True
        changes = self.unconfirmed.all()
        sent.ids &= {ChangeId.of(change) for change in changes}
        pending = [one for one in changes if ChangeId.of(one) not in sent.ids and one.name not in self._asking]
        whole = len(sent.ids) + len(pending) == len(changes)
        news = list(self._with_definitions(pending))
        for page in (news[at : at + PAGE] for at in range(0, len(news), PAGE)):
            try:
                request = wire.changes_message(self._own_name, page)
                answer = await self._cluster.peers.ask(peer.name, METHOD, request, repeatable=True)
                whole &= self._answered(peer.name, sent, page, wire.refusals_of(answer))
            except Error as error:
                if not sent.silent:
                    log.warning(
                        "broker %s did not take over changes of topics and groups: %s",
                        peer.name,
                        error.message,
                        extra={"peer": peer.name, "changes": len(pending)},
                    )
                sent.silent = True
                if not error.retryable:  # a broker of an older version
                    sent.version = version
                return not error.retryable
        if whole:
            sent.version = version
        return whole

    def _answered(self, name: str, sent: _SentChanges, page: Sequence[PeerChange], reasons: Sequence[str]) -> bool:
        """False: it rejected some."""
        taken: list[ChangeId] = []
        for one, reason in zip(page, reasons, strict=True):
            known = ChangeId.of(one.change)
            if not reason:
                taken.append(known)
            elif known not in sent.refused:
                sent.refused.add(known)
                log.warning(
                    "broker %s does not take over a change (%s %s): %s",
                    name,
                    known.kind,
                    known.name,
                    reason,
                    extra={"peer": name, "kind": str(known.kind), "name_changed": known.name},
                )
        sent.ids.update(taken)
        self._record(self.unconfirmed.confirmed(taken, name))
        return len(taken) == len(page)

    def _with_definitions(self, changes: Iterable[ChangePut]) -> Iterator[PeerChange]:
        """Yields topics in their present form. One that is gone, or was given to chosen brokers, is dropped."""
        for change in changes:
            if change.kind is not ChangeKind.TOPIC_MADE:
                yield PeerChange(change, None)
                continue
            topic = self._catalog.topics.get(change.name)
            if topic is None or topic.uid != change.uid or topic.chosen:
                self._record(self.unconfirmed.end([change]))
            else:
                yield PeerChange(change, topic)

    # ------------------------------------------------------------------------------------------------ received

    async def take(self, changes: Iterable[PeerChange]) -> list[str]:
        """Applies another broker's changes durably; returns why each failed ("": it did not). Raises journal errors."""
        reasons: list[str] = []
        for one in changes:
            try:
                await self._apply(one)
                reasons.append("")
            except Error as error:
                reasons.append(error.message or type(error).__name__)
        self._catalog.changes.routes.notify()
        await self._ledger.journal.settled()
        return reasons

    async def _apply(self, one: PeerChange) -> None:
        change = one.change
        others = tuple(name for name in change.waiting if name != self._own_name)
        if change.kind is ChangeKind.TOPIC_DELETED:
            # First: a topic that is made in between must not take the uid of this one.
            self._catalog.uids.end(change.uid)
        self._record(self.unconfirmed.add(replace(change, waiting=others)))
        if change.kind is ChangeKind.TOPIC_DELETED:
            await self._delete_topic(change)
        elif len(others) < len(change.waiting):
            await (self._delete_group(change) if one.made is None else self._make_topic(one.made))

    async def _delete_topic(self, change: ChangePut) -> None:
        topic = self._catalog.topics.get(change.name)
        if topic is not None and topic.uid == change.uid:
            self._cluster.known.topic_deleted(topic.name)
            await self._catalog.delete_topic(topic.name)
            fields = {"topic": topic.name}
            log.info("topic %s was deleted while this broker was away, and now here", topic.name, extra=fields)

    async def _delete_group(self, change: ChangePut) -> None:
        group = self._catalog.groups.get(change.name)
        if group is None or group.made_ms >= change.at_ms:
            return
        await self._catalog.delete_group(group.name)
        if group.revised_ms > change.at_ms:  # made again meanwhile, and its settings came here first
            await self._catalog.create_group(
                group.name,
                ordered=group.ordered,
                max_attempts=group.max_attempts,
                strategy=group.strategy,
                start_from=group.start_from,
                retry=group.retry,
                balance=group.balance,
                revised_ms=group.revised_ms,
            )
        fields = {"group": group.name}
        log.info("group %s was deleted while this broker was away, and now here", group.name, extra=fields)

    async def _make_topic(self, topic: TopicConfig) -> None:
        if self._catalog.uids.ended(topic.uid):
            return
        await self._catalog.create_topic(
            topic.name,
            message_type=topic.message_type,
            queues=topic.write_queues,
            uid=topic.uid,
            retention_ms=-1 if topic.retention_ms is None else topic.retention_ms,
        )

    # ------------------------------------------------------------------------------------------------ inside

    def _record(self, ops: list[ChangePut]) -> None:
        for op in ops:
            if op.kind is ChangeKind.TOPIC_DELETED and not op.waiting:
                self._catalog.uids.end(op.uid)  # routes have the topic for a moment after the table forgot it
        if ops:
            self._ledger.journal.record(*ops)
            self._give_up(self.unconfirmed.overflow(), f"{CHANGES_MAX} changes")

    def _give_up(self, changes: Sequence[ChangePut], bound: str) -> None:
        if not changes:
            return
        names = [f"{change.kind} {change.name}" for change in changes[:NAMED_MAX]]
        brokers = sorted({name for change in changes for name in change.waiting})
        log.warning(
            "%d changes that brokers have not confirmed are given up, the bound is %s: %s do not get %s",
            len(changes),
            bound,
            ", ".join(brokers[:NAMED_MAX]),
            ", ".join(names),
            extra={"changes": len(changes), "peers": brokers[:NAMED_MAX]},
        )
        self._ledger.journal.record(*self.unconfirmed.end(changes))
