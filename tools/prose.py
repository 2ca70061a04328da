"""Finds and counts the phrases that the writing guide replaces, in docstrings, comments and texts of the shipped code.

`python tools/prose.py` prints a table of counts; with paths it prints each finding below them. With
`--check` it fails when a count exceeds its ceiling in CEILINGS. A ceiling is lowered with each count that falls.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (
    "src/evenq",
    "services/broker/evenq_broker",
    "services/nameserver/evenq_nameserver",
    "services/rebalancer/evenq_rebalancer",
    "spark/pyspark_evenq",
    "protos/evenq",
)
GENERATED = "src/evenq/wire/stubs/"

PATTERNS = {
    "opens with What, Who or Whose": r"(?:^|(?<=[.:;]\s))(?:What|Who|Whose|Whom)\b(?![^.]*\?)",
    "parts that tell, hear or ask": r"\b(?:tell|tells|told|telling|hear|hears|heard|hearing|asks|asked|asking)\b",
    "is no X, that is none": r"(?<![Tt]here\s)\b(?:is|are|was|were|be) (?:no|none)\b(?! (?:longer|more|less|later))",
    "of who, by who": r"\b(?:of|by|to|for|from|with|at|in|on) (?:who|whom|whoever)\b",
    "goes on, at once, let go": (
        r"\b(?:(?:goes|go|went|going) on|(?:comes|come|came) again|at once|(?:is|are|was) over|(?:let|letting) go)\b"
    ),
    "so many, so much, had rather": r"\b(?:so many|so much|for want of|had rather|of before)\b",
    "; else": r"; else\b",
    "farewell, goodbye, in hand": r"\b(?:farewells?|goodbyes?|in hand|stands? still|standing still|stood still)\b",
}
"""Name of each pattern and its regular expression: prose that a reader with another first language reads twice."""

CEILINGS = {
    "parts that tell, hear or ask": 3,  # names of arguments in backticks, as are the others
    "goes on, at once, let go": 1,
    "farewell, goodbye, in hand": 1,
}
"""Findings allowed for each pattern in the shipped code; 0 where a pattern is not named."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """One place where a pattern matches."""

    path: str
    line: int
    pattern: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.pattern}] {self.text}"


def phrases(relative: str, source: str) -> Iterator[Phrase]:
    """All matches in the prose of one file."""
    for line, text in prose_of(relative, source):
        for name, pattern in COMPILED.items():
            for match in pattern.finditer(text):
                excerpt = text[max(0, match.start() - 40) : match.end() + 40].strip()
                yield Phrase(relative, line + text.count("\n", 0, match.start()), name, " ".join(excerpt.split()))


COMPILED = {name: re.compile(pattern.replace(" ", r"\s+")) for name, pattern in PATTERNS.items()}
"""A phrase may span two lines."""


def prose_of(relative: str, source: str) -> Iterator[tuple[int, str]]:
    """First line and text of each comment block and of each string with a space in it."""
    if relative.endswith(".proto"):
        yield from _comment_blocks(
            (number, line.split("//", 1)[1]) for number, line in enumerate(source.splitlines(), 1) if "//" in line
        )
        return
    comments = (
        (token.start[0], token.string.lstrip("#:"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    yield from _comment_blocks(comments)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _comment_blocks(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Joins comments on adjacent lines, so that a sentence may span two."""
    first, block = 0, list[str]()
    for number, text in lines:
        if block and number != first + len(block):
            yield first, "\n".join(block)
            block = []
        if not block:
            first = number
        block.append(text.strip())
    if block:
        yield first, "\n".join(block)


def shipped(root: Path = ROOT, below: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Relative path and source of each shipped module and protocol file below the given paths."""
    for source in SOURCES:
        for path in sorted((root / source).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if path.suffix not in (".py", ".proto") or relative.startswith(GENERATED):
                continue
            if not below or relative.startswith(below):
                yield relative, path.read_text(encoding="utf-8")


def counts(root: Path = ROOT) -> Counter[str]:
    """Findings of each pattern in the shipped code."""
    return Counter(found.pattern for relative, source in shipped(root) for found in phrases(relative, source))


def above_ceilings(found: Counter[str]) -> list[str]:
    """Sentences about patterns whose count exceeds the ceiling."""
    return [
        f"{found[name]} texts of the shipped code match {name!r}, the ceiling is {CEILINGS.get(name, 0)}: "
        "`python tools/prose.py PATH` lists them"
        for name in PATTERNS
        if found[name] > CEILINGS.get(name, 0)
    ]


def main(below: list[str], *, check: bool = False) -> int:
    """Prints findings below paths, or the table of counts; `check`: only counts above their ceilings."""
    if below:
        for relative, source in shipped(below=tuple(below)):
            for found in phrases(relative, source):
                print(found)
        return 0
    found = counts()
    if check:
        print("\n".join(above_ceilings(found)))
        return 1 if above_ceilings(found) else 0
    for name in PATTERNS:
        print(f"{found[name]:5} (ceiling {CEILINGS.get(name, 0)})  {name}")
    print(f"{found.total():5} in total")
    return 0


if __name__ == "__main__":
    sys.exit(main([path for path in sys.argv[1:] if path != "--check"], check="--check" in sys.argv))
