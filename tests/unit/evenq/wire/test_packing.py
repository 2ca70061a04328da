"""Packed bodies: there and back, bounded, and whole or refused."""

import contextlib
import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenq.errors import BadRequest, BodyTooLarge, MessageCorrupted, Unsupported
from evenq.wire import packing
from evenq.wire.packing import GZIP, IDENTITY, LZ4, METHODS, ZSTD, check_method, pack, unpack

METHOD = pytest.mark.parametrize("name", list(METHODS))
zstd = packing._library(packing._ZSTD_MODULE, "zstd")


@METHOD
@given(body=st.binary(min_size=1, max_size=3_000), times=st.integers(1, 50))
def test_what_is_packed_comes_back(name: str, body: bytes, times: int) -> None:
    packed, encoding = pack(name, body * times)
    if encoding == IDENTITY:
        assert packed == body * times, "packing would have gained nothing"
    else:
        assert len(packed) < len(body) * times
        assert unpack(encoding, packed, len(body) * times) == body * times


@METHOD
def test_a_bomb_is_refused_before_it_is_made(name: str) -> None:
    packed, encoding = pack(name, bytes(32 << 20))
    with pytest.raises(BodyTooLarge):
        unpack(encoding, packed, 1_000)


@METHOD
def test_what_is_cut_short_or_damaged_is_told(name: str) -> None:
    packed, encoding = pack(name, b"once upon a time " * 100)
    for damaged in (packed[:-3], b"no packed body"):
        with pytest.raises(MessageCorrupted):
            unpack(encoding, damaged, 10_000)


@given(st.sampled_from([GZIP, LZ4, ZSTD, 7]), st.binary(max_size=200))
def test_no_bytes_break_it(encoding: int, body: bytes) -> None:
    with contextlib.suppress(MessageCorrupted, BodyTooLarge):
        assert len(unpack(encoding, body, 100)) <= 100


def test_both_readings_of_gzip_and_streams_without_a_size_are_taken() -> None:
    body = b"x" * 5_000
    assert unpack(GZIP, gzip.compress(body), 5_000) == body
    assert unpack(GZIP, zlib.compress(body), 5_000) == body
    stream = zstd.ZstdCompressor()
    packed = stream.compress(body) + stream.flush()
    assert zstd.get_frame_info(packed).decompressed_size is None
    assert unpack(ZSTD, packed, 5_000) == body
    with pytest.raises(BodyTooLarge):
        unpack(ZSTD, packed, 4_999)
    with pytest.raises(MessageCorrupted):
        unpack(ZSTD, packed[:-3], 5_000)


@METHOD
@pytest.mark.parametrize("times", [2, packing.MEMBERS_MAX])
def test_members_in_a_row_are_one_body(name: str, times: int) -> None:
    member = b"once upon a time " * 20
    packed, encoding = pack(name, member)
    assert unpack(encoding, packed * times, len(member) * times) == member * times
    with pytest.raises(BodyTooLarge):
        unpack(encoding, packed * times, len(member) * times - 1)
    with pytest.raises(MessageCorrupted):
        unpack(encoding, packed * times + b"junk", len(member) * times + 10)
    with pytest.raises(MessageCorrupted):
        unpack(encoding, (packed * times)[:-3], len(member) * times)


@METHOD
def test_more_members_than_a_body_may_have_are_refused(name: str) -> None:
    packed, encoding = pack(name, b"once upon a time " * 20)
    with pytest.raises(MessageCorrupted, match=f"more than {packing.MEMBERS_MAX} members"):
        unpack(encoding, packed * (packing.MEMBERS_MAX + 1), 1 << 20)


def test_a_zstd_frame_that_lies_of_its_size_is_bounded() -> None:
    honest = zstd.compress(bytes(8 << 20))
    at = honest.index((8 << 20).to_bytes(4, "little"))
    lying = honest[:at] + (10).to_bytes(4, "little") + honest[at + 4 :]
    assert zstd.get_frame_info(lying).decompressed_size == 10
    with pytest.raises((BodyTooLarge, MessageCorrupted)):
        unpack(ZSTD, lying, 1_000)


def test_a_zstd_frame_that_needs_a_large_window_is_refused() -> None:
    """A frame names its window, which a decompressor allocates."""
    body = random.Random(1).randbytes(1 << 10) * 100
    wide = {zstd.CompressionParameter.window_log: packing._WINDOW_LOG_MAX + 1}
    frame = zstd.ZstdCompressor(options=wide)  # without a size, so that the window is that of the options
    packed = frame.compress(body) + frame.flush()
    assert zstd.decompress(packed, options={zstd.DecompressionParameter.window_log_max: 27}) == body
    with pytest.raises(MessageCorrupted, match="does not decompress"):
        unpack(ZSTD, packed, 1 << 20)
    narrow = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: packing._WINDOW_LOG_MAX})
    assert unpack(ZSTD, narrow.compress(body) + narrow.flush(), 1 << 20) == body


def test_unknown_methods_and_missing_libraries_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check_method("")
    check_method("zlib")
    with pytest.raises(BadRequest, match="'snappy'"):
        check_method("snappy")

    def missing(module: str, name: str) -> None:
        raise Unsupported(f"{module} for {name}: pip install 'evenq[compression]'")

    packed, _ = pack("lz4", b"x" * 1_000)
    monkeypatch.setattr(packing, "_library", missing)
    with pytest.raises(Unsupported, match="evenq\\[compression\\]"):
        check_method("zstd")
    with pytest.raises(MessageCorrupted, match="evenq\\[compression\\]"):
        unpack(LZ4, packed, 1_000)
