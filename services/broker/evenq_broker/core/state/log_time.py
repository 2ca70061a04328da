"""Deadlines as the log keeps them: by the log's time, which is all that the next start knows of this process's.

A broker counts invisible times by a time of its own, which goes on evenly from where the log ended when it was opened.
The log's records carry the machine's time, but never an earlier one than the record before. Where the machine's clock
is behind the log, or is set while the broker runs, the two part, and a start that goes by the log would wait for as
long as they were apart. So a deadline is written as the log's time of now and what is left. Used by
`loops.state.journal` and for snapshots by `loops.state.ledger`.
"""

from __future__ import annotations

from dataclasses import replace

from evenq_broker.core.state.records import Delivered, Invisible, Op

__all__ = ["WITH_DEADLINE", "in_log_time"]

WITH_DEADLINE = frozenset({Delivered, Invisible})
"""Operations that have one."""


def in_log_time(op: Op, ahead_ms: int) -> Op:
    """The operation for the log of a broker whose time is `ahead_ms` ahead of the log's; negative: behind it."""
    if ahead_ms and isinstance(op, Delivered | Invisible) and op.deadline_ms > 0:  # 0: ready, or while the client lives
        return replace(op, deadline_ms=max(1, op.deadline_ms - ahead_ms))
    return op
