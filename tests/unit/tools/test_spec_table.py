"""`make spec` knows which test proves which promise."""

import re
from pathlib import Path

import pytest

from tests.unit.tools.conftest import load_tool

spec_table = load_tool("spec_table")
KNOWN = {"RD-13", "RD-14", "RD-16", "CL-13", "CC-9", "OF-4", "OF-5"}


@pytest.mark.parametrize(
    ("name", "marked", "found"),
    [
        ("test_rd_13_14_16_cl_13_a_delayed_message_is_kept", (), {"RD-13", "RD-14", "RD-16", "CL-13"}),
        ("test_cc_9_1001_to_1008_done", (), {"CC-9"}),
        ("test_a_body_of_4_mib_fits", (), set()),
        ("test_offsets", ("OF-4", "OF-5"), {"OF-4", "OF-5"}),
    ],
)
def test_names_and_markers_prove_ids(name: str, marked: tuple[str, ...], found: set[str]) -> None:
    assert spec_table.cited(name, marked, KNOWN) == found


def test_every_row_of_the_index_is_read_and_no_id_comes_twice() -> None:
    text = spec_table.INDEX.read_text(encoding="utf-8")
    index = spec_table.rows(text)
    assert len(index) == sum(line.startswith("| ") and line[2:4].isupper() for line in text.splitlines())
    assert len({row.id for row in index}) == len(index)


def test_a_docstring_that_mentions_an_id_proves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_one.py").write_text(
        '"""CC-9"""\nimport pytest\n\n@pytest.mark.spec("OF-5", "OF-4")\ndef test_it():\n    """RD-13: so."""\n'
    )
    assert spec_table.tests_by_id(folder, KNOWN) == {
        "OF-4": ["tests/test_one.py::test_it"],
        "OF-5": ["tests/test_one.py::test_it"],
    }


def test_rows_without_a_test_with_both_and_unknown_ids_are_problems() -> None:
    index = spec_table.rows(
        "| CC-9 | moves | |\n| HA-1 | a replica | open: one copy |\n| OF-4 | kept | does not apply |\n"
    )
    assert [row.kind for row in index] == ["missing", "open", "not applicable"]
    assert spec_table.problems_of(index, {"HA-1": ["t::a"], "XX-1": ["t::b"]}) == [
        "CC-9 has no test: moves",
        "HA-1 has a reason for no test, but t::a proves it; remove the reason",
        "t::b is marked with XX-1, which the index does not have",
    ]


@pytest.mark.slow
def test_it_prints_and_says_what_is_missing_by_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code = spec_table.main(["--counts"])
    printed = capsys.readouterr()
    assert "CC: " in printed.out
    assert re.search(r"open, because it is not built: \d+ \(CC-11\)", printed.out)
    assert code == (1 if printed.err else 0)
