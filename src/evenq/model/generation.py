"""The order of decisions about who reads which queue: what fencing compares (OC-18, XO-7)."""

from dataclasses import dataclass

__all__ = ["NO_GENERATION", "Generation"]


@dataclass(frozen=True, slots=True, order=True)
class Generation:
    """Grows with each decision: first by the leader that decided, then by its counter. (0, 0) is none."""

    epoch: int = 0
    """Ms since the epoch at which the leader began, or more, if a broker knew a bigger one already."""
    counter: int = 0


NO_GENERATION = Generation()
"""Stands for "none", on the wire, too."""
