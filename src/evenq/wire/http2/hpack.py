"""HPACK (RFC 7541): a `Decoder` with the tables, and stateless encoding for answers.

Answers use only the static table and literals, so their blocks are constants for all connections. A repeated block of
references is decoded once per state of the dynamic table. Without such a table, blocks that differ in a deadline share
their decoded part (`Pattern`).
Always true: after each decoded block the dynamic table equals the peer's, also if the list is too large to be kept;
all other input raises HpackFault; work and memory are bounded by the bytes of the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evenq.wire.http2 import huffman
from evenq.wire.http2.codes import HpackFault
from evenq.wire.http2.fields import Field, FieldKind, HeaderBlock, another, field

TABLE_BYTES = 4_096
"""Size of the dynamic table, bytes; the default of HTTP/2, which needs no SETTINGS."""
INTEGER_BYTES_MAX = 5
STRING_CACHE_MAX = 1_024
STRING_BYTES_CACHED = 256
BLOCK_CACHE_MAX = 64
BLOCK_BYTES_CACHED = 1_024
PATTERNS_MAX = 8  # patterns of one connection; the most recently used one is tried first
_STATIC_TEXT = """:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|\
:status 204|:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate|\
accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control|\
content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|\
cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|\
last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|\
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"""
STATIC_PAIRS = tuple(
    (name.encode(), value.encode()) for name, _, value in (text.partition(" ") for text in _STATIC_TEXT.split("|"))
)
"""RFC 7541, appendix A; the first has index 1."""
_STATIC = (None, *(field(name, value) for name, value in STATIC_PAIRS))
_STATIC_MAX = len(STATIC_PAIRS)
_STATIC_INDEX = {pair: index for index, pair in reversed(list(enumerate(STATIC_PAIRS, start=1)))}
_STATIC_NAME = {name: index for index, (name, _) in reversed(list(enumerate(STATIC_PAIRS, start=1)))}
_CONTENT_LENGTH = int(FieldKind.CONTENT_LENGTH)
_strings: dict[bytes, bytes] = {}
"""Decoded Huffman strings: most clients repeat the same few. One table for all connections."""
CHANGING = frozenset({b"grpc-timeout", b"x-mq-request-id"})
"""Names of fields whose values SDKs change with each call: a `grpc-timeout`, or metadata."""
_OTHERS = frozenset(map(int, (FieldKind.TIMEOUT, FieldKind.CONTENT_LENGTH, FieldKind.MALFORMED)))
_PSEUDO = frozenset(map(int, (FieldKind.METHOD, FieldKind.SCHEME, FieldKind.PATH, FieldKind.AUTHORITY)))
_LONG = 0x7F


class Decoder:
    """The decoding side of one connection."""

    def __init__(self, table_bytes_max: int = TABLE_BYTES) -> None:
        self.bytes_allowed = table_bytes_max
        """Largest table that the peer may choose, by our SETTINGS after their acknowledgement."""
        self._bytes_max = table_bytes_max
        self._bytes = 0
        self._dynamic: list[Field] = []  # newest last: index 62 is at -1
        self.knows_length = False  # True: a field `content-length` arrived, which requests of gRPC do not have
        self.changes = False
        """True: fields that change with each call (`CHANGING`) entered the table, so it is useless."""
        self._patterns: list[Pattern] = []
        self._spans: list[int] = []  # begin and end of the values of `CHANGING` fields in the current block
        self._blocks: dict[bytes, HeaderBlock] = {}
        """Blocks that did not change the table, since its last change."""

    @property
    def table_bytes(self) -> int:
        return self._bytes

    def repeated(self, block: bytes) -> HeaderBlock | None:
        """Returns the fields of a repeated block whose meaning is the same; None: call `decode`."""
        return self._blocks.get(block)

    def usual(self, block: bytes) -> HeaderBlock | None:
        """Returns the fields of a block that differs from a previous one by few values; None: call `decode`."""
        if self._bytes_max:
            return None
        patterns = self._patterns
        for pattern in patterns:
            values = pattern.values(block)
            if values is not None:
                break
        else:
            return None
        if pattern is not patterns[0]:
            patterns.remove(pattern)
            patterns.insert(0, pattern)
        common = pattern.common
        made = HeaderBlock(common.fields, common.size)
        for known, value in zip(pattern.fields, values, strict=True):
            new = another(known, _short_string(value))
            if new.kind != known.kind:  # it is malformed: `decode` reads it
                return None
            made.size += new.size
            made.changing.append(new)
        made.common = common
        return made

    def decode(self, block: bytes) -> HeaderBlock:
        """Returns the fields of a whole block. Raises HpackFault."""
        known = self._blocks.get(block) or self.usual(block)
        if known is not None:
            return known
        self._spans.clear()
        decoded = self._read(block)
        spans = self._spans
        if spans and self._bytes_max:
            self.changes = True
        elif spans and len(block) <= BLOCK_BYTES_CACHED:
            self._learn(block, decoded, spans)
        return decoded

    def _learn(self, block: bytes, decoded: HeaderBlock, spans: list[int]) -> None:
        fields = common_fields(decoded.fields)
        if fields is None:
            return
        changing = [one for one in decoded.fields if one.name in CHANGING]
        if len(changing) * 2 < len(spans):
            return
        parts = [block[begin:end] for begin, end in zip([0, *spans[1::2]], [*spans[::2], len(block)], strict=True)]
        common = HeaderBlock(fields, sum(one.size for one in fields))
        self._patterns.insert(0, Pattern(common, changing, parts))
        del self._patterns[PATTERNS_MAX:]

    def _read(self, block: bytes) -> HeaderBlock:
        dynamic, size = self._dynamic, 0
        fields: list[Field] = []
        append = fields.append
        position, end, may_resize, changed = 0, len(block), True, False
        try:
            while position < end:
                byte = block[position]
                if byte >= 0x80:
                    position += 1
                    index = byte & 0x7F
                    if index == 0x7F:
                        index, position = _read_integer(block, position, 0x7F)
                    # An index beyond the table, or the end of the block, raises IndexError; the `except` below makes
                    # it an HpackFault, so no bounds are checked here.
                    field = _STATIC[index] if index <= _STATIC_MAX else dynamic[_STATIC_MAX - index]
                    if field is None:
                        raise HpackFault("index 0 is not a field")
                elif byte >= 0x40:
                    field, position = self._read_literal(block, position, 0x3F)
                    if self._bytes_max:  # otherwise the table stays empty
                        self._insert(field)
                        changed = True
                elif byte >= 0x20:
                    if not may_resize:
                        raise HpackFault("the table's size changes within a block")
                    position, changed = self._resize(block, position), True
                    continue
                else:
                    field, position = self._read_literal(block, position, 0x0F)
                may_resize = False
                size += field[2]
                append(field)
        except IndexError:
            raise HpackFault("the block ends early, or names a field that is in no table") from None
        decoded = HeaderBlock(fields, size)
        # A block with a deadline differs each time: caching it would evict blocks that repeat.
        if not changed and not self._spans and end <= BLOCK_BYTES_CACHED:
            if len(self._blocks) >= BLOCK_CACHE_MAX:
                self._blocks.clear()
            self._blocks[block] = decoded
        return decoded

    def _read_literal(self, block: bytes, position: int, mask: int) -> tuple[Field, int]:
        index = block[position] & mask
        position += 1
        if index == mask:
            index, position = _read_integer(block, position, mask)
        if index:
            named = _STATIC[index] if index <= _STATIC_MAX else self._dynamic[_STATIC_MAX - index]
            assert named is not None
            begin = position
            value, position = _read_string(block, position)
            new = another(named, value)
        else:
            name, begin = _read_string(block, position)
            value, position = _read_string(block, begin)
            new = field(name, value)
        if new.kind == _CONTENT_LENGTH:
            self.knows_length = True
        if new.name in CHANGING:
            self._spans += (begin, position)
        return new, position

    def _insert(self, new: Field) -> None:
        self._blocks.clear()
        self._dynamic.append(new)
        self._bytes += new.size
        if self._bytes > self._bytes_max:
            self._evict()

    def _resize(self, block: bytes, position: int) -> int:
        bytes_max = block[position] & 0x1F
        position += 1
        if bytes_max == 0x1F:
            bytes_max, position = _read_integer(block, position, 0x1F)
        if bytes_max > self.bytes_allowed:
            raise HpackFault(f"a table of {bytes_max} bytes is more than the {self.bytes_allowed} of our SETTINGS")
        self._bytes_max = bytes_max
        self._blocks.clear()
        self._evict()
        return position

    def _evict(self) -> None:
        oldest = 0
        while self._bytes > self._bytes_max:
            self._bytes -= self._dynamic[oldest].size
            oldest += 1
        del self._dynamic[:oldest]


def _read_integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Reads the rest of an integer whose prefix is full; `position` is after the prefix."""
    value, shift = mask, 0
    for count in range(INTEGER_BYTES_MAX):
        byte = block[position + count]
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + count + 1
        shift += 7
    raise HpackFault(f"an integer has more than {INTEGER_BYTES_MAX} bytes")


def _read_string(block: bytes, position: int) -> tuple[bytes, int]:
    first = block[position]
    length = first & 0x7F
    position += 1
    if length == 0x7F:
        length, position = _read_integer(block, position, 0x7F)
    end = position + length
    data = block[position:end]
    if len(data) < length:
        raise HpackFault("a string is longer than its block")
    if first < 0x80:
        return data, end
    text = _strings.get(data)
    if text is None:
        text = huffman.decode(data)
        if length <= STRING_BYTES_CACHED:
            # Cleared, not evicted by age: peers choose the strings, and an LRU would slow each look-up.
            if len(_strings) >= STRING_CACHE_MAX:
                _strings.clear()
            _strings[data] = text
    return text, end


def _short_string(encoded: bytes) -> bytes:
    """Decodes a string of less than 127 bytes that is not expected to repeat."""
    return encoded[1:] if encoded[0] < 0x80 else huffman.decode(encoded[1:])


def integer(value: int, mask: int, flags: int) -> bytes:
    """Encodes `value` with a prefix of the bits of `mask`, beside `flags`."""
    if value < mask:
        return bytes((flags | value,))
    out, value = bytearray((flags | mask,)), value - mask
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def literal(name: bytes, value: bytes) -> bytes:
    """Encodes one field without state: a reference to the static table, or a literal that enters no table."""
    whole = _STATIC_INDEX.get((name, value))
    if whole is not None:
        return integer(whole, 0x7F, 0x80)
    index = _STATIC_NAME.get(name)
    head = integer(index, 0x0F, 0) if index is not None else b"\0" + integer(len(name), 0x7F, 0) + name
    return head + integer(len(value), 0x7F, 0) + value


def encode(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encodes a header block without state."""
    return b"".join(literal(name, value) for name, value in pairs)


class Pattern:
    """The constant bytes of header blocks that differ only in the deadline or the request's id: before, between and
    after these values.

    Without a dynamic table a block means the same whatever preceded it. A client that repeats calls of one method
    writes the same bytes around these two values.
    """

    __slots__ = ("_before", "_behind", "common", "fields")

    def __init__(self, common: HeaderBlock, fields: list[Field], parts: Sequence[bytes]) -> None:
        self.common = common  # all fields except those that change
        self.fields = fields  # the fields that change, with the values of the first block
        *self._before, self._behind = parts

    def values(self, block: bytes) -> list[bytes] | None:
        """Returns the values of the changing fields, each after its length byte; None: the block does not match."""
        at = 0
        values: list[bytes] = []
        for part in self._before:
            if not block.startswith(part, at):
                return None
            at += len(part)
            length = block[at] & 0x7F
            # 127 or more has further bytes of length; `decode` reads such a block.
            if length == _LONG:
                return None
            end = at + 1 + length
            values.append(block[at:end])
            at = end
        return values if block[at:] == self._behind else None


def common_fields(fields: Sequence[Field]) -> list[Field] | None:
    """Returns the fields that do not change; None if blocks like this one cannot be read by a pattern.

    Each changing field must occur once, and no pseudo-header may follow it: that would make the request malformed.
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
