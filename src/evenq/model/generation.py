"""The order of assignment decisions, which fencing compares (OC-18, XO-7)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Generation:
    """Number of a decision, ordered by the leader's epoch, then by its counter."""

    epoch: int = 0
    """Ms since the epoch at which the leader began, or more if a broker knew a larger epoch already."""
    counter: int = 0


NO_GENERATION = Generation()
"""No decision, on the wire too."""
