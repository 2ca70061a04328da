"""Filters of subscriptions, evaluated by the client as brokers do: for messages that no broker has filtered.

Called by readers of tables.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from evenq.errors import Unsupported
from evenq.model import FilterExpression, FilterType, ReceivedMessage
from evenq.runtime.extras import missing

TAGS = "TAGS"
"""Name of the tag in SQL expressions; a user property of this name cannot be used."""


@lru_cache(maxsize=256)
def filter_of(expression: FilterExpression) -> Callable[[ReceivedMessage], bool]:
    """Returns the test of a filter, as brokers evaluate it. Raises IllegalFilterExpression, Unsupported without the
    parser of SQL filters.
    """
    if expression.type is FilterType.TAG:
        tags = expression.tags
        return lambda message: tags is None or message.tag in tags
    try:
        from evenq.filters import sql_filter
    except ModuleNotFoundError as error:
        raise Unsupported(missing("a SQL filter over a table", error.name or "lark")) from error
    evaluate = sql_filter(expression.expression).evaluate

    def passes(message: ReceivedMessage) -> bool:
        properties = dict(message.properties)
        properties.pop(TAGS, None)
        if message.tag:
            properties[TAGS] = message.tag
        return evaluate(properties) is True

    return passes
