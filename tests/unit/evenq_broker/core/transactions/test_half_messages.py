"""What stands before a half message, and the ids that producers are given."""

from __future__ import annotations

import pytest
from evenq_broker.core.transactions.half_messages import (
    HalfHeader,
    TransactionIds,
    pack_half,
    transaction_broker_of,
    unpack_half,
)
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import InvalidTransactionId, StoreCorrupted

KEY = b"k" * 32


@given(
    number=st.one_of(st.none(), st.integers(0, (1 << 62))),
    counts=st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF)),
    client=st.text(max_size=200),
    head=st.binary(max_size=200),
)
def test_a_header_comes_back_and_the_message_behind_it(
    number: int | None, counts: tuple[int, int], client: str, head: bytes
) -> None:
    header = HalfHeader(number, 1_700_000_000_000, *counts, client)
    assert unpack_half(pack_half(header, head)) == (header, head)


def test_counts_stop_at_what_the_header_can_hold_and_an_absurd_client_id_is_left_out() -> None:
    header, head = unpack_half(pack_half(HalfHeader(1, 2, 70_000, 80_000, "c" * 2_000), b"head"))
    assert header == HalfHeader(1, 2, 0xFFFF, 0xFFFF, "")
    assert head == b"head"


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02" + bytes(60)])
def test_another_version_is_refused(data: bytes) -> None:
    with pytest.raises(StoreCorrupted):
        unpack_half(data)


def test_an_id_names_its_broker_and_comes_back() -> None:
    ids = TransactionIds("broker.a", KEY)
    text = ids.make(7, 1 << 60)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 255
    assert transaction_broker_of(text) == "broker.a"
    assert ids.read(text) == (7, 1 << 60)


@pytest.mark.parametrize(
    "forge",
    [
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text[:-2],
        lambda text: text + "00",
        lambda text: text.replace("t1.", "d1."),
        lambda text: text.replace(".a.", ".b."),
        lambda _: "",
        lambda _: "t1.a.xyz",
        lambda _: "01" * 40,
        lambda _: TransactionIds("a", b"x" * 32).make(7, 9),
    ],
)
def test_a_forged_id_is_refused(forge) -> None:
    ids = TransactionIds("a", KEY)
    with pytest.raises(InvalidTransactionId, match="not made by this broker"):
        ids.read(forge(ids.make(7, 9)))


def test_what_is_no_id_names_no_broker() -> None:
    assert transaction_broker_of("") == transaction_broker_of("e1.a.00") == ""
