"""Tag expressions as people write them."""

import pytest

from evenq.model import FilterExpression


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
