"""Header compression: the examples of RFC 7541 appendix C, and another implementation beside ours."""

from collections.abc import Sequence

import hpack as other
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.wire.http2.codes import HpackFault
from evenq.wire.http2.fields import HeaderBlock
from evenq.wire.http2.hpack import CHANGING, PATTERNS_MAX, STATIC_PAIRS, Decoder, encode

Pairs = Sequence[tuple[bytes, bytes]]


def decoded(decoder: Decoder, block: bytes) -> list[tuple[str, str]]:
    made = decoder.decode(block)
    return [field.pair for field in (*made.fields, *made.changing)]


def parted(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Fields that change from call to call behind the others."""
    return sorted(pairs, key=lambda pair: pair[0].encode("latin-1") in CHANGING)


FIRST = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
SECOND = [*FIRST, ("cache-control", "no-cache")]
THIRD = [
    (":method", "GET"), (":scheme", "https"), (":path", "/index.html"), (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
]  # fmt: skip
C5 = [
    [(":status", "302"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
     ("location", "https://www.example.com")],
    [(":status", "307"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
     ("location", "https://www.example.com")],
    [(":status", "200"), ("cache-control", "private"), ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
     ("location", "https://www.example.com"), ("content-encoding", "gzip"),
     ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")],
]  # fmt: skip


@pytest.mark.parametrize(
    ("block", "pair", "table_bytes"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", ("custom-key", "custom-header"), 55),
        ("040c2f73616d706c652f70617468", (":path", "/sample/path"), 0),
        ("100870617373776f726406736563726574", ("password", "secret"), 0),
        ("82", (":method", "GET"), 0),
    ],
)
def test_each_representation_of_appendix_c2(block: str, pair: tuple[str, str], table_bytes: int) -> None:
    decoder = Decoder()
    assert decoded(decoder, bytes.fromhex(block)) == [pair]
    assert decoder.table_bytes == table_bytes


@pytest.mark.parametrize(
    ("table_bytes", "expected", "blocks"),
    [
        (
            [57, 110, 164],
            [FIRST, SECOND, THIRD],
            [
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ],
        ),
        (
            [57, 110, 164],
            [FIRST, SECOND, THIRD],
            [
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ],
        ),
        (
            [222, 222, 215],
            C5,
            [
                (
                    "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
                    "6e1768747470733a2f2f7777772e6578616d706c652e636f6d"
                ),
                "4803333037c1c0bf",
                (
                    "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f"
                    "3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"
                ),
            ],
        ),
        (
            [222, 222, 215],
            C5,
            [
                (
                    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f"
                    "0b97c8e9ae82ae43d3"
                ),
                "4883640effc1c0bf",
                (
                    "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335df"
                    "dfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
                ),
            ],
        ),
    ],
    ids=["C.3", "C.4", "C.5", "C.6"],
)
def test_the_stories_of_appendix_c(
    table_bytes: list[int], expected: list[list[tuple[str, str]]], blocks: list[str]
) -> None:
    decoder = Decoder(256 if expected is C5 else 4096)
    for size, pairs, block in zip(table_bytes, expected, blocks, strict=True):
        assert decoded(decoder, bytes.fromhex(block)) == pairs
        assert decoder.table_bytes == size


NAMES = st.sampled_from([name for name, _ in STATIC_PAIRS] + [b"x-mq-request-id", b"grpc-timeout", b"y"])
VALUES = st.sampled_from([b"", b"a", b"gzip, deflate", b"POST", b"\xff\x00"]) | st.binary(max_size=60)
FIELDS = st.lists(st.tuples(NAMES | st.binary(min_size=1, max_size=20), VALUES), max_size=12)


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 100, 4096])), max_size=8))
def test_what_another_encoder_writes_is_read(blocks: list[tuple[Pairs, bool, int | None]]) -> None:
    encoder, decoder = other.Encoder(), Decoder()
    for pairs, huffman, size in blocks:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(pairs, huffman=huffman)
        expected = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]
        assert parted(decoded(decoder, block)) == parted(expected)


@given(FIELDS)
def test_another_decoder_reads_what_we_write(pairs: Pairs) -> None:
    read = other.Decoder().decode(encode(pairs), raw=True)
    assert [(bytes(name), bytes(value)) for name, value in read] == list(pairs)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_mean_what_they_mean_to_another_decoder_or_are_a_fault(blocks: list[bytes]) -> None:
    ours, theirs = Decoder(), other.Decoder()
    for block in blocks:
        try:
            mine = decoded(ours, block)
        except HpackFault:
            return  # theirs is more patient with some of it: long integers, sizes that change late
        read = theirs.decode(block, raw=True)
        assert [(bytes(name).decode("latin-1"), bytes(value).decode("latin-1")) for name, value in read] == mine
        assert ours.table_bytes <= 4096


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (b"\x80", "index 0"),
        (b"\xff\xff\xff\xff\xff\xff\x01", "integer"),
        (b"\xc6", "in no table"),
        (b"\x0f\x2f\x01x", "in no table"),
        (b"\x40\x0aab", "longer than its block"),
        (b"\x40", "ends early"),
        (b"\x82\x20", "within a block"),
        (b"\x3f\xe2\x1f", "more than the 4096"),
        (b"\x00\x81\xff\x00", "padded"),
    ],
)
def test_what_no_encoder_writes_is_a_fault_with_its_reason(block: bytes, words: str) -> None:
    with pytest.raises(HpackFault, match=words):
        Decoder().decode(block)


def test_a_block_of_references_is_read_once_until_the_table_changes() -> None:
    decoder = Decoder()
    decoder.decode(bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572"))
    block = b"\x83\xbe"
    first = decoder.decode(block)
    assert decoder.decode(block) is first
    decoder.decode(b"\x40\x01a\x01b")
    assert decoded(decoder, block) == [(":method", "POST"), ("a", "b")]


def one_by_one() -> Decoder:
    """A decoder that reads every block field by field."""
    made = Decoder()
    made.usual = lambda _block: None  # type: ignore[method-assign]
    return made


def fields_of(block: HeaderBlock) -> list[tuple[object, ...]]:
    return sorted(block.fields + block.changing)


IDS = st.sampled_from([b"", b"1", b"a\x00", "\N{EURO SIGN}".encode(), b"x" * 126, b"x" * 127]) | st.binary(max_size=40)
CALLS = st.tuples(
    st.sampled_from([0, 1, 2, 3]), st.integers(0, 99_999_999), st.sampled_from("nmuSx"), IDS, st.booleans(),
    st.sampled_from([b"", b"grpc-timeout", b"x-mq-request-id", b":path", b"content-length", b"Bad"]),
)  # fmt: skip


@given(
    st.lists(CALLS, max_size=20), st.sampled_from([0, 0, 0, 100, 4096]),
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 200), st.integers(0, 255)), max_size=3),
)  # fmt: skip
def test_a_block_like_one_before_is_read_as_field_by_field(
    calls: list[tuple[int, int, str, bytes, bool, bytes]], table_bytes: int, flips: list[tuple[int, int, int]]
) -> None:
    encoder, quick, slow = other.Encoder(), Decoder(), one_by_one()
    encoder.header_table_size = table_bytes
    for number, (method, left, unit, request_id, huffman, more) in enumerate(calls):
        fields = [(b":method", b"POST"), (b":path", b"/%d" % method), (b"te", b"trailers")]
        fields += [(b"grpc-timeout", b"%d%s" % (left, unit.encode()))] if method != 1 else []
        fields += [(b"x-mq-language", b"GO")] + ([(b"x-mq-request-id", request_id)] if method > 1 else [])
        fields += [(more, b"7")] if more else []
        block = encoder.encode(fields, huffman=huffman)
        for at, place, byte in flips:
            if at == number and place < len(block):
                block = block[:place] + bytes((byte,)) + block[place + 1 :]
        result = []
        for decoder in (quick, slow):
            try:
                made = decoder.decode(block)
                result.append((fields_of(made), made.size, decoder.table_bytes, decoder.knows_length))
            except HpackFault as fault:
                result.append(str(fault))
        assert result[0] == result[1]
        if isinstance(result[0], str):
            return


def test_deadlines_and_ids_cost_no_reading_of_what_calls_share() -> None:
    encoder, decoder = other.Encoder(), Decoder()
    encoder.header_table_size = 0
    seen = []
    for number in range(2 * PATTERNS_MAX):
        pairs = [
            (b":path", b"/%d" % (number % 3)),
            (b"grpc-timeout", b"%du" % number),
            (b"x-mq-request-id", b"%d" % number),
        ]
        made = decoder.decode(encoder.encode(pairs))
        seen.append(made.common)
        assert decoded(decoder, encoder.encode(pairs)) == [(name.decode(), value.decode()) for name, value in pairs]
    assert seen[:3] == [None] * 3
    assert len({id(one) for one in seen[3:]}) == 3
    for number in range(2 * PATTERNS_MAX):
        decoder.decode(encoder.encode([(b"n", b"%d" % number), (b"grpc-timeout", b"1S")]))
    assert len(decoder._patterns) == PATTERNS_MAX


def test_without_a_table_every_block_is_remembered() -> None:
    encoder, decoder = other.Encoder(), Decoder()
    encoder.header_table_size = 0
    encoder.encode([(b"a", b"b")])
    decoder.decode(b"\x20")
    block = encoder.encode([(b"name", b"value")])
    assert decoder.decode(block) is decoder.decode(block)
