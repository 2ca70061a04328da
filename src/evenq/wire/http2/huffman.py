"""Huffman decoding of HPACK strings (RFC 7541, section 5.2 and appendix B), a byte of input at a time.

The code is canonical: the lengths below define the codes, shorter ones first and in order of the symbols. A `_State` is
a position in the code tree; its entry for a byte has the symbols that the eight bits complete and the next state.
States and entries are made when they are first needed, at most 256 x 256.
Always true: the result equals a bit-by-bit reading by the RFC; EOS inside a string, padding of more than seven bits, or
padding that is not all ones raises HpackFault.
"""

from __future__ import annotations

from typing import TypeAlias

from evenq.wire.http2.codes import HpackFault

_LENGTHS = """
13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 6 10 10 12 13 6
8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7
8 13 19 13 14 6 15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 20 22 20 20 22 22 22 23
22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 22 21 20 22 22 23 23 21 23 22 22 24 21
22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21
26 27 27 26 27 24 21 21 26 26 28 27 27 27 20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27
27 27 28 27 27 27 27 27 26 30
"""
CODE_LENGTHS = tuple(int(length) for length in _LENGTHS.split())
"""Bits of each symbol's code, 0 to 255 and EOS; RFC 7541, appendix B."""
EOS = 256


def _canonical() -> tuple[int, ...]:
    codes = [0] * len(CODE_LENGTHS)
    code = length_before = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(CODE_LENGTHS)):
        code <<= length - length_before
        codes[symbol], length_before = code, length
        code += 1
    return tuple(codes)


CODES = _canonical()  # code of each symbol, in its lowest bits

_SYMBOL = {(CODE_LENGTHS[symbol], code): symbol for symbol, code in enumerate(CODES)}
_BYTES = tuple(bytes((symbol,)) for symbol in range(256))

_Entry: TypeAlias = "tuple[bytes, _State]"


class _State(dict[int, _Entry]):
    """Bits read since the last whole symbol. Maps the next byte to the completed symbols and the next state."""

    __slots__ = ("bits", "length")

    def __init__(self, length: int, bits: int) -> None:
        super().__init__()
        self.length = length
        self.bits = bits

    def __missing__(self, byte: int) -> _Entry:
        length, bits, symbols = self.length, self.bits, b""
        for shift in range(7, -1, -1):
            length, bits = length + 1, bits << 1 | byte >> shift & 1
            symbol = _SYMBOL.get((length, bits))
            if symbol is not None:
                if symbol == EOS:
                    raise HpackFault("a Huffman string contains EOS")
                symbols += _BYTES[symbol]
                length = bits = 0
        entry = self[byte] = symbols, _state(length, bits)
        return entry


_states: dict[tuple[int, int], _State] = {}


def _state(length: int, bits: int) -> _State:
    state = _states.get((length, bits))
    if state is None:
        state = _states[length, bits] = _State(length, bits)
    return state


_START = _state(0, 0)


def decode(data: bytes) -> bytes:
    """Returns the decoded string. Raises HpackFault."""
    state = _START
    parts: list[bytes] = []
    append = parts.append
    for byte in data:
        symbols, state = state[byte]
        append(symbols)
    if state.length > 7 or state.bits != (1 << state.length) - 1:
        raise HpackFault("a Huffman string is not padded with ones, up to seven")
    return b"".join(parts)
