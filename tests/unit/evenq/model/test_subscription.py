"""Tag expressions as people write them."""

import pytest

from evenq.model import FilterExpression, FilterType


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", None),
        ("", None),
        (" || ", None),
        ("a || *", None),
        ("a", {"a"}),
        ("a||b ||  a ", {"a", "b"}),
        ("two words || c", {"two words", "c"}),
    ],
)
def test_an_expression_is_a_set_of_tags_or_everything(expression, tags):
    assert FilterExpression(expression).tags == tags


def test_an_sql_expression_is_written_in_one_word() -> None:
    assert FilterExpression.sql("a > 1") == FilterExpression("a > 1", FilterType.SQL)
