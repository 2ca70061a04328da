"""When a standing decision is looked at again for balance alone, and when that is worth a move. Pure.

A budget of moves spreads one big change over several decisions, one each `AGAIN_MS`, until nothing is left to do. Lags
change all the time, and following each change would move queues for ever; so lags alone are looked at once in
`LAG_PERIOD_MS` at most, only where one member has much more to do than the average, and what is found must be much
better than what stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenq.model import MessageQueue

__all__ = ["AGAIN_MS", "LAG_PERIOD_MS", "imbalance", "lag_weights", "worth_looking", "worth_moving"]

AGAIN_MS = 1_000
LAG_PERIOD_MS = 10_000
LAG_UNIT = 1_000
"""This number of waiting messages makes a queue count once more: groups that keep up with small lags stay as they are.
"""
IMBALANCE_MAX = 1.25
"""A member may have this many times the average load before lags alone move anything."""
GAIN_MIN = 0.1
"""A division made for lags alone must lower the imbalance above 1 by this share."""


def lag_weights(queues: Sequence[MessageQueue], lags: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
    """How much work each queue is: 1 and one more for each `LAG_UNIT` messages."""
    return {queue: 1 + lags.get(queue, 0) / LAG_UNIT for queue in queues}


def imbalance(
    shares: Mapping[str, Sequence[MessageQueue]], ids: Sequence[str], weights: Mapping[MessageQueue, float]
) -> float:
    """Load of the busiest of these members over the average; 1: all equal."""
    loads = [sum(weights.get(queue, 1.0) for queue in shares.get(client_id, ())) for client_id in ids]
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def worth_looking(now: float) -> bool:
    """True if lags are so uneven that a better division should be looked for."""
    return now > IMBALANCE_MAX


def worth_moving(now: float, then: float) -> bool:
    """True if a division made for lags alone is so much better that its moves pay."""
    return now > IMBALANCE_MAX and now - then > (now - 1) * GAIN_MIN
