"""Headers and properties as UTF-8 bytes: name, byte 1, value, and byte 2 between two pairs (LQ-17, XO-10).

The producer encodes them in its own thread, before any lock (LQ-73). Each has at most 32,767 bytes, because the record
has a signed 16-bit length for it (LQ-18). More is refused, never cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evenq.errors import IllegalPropertyKey, PropertiesTooLarge

PAIRS_BYTES_MAX: Final = 32_767
NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"


def encode(pairs: Mapping[str, str] | None, what: str) -> bytes:
    """Returns the bytes of `pairs`. Raises IllegalPropertyKey for an empty name, a separator in a name or value, or
    text that UTF-8 cannot encode; PropertiesTooLarge above 32,767 bytes (LQ-18).
    """
    if not pairs:
        return b""
    text = PAIR_END.join([name + NAME_END + value for name, value in pairs.items()])
    if "" in pairs or text.count(NAME_END) != len(pairs) or text.count(PAIR_END) != len(pairs) - 1:
        raise IllegalPropertyKey(
            f"{what} need names of at least one character, and neither byte 1 nor byte 2 in a name or value; "
            f"the names are {sorted(pairs)!r:.200}: encode such a value before sending it"
        )
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise IllegalPropertyKey(f"{what} hold text that UTF-8 cannot encode ({error}): send it in the body") from error
    if len(data) > PAIRS_BYTES_MAX:
        raise PropertiesTooLarge(
            f"the {what} take {len(data)} bytes, the limit is {PAIRS_BYTES_MAX}: move large values to the body"
        )
    return data


def decode(data: bytes) -> dict[str, str]:
    """Returns the pairs in their order."""
    if not data:
        return {}
    pairs: dict[str, str] = {}
    for pair in data.decode().split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        pairs[name] = value
    return pairs
