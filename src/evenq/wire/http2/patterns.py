"""Header blocks that differ from one before by the deadline or the request's id alone: what they share is read once.

Where a decoder has no dynamic table, a block means the same whatever came before it, and a client that makes calls of
one method writes the same bytes around those two values again and again. A `Pattern` is those bytes.
Used by `evenq.wire.http2.hpack.Decoder`; pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenq.wire.http2.fields import Field, FieldKind, HeaderBlock

__all__ = ["CHANGING", "Pattern", "common_fields"]

CHANGING = frozenset({b"grpc-timeout", b"x-mq-request-id"})
"""Names of fields whose values SDKs change with each call. Such a field is a `grpc-timeout` or metadata."""
_OTHERS = frozenset(map(int, (FieldKind.TIMEOUT, FieldKind.CONTENT_LENGTH, FieldKind.MALFORMED)))
_PSEUDO = frozenset(map(int, (FieldKind.METHOD, FieldKind.SCHEME, FieldKind.PATH, FieldKind.AUTHORITY)))
_LONG = 0x7F


class Pattern:
    """Bytes before, between and behind values."""

    __slots__ = ("_before", "_behind", "common", "fields")

    def __init__(self, common: HeaderBlock, fields: list[Field], parts: Sequence[bytes]) -> None:
        self.common = common
        """All but the fields that change."""
        self.fields = fields
        """Those, with the values that they had."""
        *self._before, self._behind = parts

    def values(self, block: bytes) -> list[bytes] | None:
        """The values of the fields that change, each with its length in front of it; None: it is another block."""
        at = 0
        values: list[bytes] = []
        for part in self._before:
            if not block.startswith(part, at):
                return None
            at += len(part)
            length = block[at] & 0x7F
            # 127 or more has further bytes of length; such a block is for `decode`.
            if length == _LONG:
                return None
            end = at + 1 + length
            values.append(block[at:end])
            at = end
        return values if block[at:] == self._behind else None


def common_fields(fields: Sequence[Field]) -> list[Field] | None:
    """The fields of a block without those that change, if a block with others of them can be read so: each is there
    once, and no pseudo-header stands behind them, because that would make the request malformed.
    """
    common = [one for one in fields if one.name not in CHANGING]
    names = [one.name for one in fields if one.name in CHANGING]
    first = next((at for at, one in enumerate(fields) if one.name in CHANGING), len(fields))
    if (
        len(set(names)) < len(names)
        or any(one.kind in _OTHERS for one in common)
        or any(one.kind == FieldKind.MALFORMED for one in fields)
        or any(one.kind in _PSEUDO for one in fields[first:])
    ):
        return None
    return common
