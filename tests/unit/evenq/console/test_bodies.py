"""Forms of bodies."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from evenq.client.core.admin.query_views import MessageView
from evenq.console.bodies import SHOWN_BYTES, BodyForm, is_whole_text, shown_body
from evenq.model import MessageQueue, MessageType

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


def message(body: bytes, **fields: Any) -> MessageView:
    given_fields: dict[str, Any] = {
        "queue": MessageQueue("t", "a", 0),
        "offset": 0,
        "message_id": "id",
        "message_type": MessageType.NORMAL,
        "tag": None,
        "keys": (),
        "properties": {},
        "message_group": None,
        "priority": None,
        "lite_topic": None,
        "born_ms": 0,
        "born_host": "",
        "store_ms": 0,
        "delivery_ms": None,
        "body_bytes": len(body),
        **fields,
    }
    return MessageView(body=body, **given_fields)


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_indented_json_has_the_same_value(value: Any, indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    shown = shown_body(message(body), BodyForm.JSON)
    assert (shown.form, shown.note, shown.hidden_bytes) == (BodyForm.JSON, "", 0)
    assert json.loads(shown.text) == value


@given(st.integers(0, 40))
def test_json_is_cut_within_any_part_and_the_hidden_bytes_are_counted(shift: int) -> None:
    body = json.dumps(["x" * shift, *[{"é": "é" * 50, "n": 1} for _ in range(2_000)]], ensure_ascii=False).encode()
    shown = shown_body(message(body), BodyForm.JSON)
    assert len(shown.text) <= SHOWN_BYTES
    visible = "".join(shown.text.split())
    assert "".join(body[: len(body) - shown.hidden_bytes].decode().split()) == visible


@given(st.binary(max_size=300), st.sampled_from(["", *BodyForm]))
def test_every_body_has_every_form(body: bytes, form: str) -> None:
    shown = shown_body(message(body), form)
    assert shown.hidden_bytes == 0
    assert shown.text or not body


def test_a_cut_within_a_character_leaves_the_character_out() -> None:
    whole = "aé".encode() * 30_000
    cut = message(whole[:SHOWN_BYTES], body_bytes=len(whole))
    shown = shown_body(cut, "")
    assert (shown.form, shown.note) == (BodyForm.TEXT, "")
    assert shown.hidden_bytes == len(whole) - SHOWN_BYTES


def test_only_a_complete_body_is_whole_text() -> None:
    assert is_whole_text(message("é".encode() * 100_000))
    assert not is_whole_text(message(b"a", body_bytes=2))
    assert not is_whole_text(message(b"\xc3"))
