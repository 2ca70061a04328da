"""Untrusted text made safe to show: bodies, tags, client ids, error texts of other programs.

For all output to a terminal or a log: the command line (`evenq.cli.output`) and the log formatters of the servers
(`evenq.serving.program.logs`). Control characters move the cursor, set titles, clear or end lines; direction marks show
a text in another order. Both become escapes, also a newline, with which a value could write lines of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def printable(text: str, *, keep: str = "") -> str:
    r"""Returns the text with an escape (`\x1b`, `\n`) for each character that is not printable and not in `keep`."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else repr(sign)[1:-1] for sign in text)


def json_line(value: Any, *, default: Callable[[Any], Any] | None = None) -> str:
    """Returns `value` as one printable line of JSON."""
    text = json.dumps(value, ensure_ascii=False, default=default)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)
