"""Results as YAML: blocks of mappings and lists, and scalars in the form of JSON.

JSON is a subset of YAML 1.2, so every text is a quoted JSON string and needs none of YAML's rules for plain texts
(`no`, `1e3` and `2026-01-01` stay texts). Only the nesting is YAML's. This is all that results need: no anchors, tags
or multi-line texts. Called by `output`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_PLAIN_KEY = re.compile(r"[a-z][a-z0-9_]{2,}\Z")
"""Keys that need no quotes: YAML 1.1 reads `y`, `n`, `no` and `on` as booleans, which are shorter."""
_RESERVED = frozenset({"true", "false", "null", "yes", "off"})


def yaml_text(value: Any) -> str:
    """Returns a value of dicts, lists and scalars as YAML, without a line break at its end; always printable."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _entry(f"{_key(str(key))}:", inner, nested="  ")
    elif isinstance(value, list | tuple) and value:
        for inner in value:
            lines = list(_lines(inner))
            yield f"- {lines[0]}"
            yield from (f"  {line}" for line in lines[1:])
    else:
        yield _scalar(value)


def _entry(head: str, value: Any, *, nested: str) -> Iterator[str]:
    if isinstance(value, dict | list | tuple) and value:
        yield head
        yield from (f"{nested}{line}" for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _key(text: str) -> str:
    return text if _PLAIN_KEY.match(text) and text not in _RESERVED else _scalar(text)


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        text = json.dumps(value)
        # YAML 1.1 reads `1e-07` as a text: its floats have a point.
        return text if "." in text or "e" not in text else text.replace("e", ".0e", 1)
    text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return text if text.isprintable() else "".join(sign if sign.isprintable() else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    number = ord(sign)
    return f"\\U{number:08x}" if number > 0xFFFF else f"\\u{number:04x}"
