"""Opening the store: settings become its options, records and snapshot become the broker's state, a new store gets
its key.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from evenq.runtime.failpoints import passing
from evenq.store import FlushMode, MessageStore, StoreOptions
from evenq_broker.core import delivery_counts
from evenq_broker.core.halves import TransactionIds
from evenq_broker.core.handles import KEY_BYTES, Handles
from evenq_broker.core.journal import (
    Acked,
    BrokerForgotten,
    BrokerKnown,
    BrokerTopics,
    Committed,
    Counted,
    Delivered,
    DrainPut,
    GroupPut,
    GroupRemoved,
    HalfPut,
    HalvesEnded,
    Invisible,
    KeyPut,
    LiteClosed,
    LiteOpened,
    Locked,
    Op,
    TopicPut,
    TopicRemoved,
    Unsubscribed,
    decode,
)
from evenq_broker.core.keys import keys_of
from evenq_broker.core.locks import Generation
from evenq_broker.core.recalls import Recalls
from evenq_broker.core.staging_ops import StagingOp
from evenq_broker.core.uids import local_uid
from evenq_broker.settings import StoreSettings

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["apply", "open_store", "store_options"]

log = logging.getLogger(__name__)

_DELETED_MS = 1  # a deleted topic's messages need not wait for anything


async def open_store(broker: Broker) -> None:
    """Open and replay. Raises StoreLocked, StoreCorrupted and what else `MessageStore.open` says."""
    settings = broker.settings.store

    def replay(record: bytes) -> None:
        for op in decode(record):
            apply(broker, op)

    options = store_options(settings)
    broker.store = await MessageStore.open(
        settings.path,
        options,
        clock=broker.clock,
        disk=broker.disk,
        broker_name=broker.settings.broker_name,
        on_state=lambda _, record: replay(record),
        on_snapshot=replay,
        snapshot_of=broker.journal.state,
        topic_retention_ms=lambda topic_id: _retention_ms(broker, topic_id),
        keys_of=keys_of if settings.message_index else None,
    )
    delivery_counts.restored(broker.progress)
    passing("opening.restored")
    broker.delayed_retries.begin(broker.store.stats.log_end)
    _catch_up(broker)  # before anything is written here: the log's last time must be that of the process before
    if not broker.handle_key:
        broker.handle_key = broker.rng.randbytes(KEY_BYTES)
        passing("opening.key_made")
        await broker.journal.record(KeyPut(broker.handle_key))
        passing("opening.key_safe")
    for topic in broker.topics.all():
        if not topic.uid:  # of a journal of before: the same at each start until something of the topic is written
            broker.topics.put(replace(topic, uid=local_uid(broker.handle_key, topic.topic_id) * 2))
    broker.handles = Handles(broker.settings.broker_name, broker.handle_key)
    broker.recalls = Recalls(broker.settings.broker_name, broker.handle_key)
    broker.transactions.ids = TransactionIds(broker.settings.broker_name, broker.handle_key)
    if broker.once is not None:
        await broker.once.restore()
    for client_id in sorted(broker.progress.clients()):
        broker.clients.seen(client_id, broker.now_ms())  # they have the usual silence to show that they live


def store_options(settings: StoreSettings) -> StoreOptions:
    """The settings that are options of the store have its names."""
    names = {field.name for field in fields(StoreOptions)} - {"flush"}
    told = {name: getattr(settings, name) for name in StoreSettings.model_fields if name in names}
    return StoreOptions(flush=FlushMode(settings.flush), **told)


def _catch_up(broker: Broker) -> None:
    # Deadlines of before were told by a clock that was set back since (a machine without a battery starts in 1970):
    # without this, what was in flight would wait for as long as the clock lost.
    ahead_ms = broker.store.last_store_ms - broker.now_ms()
    if ahead_ms <= 0:
        return
    log.warning(
        "the clock was set back since the last start; deadlines go on from the log's time",
        extra={"behind_ms": ahead_ms},
    )
    broker.skip_ms(ahead_ms)
    for one in broker.lite.topics.all():
        one.used_ms += ahead_ms


def _retention_ms(broker: Broker, topic_id: int) -> int | None:
    """How long the store keeps a topic's messages, ms; None: as long as any, 0: for ever."""
    topic = broker.topics.by_id(topic_id)
    return topic.retention_ms if topic is not None else _DELETED_MS


def apply(broker: Broker, op: Op) -> None:
    """Replay one operation."""
    match op:
        case Acked() | Committed() | Delivered() | Invisible():
            broker.progress.apply(op)
        case Counted():
            delivery_counts.apply(broker.progress, op)
        case TopicPut():
            broker.topics.put(op.topic)
        case GroupPut():
            broker.groups.put(op.group)
        case TopicRemoved():
            topic = broker.topics.by_id(op.topic_id)
            if topic is not None:
                broker.topics.remove(topic.name)
            broker.progress.forget_topic(op.topic_id)
            broker.lite.forget_topic(op.topic_id)
        case GroupRemoved():
            group = broker.groups.by_id(op.group_id)
            if group is not None:
                broker.groups.remove(group.name)
                broker.locks.forget_group(group.name)
            broker.progress.forget_group(op.group_id)
        case Unsubscribed():
            broker.progress.forget(op.group_id, op.topic_id)
        case LiteOpened():
            broker.lite.topics.apply(op, broker.now_ms())
        case LiteClosed():
            broker.lite.topics.apply(op, broker.now_ms())
            broker.progress.forget_queue(op.topic_id, op.queue_id)
        case HalfPut() | HalvesEnded():
            broker.transactions.table.apply(op)
        case StagingOp():
            broker.staging.apply(op)
        case DrainPut():
            broker.draining = op.on
        case BrokerKnown() | BrokerForgotten() | BrokerTopics():
            broker.cluster.known.brokers.apply(op)
        case Locked():
            broker.locks.restore(op.group, op.queue, op.client_id, Generation(op.epoch, op.counter))
        case KeyPut():
            broker.handle_key = op.key
            broker.topics.reserve(op.next_topic_id)
            broker.groups.reserve(op.next_group_id)
