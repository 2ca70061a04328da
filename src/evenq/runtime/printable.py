"""Untrusted text made safe to show: bodies, tags, client ids, error texts of other programs.

Called by everything that writes to a terminal or a log: the command line (`evenq.cli.output`) and the formatters of the
servers' logs (`evenq.serving.program.logs`). Control characters move the cursor, set titles, clear lines or end them;
direction marks show a text in another order than it has. Both become escapes. A newline inside a value is such a
character: it would let a value write lines of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["json_line", "printable"]


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with an escape (`\x1b`, `\n`) for every character that is not printable, apart from those in `keep`."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else repr(sign)[1:-1] for sign in text)


def json_line(value: Any, *, default: Callable[[Any], Any] | None = None) -> str:
    """One line of JSON that is printable and gives exactly `value` when it is read."""
    text = json.dumps(value, ensure_ascii=False, default=default)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)
