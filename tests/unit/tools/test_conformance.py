"""The page of the fifty statements names tests that exist."""

import pytest

from tests.unit.tools.conftest import load_tool

conformance = load_tool("conformance")


def test_every_statement_of_the_page_names_tests_that_exist() -> None:
    text = conformance.rows(conformance.PAGE.read_text(encoding="utf-8"))
    assert conformance.problems(text) == []


@pytest.mark.parametrize(
    ("row", "given"),
    [
        (
            "**1** proven: a\n- int/test_gone.py::test_x\n",
            "1 names tests/integration/test_gone.py::test_x, which does not exist",
        ),
        ("**1** proven: a\n- soon\n", "1 is proven and names no test"),
        ("**1** open: a\n", "1 is open: it names no test and says why"),
        ("**1** maybe: a\n- soon\n", "1 is 'maybe', not one of proven, partly, open"),
    ],
)
def test_each_mistake_of_the_page_is_told(row: str, given: str) -> None:
    assert given in conformance.problems(conformance.rows(row))


def test_a_missing_statement_is_told() -> None:
    assert "they should be 1 to 50" in conformance.problems([])[0]
