"""Pending timers: arbitrary due times, millions of them in bounded memory, each fired exactly once in the log.

A timer is a frame of the commit log (kind 4), and its log offset is its id; an end (kind 5) removes it. This package is
derived from those frames: `PendingTimers` decides (time and disk come from outside), `runs` and `manifest` are the
files, `TimerKeeper` runs disk jobs, `TimerService` fires.
"""

from evenq.store.timers.keeper import TimerKeeper, TimerStats
from evenq.store.timers.pending import PendingTimers
from evenq.store.timers.service import DELAYED_MESSAGE, Decision, OnDue, TimerService, deliver

__all__ = [
    "DELAYED_MESSAGE",
    "Decision",
    "OnDue",
    "PendingTimers",
    "TimerKeeper",
    "TimerService",
    "TimerStats",
    "deliver",
]
