"""Whether the members of a group want the same of a topic (RG-8), and who wants what if not.

Different filters in one group are a user's mistake: the group has one progress, so what the filter of one receive
leaves out is passed over for all. Each receive is served by its own all the same (wire contract 5.4). Used by
`loops.groups.subscriptions`, metrics and the admin. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from evenq.model import FilterExpression, FilterType, MessageModel
from evenq_broker.core.groups.members import Member

__all__ = ["Wanted", "different_filters", "wanted_of"]

Wanted = tuple[str, str, FilterExpression]
"""Client id, topic, filter."""


def wanted_of(members: Iterable[Member]) -> list[Wanted]:
    """What the members that share the group's progress have sent; broadcasting ones have a progress of their own."""
    return [
        (member.client_id, subscription.topic, subscription.filter)
        for member in members
        if member.model is MessageModel.CLUSTERING
        for subscription in member.subscriptions
    ]


def different_filters(wanted: Iterable[Wanted]) -> dict[str, dict[FilterExpression, list[str]]]:
    """Topic -> filter -> client ids, all ascending, of the topics that are filtered in two or more ways. Tags in
    another order are no difference.
    """
    topics: dict[str, dict[FilterExpression, list[str]]] = {}
    for client_id, topic, expression in wanted:
        topics.setdefault(topic, {}).setdefault(_plain(expression), []).append(client_id)
    return {
        topic: {one: sorted(topics[topic][one]) for one in sorted(topics[topic], key=lambda one: one.expression)}
        for topic in sorted(topics)
        if len(topics[topic]) > 1
    }


@lru_cache(maxsize=4096)
def _plain(expression: FilterExpression) -> FilterExpression:
    if expression.type is FilterType.SQL:
        return FilterExpression(expression.expression.strip(), FilterType.SQL)
    tags = expression.tags
    return FilterExpression("*" if tags is None else " || ".join(sorted(tags)))
