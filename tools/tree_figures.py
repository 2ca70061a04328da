"""Figures of the shipped Python code: sizes, import cycles, duplicate class names, vague variable names.

    python tools/tree_figures.py [ROOT]

ROOT: the top folder of a copy of the project, by default this one; an older one: `git archive COMMIT | tar x -C DIR`.
Stubs are left out. Cycles count imports for type checkers too. Pure code: core, model, allocation and filters.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PACKAGES = {
    "evenq": "src/evenq",
    "evenq_broker": "services/broker/evenq_broker",
    "evenq_nameserver": "services/nameserver/evenq_nameserver",
    "evenq_rebalancer": "services/rebalancer/evenq_rebalancer",
    "pyspark_evenq": "spark/pyspark_evenq",
}
VAGUE = ("told", "asked", "wanted", "place", "found", "answer")
PURE = re.compile(r"\.(core|model|allocation|filters)(\.|$)")
MARKS = re.compile(r"#\s*(noqa|type:|fmt:|-{4,})")
WHOLE_BROKER = re.compile(r"\bself\._broker\b(?!\.name)|(?<![\w.\"'`])broker\.(?!py\b)[a-z_]+|: Broker\b")


def modules(root: Path) -> dict[str, Path]:
    """Returns all shipped modules: file by dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in (root / folder).rglob("*.py"):
            if "stubs" not in path.parts:
                parts = path.relative_to(root / folder).with_suffix("").parts
                found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imports(module: str, tree: ast.Module, known: Mapping[str, Path]) -> set[str]:
    """Returns the modules of the project that one module imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                candidates = (f"{node.module}.{alias.name}", node.module)
                names |= {next((name for name in candidates if name in known), module)}
    return names - {module}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns groups of modules that import each other, the largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            groups.append(stack[at:])
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return sorted((group for group in groups if len(group) > 1), key=len, reverse=True)


def import_cycles(root: Path) -> list[list[str]]:
    """Returns the cycles of all shipped modules."""
    known = modules(root)
    return cycles({name: imports(name, ast.parse(path.read_text()), known) for name, path in known.items()})


def spread(sizes: Sequence[int]) -> str:
    """Returns median, 90th percentile and maximum."""
    ordered = sorted(sizes)
    return f"{statistics.median(ordered):.0f} / {ordered[int(len(ordered) * 0.9)]} / {ordered[-1]}"


def comments(text: str) -> int:
    """Returns the number of comments other than markers of tools."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and not MARKS.match(token.string) for token in tokens)


def bound(tree: ast.Module) -> Iterator[str]:
    """Yields names of variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def figures(root: Path) -> list[tuple[str, str]]:
    """Returns name and value of each figure."""
    known = modules(root)
    texts = {name: path.read_text() for name, path in known.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    graph = {name: imports(name, tree, known) for name, tree in trees.items()}
    importers = Counter(name for names in graph.values() for name in names)
    homes: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    functions = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    files = [size for name, size in lines.items() if known[name].name != "__init__.py"]
    handed = [text for name, text in texts.items() if "broker: Broker" in text and name.startswith("evenq_broker")]
    words = Counter(word for tree in trees.values() for word in bound(tree) if word in VAGUE)
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    total = sum(lines.values())
    return [
        ("modules; lines", f"{len(files)}; {total:,}"),
        ("lines of a module, median / p90 / most", spread(files)),
        ("lines of a function, median / p90 / most", spread(functions)),
        ("mentions of the whole broker in its parts", str(sum(len(WHOLE_BROKER.findall(text)) for text in handed))),
        ("modules in cycles of imports", ", ".join(str(len(group)) for group in cycles(graph)) or "0"),
        ("import contracts", str(len(contracts))),
        ("pure code", f"{sum(size for name, size in lines.items() if PURE.search(name)) / total:.0%}"),
        ("modules with one importer", str(sum(count == 1 for count in importers.values()))),
        ("class names in two modules", str(sum(len(names) > 1 for names in homes.values()))),
        ("variables named " + ", ".join(VAGUE), ", ".join(str(words[word]) for word in VAGUE)),
        ("comments a hundred lines", f"{sum(map(comments, texts.values())) / total * 100:.1f}"),
    ]


if __name__ == "__main__":
    if set(sys.argv[1:]) & {"-h", "--help"}:
        print(__doc__)
    else:
        for what, value in figures(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent):
            print(f"| {what} | {value} |")
