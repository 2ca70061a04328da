"""Rules for a new decision for the sake of balance alone: when to look, and when it is worth its moves. Pure.

A budget of moves spreads one large change over several decisions, one per `AGAIN_MS`, until none is left. Lags change
all the time, and following each change would move queues forever. So lags alone lead to a look at most once per
`LAG_PERIOD_MS`, only where one member has much more load than the average, and to moves only if they gain enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenq.model import MessageQueue

AGAIN_MS = 1_000
LAG_PERIOD_MS = 10_000
LAG_UNIT = 1_000
"""Messages of lag that weigh as much as one queue: groups with small lags stay as they are."""
IMBALANCE_MAX = 1.25
"""Load of a member over the average up to which lags alone move nothing."""
GAIN_MIN = 0.1
"""A division made for lags alone must lower the imbalance above 1 by this share."""


def lag_weights(queues: Sequence[MessageQueue], lags: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
    """Returns the work of each queue: 1, and 1 more per `LAG_UNIT` messages."""
    return {queue: 1 + lags.get(queue, 0) / LAG_UNIT for queue in queues}


def imbalance(
    shares: Mapping[str, Sequence[MessageQueue]], ids: Sequence[str], weights: Mapping[MessageQueue, float]
) -> float:
    """Returns the load of the busiest of these members over the average; 1: all equal."""
    loads = [sum(weights.get(queue, 1.0) for queue in shares.get(client_id, ())) for client_id in ids]
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def worth_looking(now: float) -> bool:
    """True if lags are uneven enough to compute another division."""
    return now > IMBALANCE_MAX


def worth_moving(now: float, then: float) -> bool:
    """True if a division for lags alone gains enough for its moves."""
    return now > IMBALANCE_MAX and now - then > (now - 1) * GAIN_MIN
