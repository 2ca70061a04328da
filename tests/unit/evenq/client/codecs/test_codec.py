"""JSON bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.client.codecs.codec import JsonCodec
from evenq.errors import BadRequest, InvalidBody

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(VALUES.filter(lambda value: not has_surrogate(value)))
def test_what_is_encoded_is_decoded(value: Any) -> None:
    codec = JsonCodec()
    assert codec.decode(codec.encode(value, "t"), "t") == value


def has_surrogate(value: Any) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in str(value))


@pytest.mark.parametrize("value", [b"bytes", object(), float("nan"), {"a": {1, 2}}, "\ud800", {(1, 2): 3}])
def test_a_value_that_json_lacks_is_refused_with_its_topic(value: object) -> None:
    with pytest.raises(BadRequest, match="the value for orders cannot be written as JSON"):
        JsonCodec().encode(value, "orders")


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(BadRequest):
        JsonCodec().encode(value, "t")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"NaN", b"[Infinity]", b"[" * 100_000, b"1" * 5_000, b"{} {}"]
)
def test_a_body_that_is_not_json_is_invalid_whatever_it_is(body: bytes) -> None:
    with pytest.raises(InvalidBody, match="a body of orders is not JSON"):
        JsonCodec().decode(body, "orders")


@given(st.binary(max_size=40))
def test_bytes_decode_or_are_invalid(body: bytes) -> None:
    try:
        JsonCodec().decode(body, "t")
    except InvalidBody as error:
        text = str(error)
    else:
        text = "a body of t"
    assert text.startswith("a body of t")
