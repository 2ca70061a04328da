"""Writes the tables of options in the Spark guides: meaning of each option, and the test that proves it.

    python tools/gen_spark_options.py            write the tables into the guides
    python tools/gen_spark_options.py --check    write nothing; exit 1 if a table in a guide is out of date

The rows are in `tools/spark_options.toml`. `tests/unit/tools/test_gen_spark_options.py` checks that all options of ours
and of Spark's Kafka source and sink have a row, and that the tests exist.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_evenq.options.foreign import FOREIGN, FOREIGN_SINK
from pyspark_evenq.options.sink import WRITE_ALIASES
from pyspark_evenq.options.source import ALIASES

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "docs" / "guides"
BEGIN = "<!-- written by tools/gen_spark_options.py, do not edit -->\n"
END = "<!-- end of the options -->\n"


class Row(NamedTuple):
    """One option, or several that belong together."""

    names: str
    """The option, then its other names."""
    default: str
    meaning: str
    test: str
    """`file::function` under tests/."""

    @property
    def options(self) -> list[str]:
        return [name.strip(" ()") for name in self.names.replace("(", ",").split(",")]


DATA: dict[str, Any] = tomllib.loads((ROOT / "tools" / "spark_options.toml").read_text())
ROWS = tuple(Row(**row) for row in DATA["source"])
SINK_ROWS = tuple(Row(**row) for row in DATA["sink"])
KAFKA: Sequence[str] = DATA["kafka_source"]["options"]
"""Options for reading in Spark's guide to Kafka."""
KAFKA_SINK: Sequence[str] = DATA["kafka_sink"]["options"]
REFUSED: str = DATA["kafka_source"]["refused"]
"""Test that an option without a meaning here is an error with its replacement."""
REFUSED_SINK: str = DATA["kafka_sink"]["refused"]
PASSED_OVER: Mapping[str, str] = DATA["kafka_sink"]["passed_over"]
"""Options of Kafka's sink that are accepted without effect, with their text for the page."""


def options_table(rows: Sequence[Row]) -> str:
    """Returns the table of our options, with the test of each."""
    lines = ["| option | default | meaning | proved by |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.names} | {row.default} | {row.meaning} | {_proof(row.test)} |" for row in rows]
    return "\n".join(lines) + "\n"


def kafka_tables() -> str:
    """Returns the tables of Kafka's options, with the replacement of each."""
    refused = {name: (f"an error: {instead}", REFUSED) for name, instead in FOREIGN.items()}
    refused_sink = {name: (f"an error: {instead}", REFUSED_SINK) for name, instead in FOREIGN_SINK.items()}
    proof = DATA["kafka_sink"]["passed_over_proof"]
    passed_over = {name: (effect, proof) for name, effect in PASSED_OVER.items()}
    source = {**_ours(KAFKA, ROWS, ALIASES, refused), **refused}
    sink = {**_ours(KAFKA_SINK, SINK_ROWS, WRITE_ALIASES, passed_over), **refused_sink}
    return _kafka_table("source", source) + "\n" + _kafka_table("sink", sink)


def _ours(
    names: Sequence[str], rows: Sequence[Row], aliases: Mapping[str, str], others: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """Returns the meaning and test of each Kafka option."""
    meanings = {}
    for name in names:
        row = next((row for row in rows if name in row.options), None)
        if row is None:
            meanings[name] = others[name]
        elif name in row.options[1:] and name in aliases:
            meanings[name] = (f"accepted as another name of {row.options[0]}", row.test)
        else:
            meanings[name] = ("the same", row.test)
    return meanings


def _kafka_table(side: str, meanings: Mapping[str, tuple[str, str]]) -> str:
    lines = [f"| option of Kafka's {side} | here | proved by |", "| --- | --- | --- |"]
    for name, (here, test) in meanings.items():
        shown = name + "*" if name.endswith(".") else name  # a prefix of options
        lines.append(f"| {shown} | {here} | {_proof(test)} |")
    return "\n".join(lines) + "\n"


def _proof(test: str) -> str:
    path, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../../tests/{path})"


def tables() -> dict[str, str]:
    """Returns the tables by page."""
    return {
        "spark.md": options_table(ROWS),
        "spark_sink.md": options_table(SINK_ROWS),
        "spark_from_kafka.md": kafka_tables(),
    }


def with_table(text: str, table: str) -> str:
    """Returns the guide with the current table."""
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    return head + BEGIN + table + END + tail


def main(arguments: Sequence[str]) -> int:
    stale = 0
    for name, table in tables().items():
        page = GUIDES / name
        text = page.read_text()
        updated = with_table(text, table)
        if text == updated:
            continue
        if arguments == ["--check"]:
            sys.stderr.write(f"{page} is out of date; run python tools/gen_spark_options.py\n")
            stale = 1
        else:
            page.write_text(updated)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
