"""How one member reads the queues that are its own; made by `loops.membership`, for `loops.ownership` and its rooms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.options import PushOptions
from evenq.model import FilterExpression, StartFrom

__all__ = ["Finish", "ReadPlan"]

Finish = Callable[[ProcessQueue], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """How a member reads what is its own."""

    group: str
    options: PushOptions
    subscriptions: dict[str, FilterExpression]
    """Its user's to change."""
    clustering: bool
    """True: queues have one owner, who holds their lock."""
    start_policy: Callable[[], StartFrom]
    start_timestamp_ms: int
    ordered: bool | None
    """None: the type of each topic decides."""
    attempts_max: Callable[[], int] | None
    """Deliveries that a message may have; None: its user does not say what fails, and nothing is counted."""
    auto_commit: bool
    """False: progress moves only where the user commits."""
    any_copy: bool = False
    """True: committed messages are taken from followers, too; only without owners of queues."""
    finish: Finish | None = None
    """Awaited when a queue that is still ours leaves, before its progress is stored and its lock let go: for a user
    that works on it elsewhere. It sets no bound; the broker does (`revoke_ms`)."""
