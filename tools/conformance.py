"""Checks that the statements of docs/internals/conformance.md name existing tests. Prints counts; exits 1 for problems.

`proven` and `partly` statements must name a test, `open` ones must not; each of the fifty occurs exactly once.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "conformance.md"
STATEMENTS = 50
SHORT = {"int": "integration", "ub": "unit/evenq_broker"}
STATES = ("proven", "partly", "open")
ROW = re.compile(r"^\*\*(\d+)\*\* (\w+): (.+)\n((?:- .+\n)*)", re.MULTILINE)
TEST = re.compile(r"[\w/]+/test_\w+\.py::\w+")


class Row(NamedTuple):
    """One statement."""

    number: int
    statement: str
    state: str
    rest: str
    """Its tests, and the part that is not proven."""

    @property
    def tests(self) -> list[str]:
        """`path::name`, with the full path below `tests/`."""
        found: list[str] = TEST.findall(self.rest)
        return [SHORT.get(test.split("/")[0], test.split("/")[0]) + "/" + test.partition("/")[2] for test in found]


def rows(text: str) -> list[Row]:
    """Returns the rows of the page, in its order."""
    return [Row(int(number), statement, state, rest) for number, state, statement, rest in ROW.findall(text)]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Returns all functions of a file; none if there is no such file."""
    if not path.exists():
        return frozenset()
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def problems(statements: list[Row], tests: Path = ROOT / "tests") -> list[str]:
    """Returns the problems of the rows, as sentences."""
    found = []
    if [row.number for row in statements] != list(range(1, STATEMENTS + 1)):
        found.append(
            f"the statements are {[row.number for row in statements]}, they should be 1 to {STATEMENTS}, each once"
        )
    for row in statements:
        if row.state not in STATES:
            found.append(f"{row.number} is {row.state!r}, not one of {', '.join(STATES)}")
        if row.state == "open" and (row.tests or not row.rest):
            found.append(f"{row.number} is open: it names no test and says why")
        if row.state in STATES[:2] and not row.tests:
            found.append(f"{row.number} is {row.state} and names no test")
        for test in row.tests:
            path, _, name = test.partition("::")
            if name not in names_in(tests / path):
                found.append(f"{row.number} names tests/{test}, which does not exist")
    return found


def main() -> int:
    """Prints counts and problems."""
    statements = rows(PAGE.read_text(encoding="utf-8"))
    counts = Counter(row.state for row in statements)
    print(", ".join(f"{counts[state]} {state}" for state in STATES))
    wrong = problems(statements)
    for problem in wrong:
        print(problem, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
