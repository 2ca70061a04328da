"""Draws docs/pictures/architecture.svg: the packages, in the order of import-linter's contract, and their imports.

    python tools/gen_architecture.py            write it
    python tools/gen_architecture.py --check    write nothing; exit 1 if it is missing or out of date

The rows are the layers of a contract in pyproject.toml, the arrows the imports of the modules. Arrows that follow from
others are left out.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
import tomllib
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
CONTRACT = "Rooms stand in one order"
SOURCES = ("src", "services/broker", "services/nameserver", "services/rebalancer", "spark")
WHAT = {
    "evenq.cli": "the command line",
    "evenq.pytest_plugin": "fixtures for users",
    "evenq.in_memory": "a broker in a test",
    "evenq_broker": "stores and delivers",
    "evenq_nameserver": "publishes the routes",
    "evenq_rebalancer": "decides assignments",
    "pyspark_evenq": "Spark's source and sink",
    "evenq.console": "a cluster in a browser",
    "evenq.tables": "topics as Parquet",
    "evenq.verify": "the fate of messages",
    "evenq.testing": "test clusters, checker",
    "evenq.serving": "the one gRPC server",
    "evenq.aio": "the SDK for asyncio",
    "evenq.otel": "traces of the SDK",
    "evenq.client": "the SDK",
    "evenq.columns": "records as Arrow",
    "evenq.local": "queues without a server",
    "evenq.store": "log, queues, timers",
    "evenq.allocation": "the strategies",
    "evenq.filters": "SQL filters",
    "evenq.wire": "stubs, codes, channels",
    "evenq.runtime": "clock, net, tasks",
    "evenq.model": "plain values",
    "evenq.errors": "one tree of errors",
}
"""Caption of each package; a package without one is refused."""

COLUMNS = {
    "evenq.cli": 410, "evenq.console": 1070, "evenq.pytest_plugin": 610, "evenq.in_memory": 164,
    "evenq_broker": 110, "evenq_nameserver": 310, "evenq_rebalancer": 510, "pyspark_evenq": 710,
    "evenq.tables": 910, "evenq.columns": 960, "evenq.verify": 880, "evenq.testing": 410, "evenq.serving": 410,
    "evenq.aio": 860,
    "evenq.otel": 1068, "evenq.client": 710, "evenq.local": 310, "evenq.store": 110,
    "evenq.allocation": 530, "evenq.filters": 300, "evenq.wire": 740,
    "evenq.runtime": 620, "evenq.model": 410, "evenq.errors": 410,
}  # fmt: skip
"""Horizontal centers of the boxes."""
PORTS = {
    ("evenq.cli", "evenq.testing"): (408, 408), ("evenq.cli", "evenq_broker"): (350, 110),
    ("evenq.cli", "evenq_nameserver"): (370, 310), ("evenq.cli", "evenq_rebalancer"): (450, 510),
    ("evenq.cli", "evenq.verify"): (412, 880), ("evenq.cli", "evenq.console"): (414, 1070),
    ("evenq.cli", "evenq.tables"): (416, 910),
    ("evenq_broker", "evenq.serving"): (160, 340), ("evenq_nameserver", "evenq.serving"): (280, 370),
    ("evenq_rebalancer", "evenq.serving"): (560, 440), ("pyspark_evenq", "evenq.serving"): (784, 480),
    ("evenq_broker", "evenq.allocation"): (140, 470), ("evenq_broker", "evenq.filters"): (180, 300),
    ("evenq_rebalancer", "evenq.allocation"): (530, 530), ("evenq.client", "evenq.allocation"): (660, 580),
    ("evenq.client", "evenq.wire"): (740, 740), ("evenq.serving", "evenq.wire"): (490, 690),
    ("evenq.serving", "evenq.model"): (425, 425), ("evenq.local", "evenq.model"): (397, 397),
    ("evenq.local", "evenq.store"): (250, 90), ("evenq.allocation", "evenq.model"): (500, 460),
    ("evenq.store", "evenq.runtime"): (110, 580), ("evenq.wire", "evenq.runtime"): (740, 660),
    ("evenq.filters", "evenq.errors"): (300, 360), ("evenq.runtime", "evenq.errors"): (620, 460),
    ("evenq.aio", "evenq.client"): (860, 770), ("evenq.otel", "evenq.client"): (1060, 790),
    ("evenq.console", "evenq.client"): (1161, 710), ("evenq.pytest_plugin", "evenq.in_memory"): (540, 230),
    ("evenq.pytest_plugin", "evenq.testing"): (606, 470), ("evenq.in_memory", "evenq_broker"): (110, 110),
    ("evenq.in_memory", "evenq.client"): (210, 650), ("evenq.tables", "evenq.client"): (974, 796),
    ("evenq.tables", "evenq.columns"): (975, 975), ("pyspark_evenq", "evenq.columns"): (760, 980),
}  # fmt: skip
"""Where an arrow leaves one box and meets the other, so that none crosses a third; otherwise the centers."""
WIDTH, ROW, BOX_H, BOX_W, MARGIN, CHANNEL = 1180, 84, 46, 184, 16, 18
INK, LINE, FILL = "#1a202c", "#718096", "#ebf4ff"

Edges = dict[str, set[str]]


def layers(pyproject: str) -> list[list[str]]:
    """Returns the packages from the top to the bottom."""
    for contract in tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]:
        if contract["name"] == CONTRACT:
            return [[room.strip() for room in row.split("|")] for row in contract["layers"]]
    raise SystemExit(f"gen_architecture: pyproject.toml has no contract {CONTRACT!r}")


def imports(rooms: Iterable[str], root: Path = ROOT) -> Edges:
    """Returns the other packages that the modules of each package import."""
    known = sorted(rooms, key=len, reverse=True)

    def room_of(module: str) -> str:
        return next((room for room in known if module == room or module.startswith(room + ".")), "")

    found: Edges = {room: set() for room in known}
    for source in SOURCES:
        for path in sorted((root / source).rglob("*.py")):
            module = ".".join(path.relative_to(root / source).with_suffix("").parts).removesuffix(".__init__")
            importer = room_of(module)
            if not importer or "stubs" in path.parts:  # generated; they import protobuf only
                continue
            for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
                if (room := room_of(name)) and room != importer:
                    found[importer].add(room)
    return found


def imported(tree: ast.Module) -> Iterable[str]:
    """Yields full names; for `from a import b` both a and a.b, since b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def downward(rows: list[list[str]], edges: Mapping[str, set[str]]) -> Edges:
    """Returns the edges to lower layers: an import upwards is an exception of the contract (`ignore_imports`)."""
    level = {room: number for number, row in enumerate(rows) for room in row}
    return {room: {other for other in others if level[other] > level[room]} for room, others in edges.items()}


def reduced(edges: Mapping[str, set[str]]) -> Edges:
    """Returns the edges that do not follow from others."""

    def reach(room: str) -> set[str]:
        return set().union(*({other} | reach(other) for other in edges[room])) if edges[room] else set()

    return {
        room: {other for other in others if not any(other in reach(between) for between in others - {other})}
        for room, others in edges.items()
    }


def drawn(rows: list[list[str]], edges: Mapping[str, set[str]]) -> str:
    """Returns the picture as SVG."""
    missing = [room for row in rows for room in row if room not in WHAT or room not in COLUMNS]
    if missing:
        raise SystemExit(f"gen_architecture: add these packages to WHAT and COLUMNS: {', '.join(missing)}")
    tops = {room: MARGIN + 30 + level * ROW for level, row in enumerate(rows) for room in row}
    height = MARGIN * 2 + 30 + (len(rows) - 1) * ROW + BOX_H
    shown = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13"'
    sized = 'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    note = 'An arrow says "imports". Arrows that follow from others are left out.'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shown}>',
        "<!-- generated by tools/gen_architecture.py, do not edit -->",
        f'<defs><marker id="tip" {sized}><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{MARGIN}" y="24" fill="{INK}">{note}</text>',
    ]
    for room, others in sorted(reduced(edges).items()):
        for other in sorted(others):
            left, met = PORTS.get((room, other), (COLUMNS[room], COLUMNS[other]))
            start, end = tops[room] + BOX_H, tops[other]
            bend = "" if left == met else f"V{end - CHANNEL}H{met}"
            parts.append(f'<path d="M{left} {start}{bend}V{end}" fill="none" stroke="{LINE}" marker-end="url(#tip)"/>')
    for room, top in tops.items():
        middle = COLUMNS[room]
        place = f'x="{middle - BOX_W // 2}" y="{top}" width="{BOX_W}" height="{BOX_H}" rx="6"'
        parts += [
            f'<rect {place} fill="{FILL}" stroke="{INK}"/>',
            f'<text x="{middle}" y="{top + 19}" text-anchor="middle" font-weight="bold" fill="{INK}">{room}</text>',
            f'<text x="{middle}" y="{top + 37}" text-anchor="middle" fill="{INK}">{escape(WHAT[room])}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


@functools.cache
def picture(root: Path = ROOT) -> str:
    """Returns the current content of the file."""
    rows = layers((root / "pyproject.toml").read_text(encoding="utf-8"))
    return drawn(rows, downward(rows, imports((room for row in rows for room in row), root)))


def main(argv: list[str] | None = None) -> int:
    """Writes or checks; returns 1 if the check finds the picture out of date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    drawing = picture()
    if options.check:
        if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == drawing:
            return 0
        print(f"{PICTURE.relative_to(ROOT)} is out of date: python tools/gen_architecture.py", file=sys.stderr)
        return 1
    PICTURE.write_text(drawing, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
