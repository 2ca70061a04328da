"""SQL filters against a second, tiny reading of the same rules: random expressions over random properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenq.filters import logic, sql_filter

Tree = tuple[Any, ...]
Truth = bool | None

NAMES = ("a", "b", "TAGS", "order_id", "x.y", "größe")
TEXTS = st.one_of(
    st.sampled_from(["", "eu", "O'Brien", "10", "-3", "2.5", "true", "FALSE", "x y"]), st.text(max_size=4)
)
NUMBERS = st.one_of(
    st.integers(-20, 20), st.integers(-(10**18), 10**18), st.sampled_from([0.5, -2.5, 10.0, 1e6, 2.5e-3])
)
LITERALS = st.one_of(TEXTS.map(lambda text: ("text", text)), NUMBERS.map(lambda value: ("number", value)))
BOOLEANS = st.booleans().map(lambda value: ("bool", value))
NAME = st.sampled_from(NAMES).map(lambda name: ("name", name))
VALUES = st.one_of(NAME, NAME, LITERALS)
TESTS = st.one_of(
    st.tuples(st.just("compare"), VALUES, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), VALUES),
    st.tuples(st.just("compare"), NAME, st.sampled_from(["=", "<>"]), BOOLEANS),
    st.tuples(st.just("between"), st.booleans(), VALUES, VALUES, VALUES),
    st.tuples(st.just("in"), st.booleans(), VALUES, st.lists(st.one_of(LITERALS, BOOLEANS), min_size=1, max_size=4)),
    st.tuples(st.just("null"), st.booleans(), NAME),
    st.tuples(st.just("find"), st.booleans(), VALUES, st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), TEXTS),
    st.tuples(st.just("constant"), st.booleans()),
)
TREES = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=8,
)
PROPERTIES = st.dictionaries(
    st.sampled_from(NAMES), st.one_of(TEXTS, st.sampled_from(["1e2", "+5", "0x1", " 7", "1_0", "٣", "nan", "9" * 70]))
)


def sql(tree: Tree, draw_case: Callable[[str], str]) -> str:
    """The tree as a user would write it."""
    word = draw_case
    match tree:
        case ("name", name):
            return str(name)
        case ("text", text):
            return "'" + text.replace("'", "''") + "'"
        case ("number", value):
            return repr(value)
        case ("bool", value) | ("constant", value):
            return word("TRUE" if value else "FALSE")
        case ("compare", left, sign, right):
            return f"{sql(left, word)} {sign} {sql(right, word)}"
        case ("between", negated, value, low, high):
            between = f"{sql(low, word)} {word('AND')} {sql(high, word)}"
            return f"{sql(value, word)} {word('NOT') if negated else ''} {word('BETWEEN')} {between}"
        case ("in", negated, value, literals):
            among = ",".join(sql(one, word) for one in literals)
            return f"{sql(value, word)} {word('NOT') if negated else ''} {word('IN')} ({among})"
        case ("null", negated, name):
            return f"{sql(name, word)} {word('IS')} {word('NOT') if negated else ''} {word('NULL')}"
        case ("find", negated, value, how, text):
            return f"{sql(value, word)} {word('NOT') if negated else ''} {word(how)} {sql(('text', text), word)}"
        case ("not", inner):
            return f"{word('NOT')} ({sql(inner, word)})"
        case (("and" | "or") as how, inner):
            return f" {word(how)} ".join(f"({sql(one, word)})" for one in inner)
    raise AssertionError(tree)


def invert(truth: Truth) -> Truth:
    return None if truth is None else not truth


def as_number(text: str) -> float | None:
    """By the rules of the page: digits, one point, one exponent, one sign; at most 64 characters."""
    body = text[1:] if text[:1] in {"+", "-"} else text
    if len(text) > 64 or not body or body[0] not in "0123456789." or not set(body) <= set("0123456789.eE+-"):
        return None
    try:
        return int(text) if body.isdigit() else float(text)
    except ValueError:
        return None


def compared(left: Tree, sign: str, right: Tree, properties: Mapping[str, str]) -> Truth:
    sides: list[Any] = [properties.get(side[1]) if side[0] == "name" else side[1] for side in (left, right)]
    if None in sides:
        return None
    kinds = [side[0] for side in (left, right)]
    if kinds == ["name", "name"]:
        numbers = [as_number(side) for side in sides]
        sides = sides if None in numbers else numbers
    elif "name" in kinds:
        at = kinds.index("name")
        other = kinds[1 - at]
        if other == "number":
            sides[at] = as_number(sides[at])
        elif other == "bool":
            sides[at] = {"true": True, "false": False}.get(sides[at].lower())
        if sides[at] is None:
            return None
    elif kinds[0] != kinds[1]:
        return None
    return order(sides[0], sign, sides[1])


def order(one: Any, sign: str, two: Any) -> bool:
    less, same = one < two, bool(one == two)
    return {"<": less, "<=": less or same, ">": not less and not same, ">=": not less, "<>": not same, "=": same}[sign]


def meaning(tree: Tree, properties: Mapping[str, str]) -> Truth:
    """What the tree is, by tables of truth."""
    match tree:
        case ("constant", value):
            return bool(value)
        case ("compare", left, sign, right):
            return compared(left, sign, right, properties)
        case ("between", negated, value, low, high):
            inside = conjunction([compared(value, ">=", low, properties), compared(value, "<=", high, properties)])
            return invert(inside) if negated else inside
        case ("in", negated, value, literals):
            among = disjunction([compared(value, "=", one, properties) for one in literals])
            return invert(among) if negated else among
        case ("null", negated, name):
            return (name[1] in properties) is negated
        case ("find", negated, value, how, text):
            where = properties.get(value[1]) if value[0] == "name" else value[1]
            if not isinstance(where, str):
                return None
            size = len(text)
            at = {
                "CONTAINS": text in where,
                "STARTSWITH": where[:size] == text,
                "ENDSWITH": where[len(where) - size :] == text and size <= len(where),
            }
            return at[how] is not negated
        case ("not", inner):
            return invert(meaning(inner, properties))
        case ("and", inner):
            return conjunction([meaning(one, properties) for one in inner])
        case ("or", inner):
            return disjunction([meaning(one, properties) for one in inner])
    raise AssertionError(tree)


def conjunction(truths: list[Truth]) -> Truth:
    return False if False in truths else None if None in truths else True


def disjunction(truths: list[Truth]) -> Truth:
    return True if True in truths else None if None in truths else False


@given(tree=TREES, properties=PROPERTIES, lower=st.booleans())
@settings(max_examples=600, deadline=None)
@pytest.mark.slow
def test_an_expression_means_what_the_tables_of_truth_say(
    tree: Tree,
    properties: dict[str, str],
    lower: bool,
) -> None:
    text = sql(tree, str.lower if lower else str.upper)
    assert sql_filter(text).evaluate(properties) is meaning(tree, properties), text


@pytest.mark.parametrize(
    ("expression", "properties", "truth"),
    [
        ("amount > 10", {"amount": "9"}, False),
        ("amount > 10", {"amount": "10.5"}, True),
        ("amount > 10", {"amount": "ten"}, None),
        ("amount > 10", {}, None),
        ("10 < amount", {"amount": "11"}, True),
        ("amount = 9007199254740993", {"amount": "9007199254740992"}, False),
        ("amount = 1.0", {"amount": "1"}, True),
        ("amount = '1.0'", {"amount": "1"}, False),
        ("region = 'EU'", {"region": "eu"}, False),
        ("name = 'O''Brien'", {"name": "O'Brien"}, True),
        ("paid = TRUE", {"paid": "True"}, True),
        ("paid <> FALSE", {"paid": "yes"}, None),
        ("a < b", {"a": "9", "b": "10"}, True),
        ("a < b", {"a": "9", "b": "x10"}, True),
        ("a < b", {"a": "9"}, None),
        ("NOT (a = 1) ", {}, None),
        ("a = 1 OR b = 2", {"b": "2"}, True),
        ("a = 1 AND b = 2", {"b": "3"}, False),
        ("a = 1 AND b = 2", {"b": "2"}, None),
        ("a IS NULL AND NOT b IS NULL", {"b": ""}, True),
        ("a BETWEEN -2.5 AND 1e1", {"a": "-2.5"}, True),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, True),
        ("a IN ('x', 2)", {"a": "2.0"}, True),
        ("a NOT IN ('x', 2)", {"a": "y"}, None),
        ("a NOT CONTAINS 'b'", {"a": "abc"}, False),
        ("a STARTSWITH ''", {"a": ""}, True),
        ("5 CONTAINS '5'", {}, None),
        ("'5' = 5", {}, None),
        ("TRUE OR a = 1", {}, True),
        ("FALSE", {}, False),
        ("a = 1 OR b = 1 AND c = 1", {"a": "1", "c": "2"}, True),
        ("NOT a = 1 AND b = 1", {"a": "2", "b": "1"}, True),
    ],
)
def test_three_valued_logic_by_example(expression: str, properties: dict[str, str], truth: Truth) -> None:
    assert sql_filter(expression).evaluate(properties) is truth


@pytest.mark.parametrize(
    "text", ["", "+", ".", "1e", "0x10", "1_0", " 1", "1 ", "nan", "inf", "٣", "²", "1" * 65, "--1"]
)
def test_what_only_looks_like_a_number_is_none(text: str) -> None:
    assert logic.number(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [("007", 7), ("+5", 5), ("-3", -3), (".5", 0.5), ("2.", 2.0), ("1e-2", 0.01)]
)
def test_numbers_are_read_as_people_write_them(text: str, value: float) -> None:
    assert logic.number(text) == value
