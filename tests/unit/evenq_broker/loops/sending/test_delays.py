"""What due timers become."""

from __future__ import annotations

from typing import Any

from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.sending.validation import DELAYED_MESSAGE
from evenq_broker.core.staging.rows import STAGED_ROWS
from evenq_broker.core.transactions.half_messages import HALF_MESSAGE
from evenq_broker.loops.sending.delays import due

from evenq.store import Append, StoredTimer


class Asked:
    """Transactions or staged rows: which timers were theirs."""

    def __init__(self) -> None:
        self.timers: list[StoredTimer] = []

    def due(self, timer: StoredTimer) -> None:
        self.timers.append(timer)


def timer(topic_id: int, kind: int = DELAYED_MESSAGE, *, queue_id: int = 0) -> StoredTimer:
    return StoredTimer(topic_id, queue_id, 70, 900, 1_000, 42, 2_000, kind, b"head", b"system")


async def test_a_delayed_message_is_itself_in_a_queue_that_the_topic_has(stage: Any) -> None:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=2))
    parts: Any = {"transactions": Asked(), "staging": Asked(), "delayed_retries": DelayedRetries()}
    [made] = due(broker.catalog, [timer(topic.topic_id, queue_id=5)], **parts)
    assert isinstance(made, Append)
    assert (made.topic_id, made.queue_id, made.tag_hash, made.born_ms) == (topic.topic_id, 1, 42, 900)
    assert (made.head, made.system) == (b"head", b"system")


async def test_each_kind_goes_to_its_part_and_a_deleted_topic_takes_its_messages_along(stage: Any) -> None:
    broker = await stage.broker()
    transactions, staging = Asked(), Asked()
    half, rows, orphan = timer(1, HALF_MESSAGE), timer(1, STAGED_ROWS), timer(12_345)
    parts: Any = {"transactions": transactions, "staging": staging, "delayed_retries": DelayedRetries()}
    assert due(broker.catalog, [half, rows, orphan], **parts) == [None, None, None]
    assert (transactions.timers, staging.timers) == ([half], [rows])
