"""The durable state of one broker: message store, journal of its state in the same log, and every group's progress.

A part whose state must survive registers with `keeps` how a snapshot holds it and how a record of it is replayed. So
this module does not know the parts. Nothing is replayed after `open`, and a snapshot holds the whole content of the log
before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from evenq.runtime.failpoints import passing
from evenq.store import FlushMode, MessageStore, StoreOptions
from evenq.store.io.disk import Disk
from evenq.store.opening.cleaner import TableEnds
from evenq_broker.core.delivery import counts as delivery_counts
from evenq_broker.core.delivery import taken_back
from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.diagnosis.trace import Trace
from evenq_broker.core.sending.recalls import Recalls
from evenq_broker.core.state.handles import KEY_BYTES, Handles
from evenq_broker.core.state.keys import keys_of
from evenq_broker.core.state.log_time import in_log_time
from evenq_broker.core.state.records import (
    Acked,
    Committed,
    Counted,
    Delivered,
    Invisible,
    KeyPut,
    Op,
    Unsubscribed,
    decode,
    encode,
)
from evenq_broker.core.transactions.half_messages import TransactionIds
from evenq_broker.loops.state.journal import Journal
from evenq_broker.runtime import Runtime
from evenq_broker.settings import StoreSettings

log = logging.getLogger(__name__)


class Ledger:
    """The durable half of one broker."""

    store: MessageStore
    """Open between `open` and `close`."""
    handles: Handles
    """Makes and reads receipt handles, by `key`; from `open` on."""
    recalls: Recalls
    transaction_ids: TransactionIds

    def __init__(self, runtime: Runtime, *, disk: Disk | None = None) -> None:
        """`disk` replaces the data folder; None: the folder of the settings."""
        self._runtime = runtime
        self._disk = disk
        settings = runtime.settings
        self.progress = Progress(inflight_max=settings.inflight_max)
        self.trace = Trace(settings.trace_bytes, now_ms=runtime.clock.now_ms()) if settings.trace_bytes else None
        """Recent operations on messages; None = not remembered."""
        self.journal = Journal(runtime, self.trace, self._state)
        self.key = b""
        """Signs receipt handles, recall handles and transaction ids: 32 bytes, from the journal or new."""
        self._dumps: list[Callable[[], Iterable[Op]]] = []
        self._replays: dict[type[Op], list[Callable[[Any], None]]] = {}
        for kind in (Acked, Committed, Delivered, Invisible):
            self._replays[kind] = [self.progress.apply]
        self._replays[Counted] = [lambda op: delivery_counts.apply(self.progress, op)]
        self._replays[Unsubscribed] = [lambda op: self.progress.forget(op.group_id, op.topic_id)]
        self._replays[KeyPut] = [self._key_put]

    def keeps(
        self,
        replays: Mapping[type[Any], Callable[[Any], None]],
        dump: Callable[[], Iterable[Op]] | None = None,
    ) -> None:
        """Registers a part's durable state: the replay of each kind of its records, and its dump for snapshots.

        Snapshots hold the parts in the order of these calls, before the groups' progress; a record that several parts
        replay goes to them in that order.
        """
        if dump is not None:
            self._dumps.append(dump)
        for kind, replay in replays.items():
            self._replays.setdefault(kind, []).append(replay)

    async def open(self, topic_retention_ms: Callable[[int], int | None], tables: TableEnds | None = None) -> int:
        """Opens the store and replays. Raises StoreLocked, StoreCorrupted and other errors of `MessageStore.open`.

        `topic_retention_ms`: how long the messages of a topic id are kept, ms; None: as long as any, 0: for ever.
        `tables`: their ends, for which retention waits.
        Returns how far, in ms, the clock was set back since the last start; `Runtime.now_ms` continues the log's time.
        """
        settings, leadership = self._runtime.settings, self._runtime.leadership
        self.store = await MessageStore.open(
            settings.store.path,
            store_options(settings.store),
            clock=self._runtime.clock,
            disk=self._disk,
            broker_name=settings.broker_name,
            on_state=lambda _, record: self.replay(record),
            on_snapshot=self.replay,
            snapshot_of=self._state,
            topic_retention_ms=topic_retention_ms,
            tables=tables,
            keys_of=keys_of if settings.store.message_index else None,
            epoch=leadership.epoch,
            replicated=leadership.attach is not None,
        )
        if leadership.attach is not None:
            leadership.attach(self.store)
        elif (floor := self.store.identity.epoch_floor) > leadership.epoch:  # of a backup: it continues there
            self._runtime.leadership = replace(leadership, epoch=floor)
        self.journal.begin(self.store)
        # After the replay: the answers to holders are in no record, so all replayed queues count as unknown.
        delivery_counts.restored(self.progress)
        passing("opening.restored")
        ahead_ms = self._catch_up()  # before any write: the log's last time must be the old process's
        if not self.key:
            self.key = self._runtime.rng.randbytes(KEY_BYTES)
            passing("opening.key_made")
            await self.journal.record(KeyPut(self.key))
            passing("opening.key_safe")
        self.handles = Handles(settings.broker_name, self.key)
        self.recalls = Recalls(settings.broker_name, self.key)
        self.transaction_ids = TransactionIds(settings.broker_name, self.key)
        return ahead_ms

    async def close(self) -> None:
        """Writes waiting operations and a last snapshot, closes the store. Idempotent; also after a failed `open`."""
        await self.journal.close()
        if hasattr(self, "store"):
            await self.store.close()

    def replay(self, record: bytes) -> None:
        """Replays one record of the journal, or a snapshot. Raises StoreCorrupted."""
        for op in decode(record):
            for replay in self._replays[type(op)]:
                replay(op)

    def taken_back(self, queues: Iterable[tuple[int, int, int]]) -> None:
        """Forgets messages that a full disk did not take: these queues (topic id, queue id) end there."""
        ends = {(topic_id, queue_id): end for topic_id, queue_id, end in queues}
        taken_back.forget(self.progress, ends)
        # After the state: operations that the journal owes are written later, and must not refer to lost messages.
        self.journal.amend(lambda op: taken_back.without(op, ends))

    def _state(self) -> bytes:
        """Returns the whole state, as a snapshot holds it. The store requests it when the log has grown."""
        parts, ahead_ms = [op for dump in self._dumps for op in dump()], self.journal.ahead_ms()
        progress = (in_log_time(op, ahead_ms) for op in self.progress.dump())
        return encode([*parts, *progress, *delivery_counts.dump(self.progress)])

    def _key_put(self, op: KeyPut) -> None:
        self.key = op.key

    def _catch_up(self) -> int:
        # The old process's deadlines were made by a clock that was set back since (a machine without a battery starts
        # in 1970). Without this, deliveries in flight would wait for as long as the clock lost.
        ahead_ms = self.store.last_store_ms - self._runtime.now_ms()
        if ahead_ms <= 0:
            return 0
        log.warning(
            "the clock is %d ms behind the newest record of the log; deadlines continue from the log's time",
            ahead_ms,
        )
        self._runtime.skip_ms(ahead_ms)
        return ahead_ms


def store_options(settings: StoreSettings) -> StoreOptions:
    """Returns the store's options: settings with the names of its fields."""
    names = {field.name for field in fields(StoreOptions)} - {"flush"}
    shared = {name: getattr(settings, name) for name in StoreSettings.model_fields if name in names}
    return StoreOptions(flush=FlushMode(settings.flush), **shared)
