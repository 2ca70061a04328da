"""The tables of options in the guides to Spark are whole, true and up to date."""

import re
from pathlib import Path

import pytest
from pyspark_evenq.options.foreign import foreign_problem
from pyspark_evenq.options.sink import WRITE_ALIASES, WRITE_NAMES
from pyspark_evenq.options.source import ALIASES, NAMES

from tests.unit.tools.conftest import ROOT, load_tool

tool = load_tool("gen_spark_options")


def test_the_guides_hold_the_tables_as_the_tool_writes_them() -> None:
    assert tool.main(["--check"]) == 0


def test_another_table_in_a_guide_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tool.tables():
        (tmp_path / name).write_text((tool.GUIDES / name).read_text())
    (tmp_path / "spark_sink.md").write_text(
        (tool.GUIDES / "spark_sink.md").read_text().replace("| 1000, 1 MiB |", "| 7 |")
    )
    monkeypatch.setattr(tool, "GUIDES", tmp_path)
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0


def test_every_option_and_every_other_name_has_one_row() -> None:
    described = [name for row in tool.ROWS for name in row.options]
    assert sorted(described) == sorted([*NAMES, *ALIASES])
    described = [name for row in tool.SINK_ROWS for name in row.options]
    assert sorted(described) == sorted([*WRITE_NAMES, *WRITE_ALIASES])


def test_every_option_of_kafkas_source_and_sink_has_a_row_or_is_refused_with_what_to_give_instead() -> None:
    described = {name for row in tool.ROWS for name in row.options}
    assert [name for name in tool.KAFKA if name not in described and foreign_problem(name) is None] == []
    described = {name for row in tool.SINK_ROWS for name in row.options}
    assert {name for name in tool.KAFKA_SINK if name not in described} == set(tool.PASSED_OVER)
    for name in (*tool.KAFKA, *tool.KAFKA_SINK):
        assert f"\n| {name} | " in tool.kafka_tables()


def test_every_row_names_a_test_that_exists() -> None:
    for test in (*(row.test for row in (*tool.ROWS, *tool.SINK_ROWS)), tool.REFUSED, tool.REFUSED_SINK):
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), test
