"""Deadlines in the log's time, which is all that the next start knows of this process's time.

A broker counts invisible times by its own time, which runs evenly from the end of the log at its opening. The log's
records carry the machine's time, but never an earlier one than the record before. If the machine's clock is behind the
log, or is set while the broker runs, the two differ. A start that uses the log would then wait for the difference. So a
deadline is written as the log's present time plus what is left. Used by `loops.state.journal`, and for snapshots by
`loops.state.ledger`.
"""

from __future__ import annotations

from dataclasses import replace

from evenq_broker.core.state.records import Delivered, Invisible, Op

WITH_DEADLINE = frozenset({Delivered, Invisible})  # operations with a deadline


def in_log_time(op: Op, ahead_ms: int) -> Op:
    """Returns the operation for a log of which the broker's time is `ahead_ms` ahead; negative: behind it."""
    if ahead_ms and isinstance(op, Delivered | Invisible) and op.deadline_ms > 0:  # 0: ready, or while the client lives
        return replace(op, deadline_ms=max(1, op.deadline_ms - ahead_ms))
    return op
