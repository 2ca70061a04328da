"""Prints `docs/internals/semantics_index.md` with the tests of each promise (`make spec`).

A test proves an id at the beginning of its name (`test_pq_7_...`, also `test_rd_13_14_cl_13_...`) or in its marker
(`@pytest.mark.spec("PQ-7")`); ids in docstrings do not count. The last column of a row has the reason why there is no
test: it does not apply, or `open: ...` for a promise that is not built. Exits 1 if a row has neither a test nor a
reason, or both, or if a marker has an unknown id. `--counts` prints only the counts per section and the open rows.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OPEN = "open:"
INDEX = ROOT / "docs" / "internals" / "semantics_index.md"

ROW = re.compile(r"^\| ([A-Z]{2})-(\d+) \| (.*?) \| ?(.*?) ?\|$")
LEADING = re.compile(r"test((?:_[a-z]{2}(?:_\d+)+)+)(?:_|$)")
NAMED = re.compile(r"([a-z]{2})((?:_\d+)+)")


class Row(NamedTuple):
    """One promise of the index."""

    id: str
    promise: str
    reason: str
    """Reason why there is no test; empty: a test is required."""

    @property
    def kind(self) -> str:
        """State of a row without a test: `open`, `not applicable` or `missing`."""
        return "open" if self.reason.startswith(OPEN) else "not applicable" if self.reason else "missing"


KINDS = {"tested": "with tests", "not applicable": "not applicable", "open": "open", "missing": "WITHOUT A TEST"}
"""In the order of the counts."""


def rows(text: str) -> list[Row]:
    """Returns the rows of the index, in its order."""
    matches = (ROW.match(line) for line in text.splitlines())
    return [Row(f"{match[1]}-{match[2]}", match[3], match[4]) for match in matches if match]


def cited(name: str, marked: Iterable[str], known: set[str]) -> set[str]:
    """Returns the ids that a test proves: all of its marker, and those in its name while numbers grow and are known."""
    ids = set(marked)
    leading = LEADING.match(name)
    for prefix, numbers in NAMED.findall(leading[1] if leading else ""):
        last = -1
        for number in (int(part) for part in numbers.split("_")[1:]):
            cited_id = f"{prefix.upper()}-{number}"
            if cited_id not in known or number <= last:
                break
            ids.add(cited_id)
            last = number
    return ids


def tests_by_id(folder: Path, known: set[str]) -> dict[str, list[str]]:
    """Returns `path::test` by id, for all test files below the folder."""
    table: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        for name, marked in _tests(path):
            for cited_id in sorted(cited(name, marked, known)):
                table[cited_id].append(f"{path.relative_to(folder.parent)}::{name}")
    return table


def _tests(path: Path) -> Iterator[tuple[str, set[str]]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, {one for decorator in node.decorator_list for one in _marked(decorator)}


def _marked(decorator: ast.expr) -> list[str]:
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.spec":
        return []
    return [ast.literal_eval(argument) for argument in decorator.args]


def problems_of(rows_of_index: Sequence[Row], table: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns one sentence per problem."""
    problems = []
    for row in rows_of_index:
        tests = table.get(row.id, ())
        if not tests and not row.reason:
            problems.append(f"{row.id} has no test: {row.promise}")
        if tests and row.reason:
            problems.append(f"{row.id} has a reason for no test, but {tests[0]} proves it; remove the reason")
    known = {row.id for row in rows_of_index}
    problems += [
        f"{tests[0]} is marked with {id_}, which the index does not have"
        for id_, tests in table.items()
        if id_ not in known
    ]
    return problems


def main(arguments: list[str]) -> int:
    """Prints the table; returns 1 if there are problems."""
    index = rows(INDEX.read_text(encoding="utf-8"))
    table = tests_by_id(ROOT / "tests", {row.id for row in index})
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in index:
        tests = table.get(row.id, [])
        counts[row.id[:2]]["tested" if tests else row.kind] += 1
        if "--counts" not in arguments:
            shown = tests[:3] or [
                row.reason if row.kind == "open" else f"not applicable: {row.reason}" if row.reason else "NO TEST"
            ]
            more = f" (+{len(tests) - 3})" if len(tests) > 3 else ""
            print(f"{row.id:6} {row.promise}\n" + "\n".join(f"         {line}" for line in shown) + more)
    for section, count in counts.items():
        words = (f"{count[kind]} {text}" for kind, text in KINDS.items() if count[kind])
        print(f"{section}: {', '.join(words)}")
    still_open = [row.id for row in index if row.kind == "open"]
    print(f"open, because it is not built: {len(still_open)} ({', '.join(still_open)})")
    problems = problems_of(index, table)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
