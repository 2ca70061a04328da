"""Subscriptions of consumers and their filters."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class FilterType(StrEnum):
    """TAG: `a || b`, `*` for all. SQL: a SQL92 subset over properties."""

    TAG = "TAG"
    SQL = "SQL"


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Filter of the messages of a topic."""

    expression: str = "*"
    type: FilterType = FilterType.TAG

    @classmethod
    def sql(cls, expression: str) -> Self:
        """Returns a filter over properties, as in `region = 'eu' AND amount > 10`; `TAGS` is the tag."""
        return cls(expression, FilterType.SQL)

    @property
    def tags(self) -> frozenset[str] | None:
        """Tags of the filter; None: every message."""
        tags = frozenset(tag for part in self.expression.split("||") if (tag := part.strip()))
        return None if not tags or "*" in tags else tags


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a consumer with its filter. All members of a group must have the same subscriptions (RG-8)."""

    topic: str
    filter: FilterExpression = FilterExpression()
    version: int = 0
    """Ms since the epoch of the last change of assignment (RG-6)."""
