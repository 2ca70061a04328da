"""The table of options in docs/guides/spark.md is whole, true and up to date."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from pyspark_evenq.foreign_options import foreign_problem
from pyspark_evenq.options import ALIASES, NAMES

ROOT = Path(__file__).resolve().parents[3]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_spark_options", ROOT / "tools" / "gen_spark_options.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def test_the_guide_holds_the_table_as_the_tool_writes_it() -> None:
    assert tool.main(["--check"]) == 0


def test_another_table_in_the_guide_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "spark.md"
    copy.write_text(tool.GUIDE.read_text().replace("| 1 MiB |", "| 2 MiB |"))
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "GUIDE", copy)
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0


def test_every_option_and_every_other_name_has_one_row() -> None:
    described = [name for row in tool.ROWS for name in row.options]
    assert sorted(described) == sorted([*NAMES, *ALIASES])


def test_every_option_of_kafkas_source_has_a_row_or_is_refused_with_what_to_give_instead() -> None:
    described = {name for row in tool.ROWS for name in row.options}
    left = [name for name in tool.KAFKA if name not in described and foreign_problem(name) is None]
    assert left == []


def test_every_row_names_a_test_that_exists() -> None:
    for row in tool.ROWS:
        path, _, name = row.test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), row.test
