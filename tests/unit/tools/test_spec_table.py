"""`make spec` knows which test proves which promise."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spec_table", ROOT / "tools" / "spec_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


spec_table = load_tool()
KNOWN = {"RD-13", "RD-14", "RD-16", "CL-13", "CC-9", "OF-4", "OF-5"}


@pytest.mark.parametrize(
    ("name", "docstring", "found"),
    [
        ("test_rd_13_14_16_cl_13_a_delayed_message_is_kept", "", {"RD-13", "RD-14", "RD-16", "CL-13"}),
        ("test_cc_9_1001_to_1008_done", "", {"CC-9"}),
        ("test_a_body_of_4_mib_fits", "", set()),
        ("test_offsets", "OF-4: and OF-5, never XX-1.", {"OF-4", "OF-5"}),
    ],
)
def test_names_and_docstrings_cite_ids(name: str, docstring: str, found: set[str]) -> None:
    assert spec_table.cited(name, docstring, KNOWN) == found


def test_every_row_of_the_index_is_read_and_no_id_comes_twice() -> None:
    text = spec_table.INDEX.read_text(encoding="utf-8")
    told = spec_table.rows(text)
    assert len(told) == sum(line.startswith("| ") and line[2:4].isupper() for line in text.splitlines())
    assert len({row.id for row in told}) == len(told)


def test_the_tests_of_a_folder_are_found_by_id(tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_one.py").write_text('"""CC-9"""\ndef test_it():\n    """OF-5: so."""\n')
    assert spec_table.tests_by_id(folder, KNOWN) == {"OF-5": ["tests/test_one.py::test_it"]}


def test_it_prints_and_says_what_is_missing_by_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code = spec_table.main(["--counts"])
    told = capsys.readouterr()
    assert "CC: " in told.out
    assert code == (1 if told.err else 0)
