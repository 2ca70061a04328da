"""Delayed messages that are due: each becomes an ordinary message of its topic, in the same append as the end of its
timer, so it is delivered once also across a crash (RD-13 to RD-18).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from evenq.store import Append, StoredTimer, TimerAppend
from evenq_broker.core.halves import HALF_MESSAGE
from evenq_broker.core.staged_rows import STAGED_ROWS

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["due"]

log = logging.getLogger(__name__)


def due(broker: Broker, timers: list[StoredTimer]) -> list[Append | TimerAppend | None]:
    """What due timers become: a delayed message its message, a half message its next check (`loops.transactions`);
    None for one whose topic was deleted meanwhile.
    """
    return [_due(broker, timer) for timer in timers]


def _due(broker: Broker, timer: StoredTimer) -> Append | TimerAppend | None:
    if timer.kind == HALF_MESSAGE:
        return broker.transactions.due(timer)
    return broker.staging.due(timer) if timer.kind == STAGED_ROWS else _message(broker, timer)


def _message(broker: Broker, timer: StoredTimer) -> Append | None:
    topic = broker.topics.by_id(timer.topic_id)
    if topic is None:
        log.info("a delayed message has no topic any more", extra={"topic_id": timer.topic_id, "due_ms": timer.due_ms})
        return None
    broker.delayed_retries.due(timer.topic_id, timer.log_offset)
    queue_id = timer.queue_id % topic.write_queues
    return Append(timer.topic_id, queue_id, timer.tag_hash, timer.born_ms, timer.head, timer.system)
