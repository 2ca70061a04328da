"""Huffman strings, beside the encoder of another implementation."""

import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from evenq.wire.http2 import huffman
from evenq.wire.http2.codes import HpackFault

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def test_the_code_is_the_one_of_the_rfc() -> None:
    assert tuple(REQUEST_CODES) == huffman.CODES
    assert tuple(REQUEST_CODES_LENGTH) == huffman.CODE_LENGTHS


@given(st.binary(max_size=300))
def test_what_another_encoder_writes_is_read(text: bytes) -> None:
    assert huffman.decode(ENCODER.encode(text)) == text


@given(st.binary(max_size=40))
def test_what_is_read_is_what_would_be_written(data: bytes) -> None:
    """So padding is ones, shorter than a byte, and nothing has two readings."""
    try:
        text = huffman.decode(data)
    except HpackFault:
        return
    assert ENCODER.encode(text) == data


@pytest.mark.parametrize("data", [b"\xff", b"\xff\xff\xff\xff", b"\x00", b"\x1f\xff", b"\x1e"])
def test_wrong_padding_and_eos_are_faults(data: bytes) -> None:
    with pytest.raises(HpackFault):
        huffman.decode(data)
