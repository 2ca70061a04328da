"""The figures of the tree that must not get worse, and how they are counted."""

from pathlib import Path

import pytest

from tests.unit.tools.conftest import ROOT, load_tool

tree_figures = load_tool("tree_figures")


def test_no_modules_import_each_other_in_a_cycle_not_even_for_type_checkers() -> None:
    assert tree_figures.import_cycles(ROOT) == []


def test_a_cycle_is_found_where_one_half_is_for_type_checkers_only(tmp_path: Path) -> None:
    package = tmp_path / "src/evenq"
    package.mkdir(parents=True)
    (package / "one.py").write_text("from evenq.two import b\n")
    (package / "two.py").write_text("if TYPE_CHECKING:\n    from evenq.one import a\n")
    (package / "three.py").write_text("from evenq.one import a\n")
    assert [sorted(cycle) for cycle in tree_figures.import_cycles(tmp_path)] == [["evenq.one", "evenq.two"]]


@pytest.mark.parametrize(
    ("text", "count"), [("# why\nx = 1  # bound of RocketMQ\n", 2), ("x = 1  # noqa: E501\n# ------\n", 0)]
)
def test_marks_for_tools_and_rules_are_no_comments(text: str, count: int) -> None:
    assert tree_figures.comments(text) == count
