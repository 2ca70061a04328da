"""Numbers of tags in consume queue entries (CL-9), and the tags of a tag expression."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from evenq.errors import IllegalFilterExpression
from evenq.model import FilterExpression
from evenq_broker.core.state.frames import text_field

TAGS_MAX = 256  # alternatives in one expression
EXPRESSION_LENGTH_MAX = 16_384
"""A tag may have nearly this many characters (`properties_bytes_max`); SQL filters are shorter."""


@lru_cache(maxsize=4096)
def tag_hash(tag: str) -> int:
    """Returns a signed 64-bit hash, 0 for no tag. Filters compare the tag itself as well (`core.delivery.filters`)."""
    if not tag:
        return 0
    return int.from_bytes(blake2b(tag.encode(), digest_size=8).digest(), "big", signed=True) or 1


def wanted_tags(expression: str) -> frozenset[str] | None:
    """Returns the tags of `a || b`; None: every message. Raises IllegalFilterExpression (wire contract 5.4)."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise IllegalFilterExpression(
            f"the tag expression has {len(expression)} characters, the limit is {EXPRESSION_LENGTH_MAX}"
        )
    tags = FilterExpression(expression).tags
    if tags is None:
        return None
    if len(tags) > TAGS_MAX:
        raise IllegalFilterExpression(f"the tag expression names {len(tags)} tags, the limit is {TAGS_MAX}")
    for tag in sorted(tags):
        if "|" in tag or any(ord(character) < 32 for character in tag):
            raise IllegalFilterExpression(
                f"the tag {tag!r} holds '|' or a control character; join tags with ' || ', for example 'a || b'"
            )
    return tags


def tag_prefixes(tags: Iterable[str]) -> tuple[bytes, ...]:
    """Returns how the stored system properties of a message with one of these tags begin: `tag` is field 1, and fields
    are stored in ascending order. Tags that share a hash have different prefixes.
    """
    return tuple(text_field(1, tag) for tag in sorted(tags))
