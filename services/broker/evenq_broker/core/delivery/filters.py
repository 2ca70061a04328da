"""Filter of one receive or pull, in two parts: tag hashes for the store's first look at a consume queue entry, and an
exact test of the stored message.

A tag filter has both: tags may share a hash, so the tag itself is compared too. An SQL filter has only the test; it
decodes nothing but the user properties, with the reader that is passed in (`loops.wire.stored_messages`). Filters are
parsed once and cached. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import lru_cache

from evenq.store import ReadResult, StoredMessage
from evenq_broker.core.delivery.properties import tag_of
from evenq_broker.core.delivery.tags import tag_hash, tag_prefixes, wanted_tags

TAGS = "TAGS"
"""Name of the tag in SQL expressions; a user property of this name cannot be used."""
LOOK_AHEAD = 256
"""Messages that one turn tests exactly before other callers get theirs; about 1 ms."""
LOOK_AHEAD_MAX = 1024  # the same for a caller that requests more messages
TURNS_MIN = 64
"""Turns even of a caller that does not wait: what it gets as an empty answer was looked at this far."""


UserProperties = Callable[[bytes], MutableMapping[str, str]]
"""Reads all user properties in a stored head, into a mapping of the caller's own."""


class MessageFilter:
    """`tag_hashes` None: no first look. `matches` None: every message. Both None is `EVERYTHING`."""

    __slots__ = ("matches", "tag_hashes")

    def __init__(self, tag_hashes: frozenset[int] | None, matches: Callable[[StoredMessage], bool] | None) -> None:
        self.tag_hashes = tag_hashes
        self.matches = matches

    def look(self, count: int) -> int:
        """Returns how many messages to read from the store, to find up to `count`."""
        if self.matches is None or self.tag_hashes is not None:
            return count
        return min(max(count, LOOK_AHEAD), LOOK_AHEAD_MAX)

    def sift(self, read: ReadResult, count: int) -> ReadResult:
        """Returns the first `count` messages of a read that match; `next_offset` is behind what was looked at."""
        matches = self.matches
        if matches is None:
            return read
        kept: list[StoredMessage] = []
        following = read.next_offset
        messages = read.messages
        for message in messages:
            if matches(message):
                kept.append(message)
                if len(kept) >= count:
                    if message is not messages[-1]:
                        following = message.queue_offset + 1
                    break
        return ReadResult(kept, following, read.min_offset, read.max_offset)

    def leading(self, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Returns the messages before the first one that does not match: nothing is passed over."""
        matches, hashes = self.matches, self.tag_hashes
        for at, message in enumerate(messages):
            if (hashes is not None and message.tag_hash not in hashes) or (
                matches is not None and not matches(message)
            ):
                return messages[:at]
        return messages


EVERYTHING = MessageFilter(None, None)


def message_filter(expression: str, *, is_sql: bool, user_properties: UserProperties) -> MessageFilter:
    """Returns the filter of a request, from a cache. Raises IllegalFilterExpression (wire contract 5.4)."""
    return _tag_filter(expression) if not is_sql else _sql_filter(expression, user_properties)


@lru_cache(maxsize=1024)
def _tag_filter(expression: str) -> MessageFilter:
    tags = wanted_tags(expression)
    if tags is None:
        return EVERYTHING
    prefixes = tag_prefixes(tags)
    # The tag is the first field of the stored system properties (`core.state.frames`), so no message is decoded for it.
    return MessageFilter(frozenset(map(tag_hash, tags)), lambda message: message.system.startswith(prefixes))


@lru_cache(maxsize=256)
def _sql_filter(expression: str, user_properties: UserProperties) -> MessageFilter:
    from evenq.filters import sql_filter  # not above: few brokers need the parser, and it takes time to load

    parsed = sql_filter(expression)
    evaluate = parsed.evaluate
    if TAGS not in parsed.names:
        return MessageFilter(None, lambda message: evaluate(user_properties(message.head)) is True)

    def matches(message: StoredMessage) -> bool:
        properties = user_properties(message.head)
        tag = tag_of(message.system)
        if tag:
            properties[TAGS] = tag
        elif TAGS in properties:
            del properties[TAGS]
        return evaluate(properties) is True

    return MessageFilter(None, matches)
