"""Recall handles: self-contained, forged ones refused."""

import pytest
from evenq_broker.core.sending.recalls import Recall, Recalls, recall_broker_of

from evenq.errors import BadRequest

OURS = Recalls("broker-a", b"k" * 32)


def test_a_handle_names_its_message_and_its_broker() -> None:
    text = OURS.make(3, 1 << 40, 1_700_000_000_000, "id-ü")
    assert OURS.read(text) == Recall(3, 1 << 40, 1_700_000_000_000, "id-ü")
    assert text.isascii()
    assert recall_broker_of(text) == "broker-a"
    assert recall_broker_of("e1.broker-a.00") == ""


@pytest.mark.parametrize("text", ["", "d1.broker-a.", "d1.broker-a.zz", "d1.broker-b.00", "d1.broker-a." + "00" * 60])
def test_what_is_no_handle_of_ours_is_refused(text: str) -> None:
    with pytest.raises(
        BadRequest, match=r"was not made by this broker; use the handle that `evenq produce` or send\(\) returned"
    ):
        OURS.read(text)


def test_a_changed_handle_or_one_of_another_key_is_refused() -> None:
    text = OURS.make(3, 5, 7, "id")
    for at in range(len("d1.broker-a."), len(text)):
        changed = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
        with pytest.raises(BadRequest):
            OURS.read(changed)
    with pytest.raises(BadRequest):
        Recalls("broker-a", b"x" * 32).read(text)
