"""Which test proves which promise: `make spec` prints `docs/internals/semantics_index.md` with its tests.

A test proves an id that its name begins with (`test_pq_7_...`, also `test_rd_13_14_cl_13_...`) or that its docstring
names (`PQ-7`); a docstring of a module proves nothing. Exits 1 when a row has neither a test nor a reason, or both; in
the sections below `# Other sections` only the latter.
`--counts` prints only the counts per section.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Row", "cited", "main", "rows", "tests_by_id"]

ROOT = Path(__file__).resolve().parent.parent
OTHERS = "\n# Other sections\n"
INDEX = ROOT / "docs" / "internals" / "semantics_index.md"

ROW = re.compile(r"^\| ([A-Z]{2})-(\d+) \| (.*?) \| ?(.*?) ?\|$")
LEADING = re.compile(r"test((?:_[a-z]{2}(?:_\d+)+)+)(?:_|$)")
NAMED = re.compile(r"([a-z]{2})((?:_\d+)+)")
WRITTEN = re.compile(r"\b([A-Z]{2}-\d+)\b")


class Row(NamedTuple):
    """One promise of the index."""

    id: str
    promise: str
    reason: str
    """Why there is no test; empty: there must be one."""


def rows(text: str) -> list[Row]:
    """The rows of the index, in its order."""
    matches = (ROW.match(line) for line in text.splitlines())
    return [Row(f"{match[1]}-{match[2]}", match[3], match[4]) for match in matches if match]


def cited(name: str, docstring: str, known: set[str]) -> set[str]:
    """The known ids that a test names. In a name, numbers that follow each other count while they grow."""
    found = {told for told in WRITTEN.findall(docstring) if told in known}
    leading = LEADING.match(name)
    for prefix, numbers in NAMED.findall(leading[1] if leading else ""):
        last = -1
        for number in (int(part) for part in numbers.split("_")[1:]):
            told = f"{prefix.upper()}-{number}"
            if told not in known or number <= last:
                break
            found.add(told)
            last = number
    return found


def tests_by_id(folder: Path, known: set[str]) -> dict[str, list[str]]:
    """Id to `path::test`, over all test files below the folder."""
    table: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        for name, docstring in _tests(path):
            for told in cited(name, docstring, known):
                table[told].append(f"{path.relative_to(folder.parent)}::{name}")
    return table


def _tests(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def main(arguments: list[str]) -> int:
    """Print the table; the number of problems decides the exit code."""
    text = INDEX.read_text(encoding="utf-8")
    told = rows(text)
    must = {row.id for row in rows(text.partition(OTHERS)[0])}
    table = tests_by_id(ROOT / "tests", {row.id for row in told})
    problems: list[str] = []
    counts: dict[str, list[int]] = {}
    for row in told:
        tests = table.get(row.id, [])
        count = counts.setdefault(row.id[:2], [0, 0, 0])
        count[0 if tests else 1 if row.reason else 2] += 1
        if not tests and not row.reason and row.id in must:
            problems.append(f"{row.id} has no test: {row.promise}")
        if tests and row.reason:
            problems.append(f"{row.id} says why it has no test, but {tests[0]} proves it; take the reason out")
        if "--counts" not in arguments:
            shown = tests[:3] or ([f"not applicable: {row.reason}"] if row.reason else ["NO TEST"])
            more = f" (+{len(tests) - 3})" if len(tests) > 3 else ""
            print(f"{row.id:6} {row.promise}\n" + "\n".join(f"         {line}" for line in shown) + more)
    for section, (tested, reasoned, missing) in counts.items():
        print(f"{section}: {tested} with tests, {reasoned} not applicable, {missing} without")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
