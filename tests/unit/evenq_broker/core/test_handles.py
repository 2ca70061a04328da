"""Receipt handles: self-contained, kept by nobody, forged by nobody."""

from __future__ import annotations

import pytest
from evenq_broker.core.handles import Handle, Handles, broker_of

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
