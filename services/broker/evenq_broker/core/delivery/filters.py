"""What one receive or pull wants of a queue, in two parts: numbers for the store's first look at a consume queue entry,
and an exact test of the stored message.

A tag filter has both: the number of a tag is a hash, so the tag itself is compared behind it. An SQL filter has only
the test; it decodes the user properties and nothing else, with the reader that is handed in
(`loops.wire.stored_messages`). Filters are parsed once and kept. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import lru_cache

from evenq.store import ReadResult, StoredMessage
from evenq_broker.core.delivery.properties import tag_of
from evenq_broker.core.delivery.tags import tag_hash, tag_prefixes, wanted_tags

__all__ = ["EVERYTHING", "LOOK_AHEAD", "LOOK_AHEAD_MAX", "TURNS_MIN", "MessageFilter", "message_filter"]

TAGS = "TAGS"
"""What an SQL expression calls the tag; a user property of that name cannot be asked for."""
LOOK_AHEAD = 256
"""Messages that one turn holds against an exact test before others have theirs; about 1 ms."""
LOOK_AHEAD_MAX = 1024
"""The same for who asks for more messages at once."""
TURNS_MIN = 64
"""Turns that even a caller has who does not want to wait: what it is answered to be empty was looked at this far."""


UserProperties = Callable[[bytes], MutableMapping[str, str]]
"""Reads all user properties in a stored head, for the caller alone."""


class MessageFilter:
    """`tag_hashes` None: no first look. `matches` None: every message. Both None is `EVERYTHING`."""

    __slots__ = ("matches", "tag_hashes")

    def __init__(self, tag_hashes: frozenset[int] | None, matches: Callable[[StoredMessage], bool] | None) -> None:
        self.tag_hashes = tag_hashes
        self.matches = matches

    def look(self, count: int) -> int:
        """How many messages to ask the store for, to find up to `count`."""
        if self.matches is None or self.tag_hashes is not None:
            return count
        return min(max(count, LOOK_AHEAD), LOOK_AHEAD_MAX)

    def sift(self, read: ReadResult, count: int) -> ReadResult:
        """The first `count` messages of a read that are wanted; `next_offset` is behind what was looked at."""
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
        """The first ones, up to the first that is not wanted: nothing is passed over."""
        matches, hashes = self.matches, self.tag_hashes
        for at, message in enumerate(messages):
            if (hashes is not None and message.tag_hash not in hashes) or (
                matches is not None and not matches(message)
            ):
                return messages[:at]
        return messages


EVERYTHING = MessageFilter(None, None)


def message_filter(expression: str, *, is_sql: bool, user_properties: UserProperties) -> MessageFilter:
    """The filter of a request, from a cache. Raises IllegalFilterExpression (wire contract 5.4)."""
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
