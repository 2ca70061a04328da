"""What is sent as the headers of a call, and what the fields of an answer are taken for."""

import pytest

from evenq.errors import BadRequest
from evenq.serving.http2.messages import status
from evenq.serving.http2.requests import request_head
from evenq.wire.http2.answers import answer_head, request_headers
from evenq.wire.http2.hpack import Decoder, encode


def test_our_front_reads_from_the_headers_what_was_put_into_them() -> None:
    for timeout_ms, value in ((3_000, 3_000), (0, 1), (10**9, 10**9)):
        made = request_headers(
            "/s/M", scheme="https", authority="[::1]:8081", timeout_ms=timeout_ms, metadata=[("X-Mq", "a b")]
        )
        head = request_head(Decoder().decode(made.block))
        assert (head.path, head.authority, head.timeout_ms, head.not_grpc) == ("/s/M", "[::1]:8081", value, 0)
        assert list(head.metadata) == [("x-mq", "a b"), ("user-agent", "evenq")][::-1]
        assert not head.malformed


@pytest.mark.parametrize(("name", "value"), [("a", "grün"), ("a", "b\r\nc"), ("a-bin", "x"), ("ä", "x")])
def test_what_no_header_carries_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match="header"):
        request_headers("/s/M", scheme="http", authority="a:1", timeout_ms=1, metadata=[(name, value)])


def test_a_status_of_our_front_is_read_as_it_was_meant() -> None:
    said = "voll: grün, 100 %\n"
    block = Decoder().decode(status(8, said, [("evenq-code", "42900")], alone=True).block)
    head = answer_head(block)
    assert (head.http_status, head.is_grpc, head.status, head.message) == (200, True, 8, said)
    assert head.metadata == [("evenq-code", "42900")]
    assert answer_head(block) is head


@pytest.mark.parametrize("field", [b"", b"x", b"-1", b"1234", "²".encode()])
def test_a_status_that_is_no_number_is_none(field: bytes) -> None:
    assert answer_head(Decoder().decode(encode([(b"grpc-status", field)]))).status is None
