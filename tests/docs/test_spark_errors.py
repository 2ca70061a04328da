"""docs/guides/spark_errors.md has a row for every error that the Spark source and sink raise, and no row for others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from evenq import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "spark_errors.md"
PACKAGES = (ROOT / "spark" / "pyspark_evenq", ROOT / "src" / "evenq" / "columns")
ROW = re.compile(r"^\| `([^`]+)` .*\|$", re.MULTILINE)
VARIES = "\N{HORIZONTAL ELLIPSIS}"
INNER = {"ValueError", "NotImplementedError"}
"""Caught where they are raised."""


def text_of(node: ast.expr) -> str:
    """What is fixed of a text, with an ellipsis for each part that varies."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(part.value if isinstance(part, ast.Constant) else VARIES for part in parts)
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
    return VARIES


def raised() -> Iterator[tuple[str, str]]:
    """Where, and the text of each error that is made in the package."""
    for path in sorted(path for package in PACKAGES for path in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func).split(".")[-1]
            text = text_of(node.args[0])
            is_class = name[:1].isupper() or name.startswith("type(")
            if is_class and name not in INNER and " " in text:
                yield f"{path.name}:{node.lineno}", text


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def pattern(row: str) -> re.Pattern[str]:
    """The row's text at the beginning of an error's."""
    return re.compile(".*".join(re.escape(part) for part in row.split("...")), re.DOTALL)


def rows() -> list[str]:
    """Texts that are ours."""
    page = PAGE.read_text(encoding="utf-8")
    others = section(page, "Connections and permissions"), section(page, "Errors from Spark")
    return [row for row in ROW.findall(page) if not any(f"| `{row}` " in other for other in others)]


def test_every_error_of_the_source_and_the_sink_has_a_row() -> None:
    patterns = [pattern(row) for row in rows()]
    left = [f"{where}: {text}" for where, text in raised() if not any(one.match(text) for one in patterns)]
    assert left == []
    assert len(list(raised())) > 60


def test_every_row_is_about_an_error_that_there_is() -> None:
    texts = [text for _, text in raised()]
    assert [row for row in rows() if not any(pattern(row).match(text) for text in texts)] == []


def test_every_class_of_the_page_is_one() -> None:
    classes = ROW.findall(section(PAGE.read_text(encoding="utf-8"), "Connections and permissions"))
    assert len(classes) > 5
    assert [name for name in classes if not hasattr(errors, name)] == []
