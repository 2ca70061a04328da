"""The way in which one member reads its queues; made by `loops.membership` for `loops.ownership` and its parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.reading.table_reads import TableReads
from evenq.client.options import PushOptions
from evenq.model import FilterExpression, StartFrom
from evenq.model.names import RETRY_PREFIX

Finish = Callable[[ProcessQueue], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    group: str
    options: PushOptions
    subscriptions: dict[str, FilterExpression]
    """The user may change it at any time."""
    clustering: bool
    """True: each queue has one owner, which holds its lock."""
    start_policy: Callable[[], StartFrom]
    start_timestamp_ms: int
    ordered: bool | None
    """None: the type of each topic decides."""
    attempts_max: Callable[[], int] | None
    """Deliveries that a message may have; None: the user reports no failures, and nothing is counted."""
    auto_commit: bool
    """False: only the user's commits move progress."""
    any_copy: bool = False
    """True: committed messages are also read from followers; only for queues without owners."""
    finish: Finish | None = None
    """Awaited when an owned queue leaves, before its progress is stored and its lock released: for a user that
    processes it elsewhere. It sets no limit; the broker does (`revoke_ms`).
    """
    table: TableReads | None = None
    """Has the messages that are older than the log; None: reading continues at the start of the log."""

    def table_of(self, topic: str) -> TableReads | None:
        """Returns the table for the messages of a topic; None for a retry topic, which is in no table."""
        return None if topic.startswith(RETRY_PREFIX) else self.table
