"""Receipt handles: self-contained, kept nowhere, forged by no client."""

from __future__ import annotations

import pytest
from evenq_broker.core.state.handles import KEY_BYTES, Handle, Handles, broker_of

from evenq.errors import InvalidReceiptHandle

HANDLES = Handles("broker-a", b"k" * 32)


def test_a_handle_says_all_and_is_short_printable_ascii() -> None:
    text = HANDLES.make(1, 2, 3, 1 << 40, 5, 1 << 41)
    assert HANDLES.read(text) == Handle(1, 2, 3, 1 << 40, 5, 1 << 41)
    assert len(text) < 300
    assert text.isascii()
    assert text.isprintable()
    assert broker_of(text) == "broker-a"


def test_each_flipped_digit_is_noticed() -> None:
    text = HANDLES.make(1, 2, 3, 4, 5, 6)
    start = len("e1.broker-a.")
    for place in range(start, len(text)):
        digit = "0" if text[place] != "0" else "1"
        with pytest.raises(InvalidReceiptHandle):
            HANDLES.read(text[:place] + digit + text[place + 1 :])


@pytest.mark.parametrize(
    "text", ["", "e1.", "e1.broker-a.", "e1.broker-a." + "zz" * 49, "x" * 1000, "e1.broker-a." + "é" * 98]
)
def test_rubbish_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceiptHandle):
        HANDLES.read(text)


def test_another_key_or_another_name_does_not_fit() -> None:
    text = HANDLES.make(1, 2, 3, 4, 5, 6)
    with pytest.raises(InvalidReceiptHandle):
        Handles("broker-a", b"x" * 32).read(text)
    with pytest.raises(InvalidReceiptHandle):
        Handles("broker-b", b"k" * 32).read(text.replace("broker-a", "broker-b"))


def test_names_with_dots_of_nothing_belong_to_nobody() -> None:
    assert broker_of("nonsense") is None
    assert broker_of("e1..00") is None


def test_handles_that_are_made_together_are_those_made_one_by_one() -> None:
    offsets = [0, 7, 1 << 40]
    assert HANDLES.encoded_all(1, 2, 3, offsets, 4, 5) == [HANDLES.encoded(1, 2, 3, at, 4, 5) for at in offsets]


def test_handles_are_read_together_as_one_by_one_or_not_at_all() -> None:
    texts = [HANDLES.make(1, 2, number, number * 7, 4, 5) for number in range(5)]
    assert HANDLES.read_all(texts) == [HANDLES.read(text) for text in texts]
    assert HANDLES.read_all(texts[:1]) == [HANDLES.read(texts[0])]
    for wrong in ("", "x", texts[1][:-1], texts[1] + "00", texts[1][:-2] + "  ", texts[1][:-1] + "g", "\u0660" * 9):
        assert HANDLES.read_all([texts[0], wrong, texts[2]]) is None
    other = Handles("other", bytes(KEY_BYTES)).make(1, 2, 3, 4, 5, 6)
    assert HANDLES.read_all([texts[0], other]) is None
    for at in range(len("e1."), len(texts[0])):
        flipped = texts[0][:at] + ("0" if texts[0][at] != "0" else "1") + texts[0][at + 1 :]
        assert HANDLES.read_all([texts[1], flipped]) is None
