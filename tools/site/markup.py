"""Differences between the Markdown of code hosts and Python-Markdown, which renders the site.

Pages are written for code hosts (CommonMark with tables). Python-Markdown needs a blank line before a list, four spaces
for what is inside an item, and shows the backslash of a pipe inside code in a table. This module adapts the text; code
blocks are left as they are. `tests/docs/test_site.py` compares each page with the result of a CommonMark parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

FENCE = re.compile(r"^[ ]*(```|~~~)")
ITEM = re.compile(r"^([ ]*)([-*+]|\d+[.)])([ ]+)(?=\S)")
CODE = re.compile(r"`[^`]+`")


def prepared(text: str) -> str:
    """Returns the text of a page for Python-Markdown."""
    return "\n".join(_lines(text.splitlines())) + "\n"


def _lines(lines: list[str]) -> Iterator[str]:
    inside = ""
    columns: list[int] = []  # where the texts of the open list items begin, outermost first
    before = ""
    for line in lines:
        fence = FENCE.match(line)
        if inside or fence:
            inside = "" if fence and inside == fence[1] else inside or (fence[1] if fence else "")
            columns = columns if line[:1] == " " else []
            yield _indented(line, columns)
            before = line
            continue
        item = ITEM.match(line)
        if item:
            while columns and len(item[1]) < columns[-1]:
                columns.pop()
            if before.strip() and not ITEM.match(before) and not columns and not before.startswith(" "):
                yield ""
            yield "    " * len(columns) + line[len(item[1]) :]
            columns.append(len(item[0]))
        elif not line.strip():
            yield line
        elif not line.startswith(" "):
            if not before.strip():
                columns = []
            yield CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if line.startswith("|") else line
        else:
            yield _indented(line, columns)
        before = line


def _indented(line: str, columns: list[int]) -> str:
    """Returns a line that continues a list item, with four spaces for each open item."""
    space = len(line) - len(line.lstrip())
    depth = sum(1 for column in columns if column <= space)
    return "    " * depth + line[columns[depth - 1] :] if depth else line
