"""Copies of a version before, as in a rolling upgrade: what they do not say yet.

Four of five seeds have only such copies, so they play what they played before there was more to say.
"""

from __future__ import annotations

from typing import Any

from evenq_broker.core.replication.following import Follower
from evenq_broker.core.replication.messages import EpochsRequest

from replicated_sim.scenario import GroupPlan


def _without_epochs(self: Follower) -> EpochsRequest:
    return EpochsRequest(self.request)


def before(plan: GroupPlan) -> list[tuple[Any, str, Any]]:
    """What to replace (owner, name, value)."""
    return [] if plan.compares else [(Follower, "question", _without_epochs)]
