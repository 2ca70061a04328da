"""Bodies of messages as a reader sees them: text, indented JSON, a hex dump. Protobuf is in `evenq.wire.described`.

A body comes from a stranger and may be 4 MiB of anything. So a page loads and shows its first `SHOWN_BYTES` only, and
says how much it hides. JSON is checked as a whole and is indented as it was written: numbers keep their digits and
names that occur twice are shown twice.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

SHOWN_BYTES = 64 << 10
CHECKED_BYTES_MAX = 1 << 20
"""Largest body that is loaded whole, to check and show it as JSON."""
LINE_BYTES = 16
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class WithBody(Protocol):
    """A message, or a schedule."""

    @property
    def body(self) -> bytes: ...
    @property
    def body_bytes(self) -> int: ...


class BodyForm(StrEnum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBody:
    """The part of a body that a page shows."""

    form: BodyForm
    text: str
    hidden_bytes: int
    """Bytes of the body that are not shown."""
    note: str = ""
    """Why the body is not shown in the requested form."""


def shown_body(message: WithBody, form: str) -> ShownBody:
    """Returns the body in a form; one that does not fit the body is replaced, with a note. Unknown: the best one."""
    text, size = _text(message), message.body_bytes
    note = ""
    if form == BodyForm.JSON or (form not in set(BodyForm) and text is not None and text.lstrip()[:1] in {"{", "["}):
        note = _json_problem(message)
        if not note:
            shown, read = _indented(message.body.decode(), SHOWN_BYTES)
            return ShownBody(form=BodyForm.JSON, text=shown, hidden_bytes=size - read)
        note = note if form == BodyForm.JSON else ""
    cut = message.body[:SHOWN_BYTES]
    if form == BodyForm.HEX or (text is None and form != BodyForm.TEXT):
        return ShownBody(form=BodyForm.HEX, text=_dump(cut), hidden_bytes=size - len(cut), note=note)
    if text is None:
        note = "The body is not UTF-8; bytes that are not valid are shown as escapes."
        text = cut.decode(errors="backslashreplace")
    return ShownBody(form=BodyForm.TEXT, text=text, hidden_bytes=size - len(cut), note=note)


def is_whole_text(message: WithBody) -> bool:
    """True if the body is complete and UTF-8."""
    return len(message.body) == message.body_bytes and _text(message, len(message.body)) is not None


def _text(message: WithBody, bytes_max: int = SHOWN_BYTES) -> str | None:
    """Returns the first part of a UTF-8 body; a character that is cut at the end is left out. None: not UTF-8."""
    cut = message.body[:bytes_max]
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(cut, final=len(cut) == message.body_bytes)
    except UnicodeDecodeError:
        return None


def _json_problem(message: WithBody) -> str:
    """Returns why the body is not shown as JSON; empty: it can be shown."""
    if len(message.body) < message.body_bytes:
        return f"JSON is checked up to {CHECKED_BYTES_MAX:,} bytes; this body has {message.body_bytes:,}."
    try:
        json.loads(message.body.decode(), parse_int=len, parse_float=len)  # no number is large enough to cost time
    except UnicodeDecodeError:
        return "The body is not JSON: it is not UTF-8."
    except RecursionError:
        return "The JSON is nested too deeply to be checked."
    except ValueError as error:
        return f"The body is not JSON: {error}."
    return ""


def _indented(text: str, characters_max: int) -> tuple[str, int]:
    """Returns valid JSON with a line per value, and the number of bytes of `text` that it shows."""
    parts: list[str] = []
    size, depth, before = 0, 0, ""
    for match in _TOKEN.finditer(text):
        part = match[0]
        closes = part in {"}", "]"}
        depth -= closes
        newline = (before in {"{", "["}) != closes or before == ","
        space = "\n" + "  " * depth if newline else ""
        if size + len(space) + len(part) >= characters_max:
            shown = max(0, characters_max - size - len(space))
            parts.append((space + part)[: characters_max - size])
            return "".join(parts), len(text[: match.start() + shown].encode())
        parts.append(space + part)
        size += len(parts[-1])
        if part == ":":
            parts.append(" ")
            size += 1
        depth += part in {"{", "["}
        before = part
    return "".join(parts), len(text.encode())


def _dump(body: bytes) -> str:
    return "\n".join(
        f"{start:08x}  {body[start : start + LINE_BYTES].hex(' '):<47}  {_signs(body[start : start + LINE_BYTES])}"
        for start in range(0, len(body), LINE_BYTES)
    )


def _signs(line: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
