"""The way in which one member reads its queues; made by `loops.membership` for `loops.ownership` and its parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.options import PushOptions
from evenq.model import FilterExpression, StartFrom

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
