"""Differences between the subscriptions of a group's members (RG-8).

Different filters in one group are a user's mistake. The group has one progress, so messages that the filter of one
receive excludes are passed over for all. Each receive still uses its own filter (wire contract 5.4). Used by
`loops.groups.sessions`, metrics and the admin. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from evenq.model import FilterExpression, FilterType, MessageModel
from evenq_broker.core.groups.members import Member

Wanted = tuple[str, str, FilterExpression]  # client id, topic, filter


def wanted_of(members: Iterable[Member]) -> list[Wanted]:
    """Returns the subscriptions of members that share the group's progress; broadcasting ones have their own."""
    return [
        (member.client_id, subscription.topic, subscription.filter)
        for member in members
        if member.model is MessageModel.CLUSTERING
        for subscription in member.subscriptions
    ]


def different_filters(wanted: Iterable[Wanted]) -> dict[str, dict[FilterExpression, list[str]]]:
    """Returns topic -> filter -> client ids, ascending, of topics with several filters; order of tags is ignored."""
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
