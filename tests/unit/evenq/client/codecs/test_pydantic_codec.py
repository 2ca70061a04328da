"""Bodies of pydantic types."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field

from evenq.client.codecs.pydantic_codec import PydanticCodec
from evenq.errors import BadRequest, InvalidBody, Unsupported


class Order(BaseModel):
    number: int
    note: str = Field("", alias="Note")


@dataclass
class Point:
    x: int
    y: int


def test_a_model_a_dataclass_and_a_list_go_there_and_back() -> None:
    for kind, value in ((Order, Order(number=1, Note="a")), (Point, Point(1, 2)), (list[Point], [Point(1, 2)])):
        codec: PydanticCodec[Any] = PydanticCodec(kind)
        assert codec.decode(codec.encode(value, "t"), "t") == value
    assert PydanticCodec(Order).encode(Order(number=1, Note="a"), "t") == b'{"number":1,"Note":"a"}'


def test_a_value_of_another_type_is_refused_when_it_is_sent() -> None:
    with pytest.raises(BadRequest, match="the value for orders is not a valid Order"):
        PydanticCodec(Order).encode("1", "orders")  # type: ignore[arg-type]  # that is the mistake


def test_an_invalid_body_names_the_field_and_not_its_content() -> None:
    with pytest.raises(InvalidBody, match="a body of orders is not a valid Order: number: Input should be") as caught:
        PydanticCodec(Order).decode(b'{"number": "secret"}', "orders")
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidBody, match="the whole: Invalid JSON"):
        PydanticCodec(Order).decode(b"\xff", "orders")


def test_a_type_that_pydantic_lacks_is_refused_at_construction() -> None:
    with pytest.raises(BadRequest, match="pydantic does not support"):
        PydanticCodec(type(sys))


def test_without_pydantic_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(Unsupported, match="pip install pydantic"):
        PydanticCodec(int)
