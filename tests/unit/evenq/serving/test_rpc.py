"""What a handler knows of a call."""

import pytest

from evenq.errors import BadRequest
from evenq.serving.rpc import KEPT_HEADERS, CallHeaders, MoreHeaders, RpcContext


def context(*metadata):
    return RpcContext("/s/Call", metadata, "127.0.0.1:1", None)


def test_headers_are_read_by_the_names_of_the_protocol():
    known = context(("x-mq-client-id", "c"), ("x-mq-language", "rust"), ("x-mq-namespace", "n"))
    assert (known.client_id, known.language, known.namespace) == ("c", "RUST", "n")
    unknown = context()
    assert (unknown.client_id, unknown.language, unknown.namespace) == ("", "", "")


def test_binary_headers_are_left_out_and_the_last_of_two_counts():
    result = context(("trace-bin", b"\xff"), ("x-mq-client-id", "first"), ("x-mq-client-id", "second"))
    assert result.headers == {"x-mq-client-id": "second"}


def test_calls_with_the_same_metadata_share_what_it_tells():
    head = CallHeaders((("x-mq-client-id", "c"), ("x-mq-namespace", "n"), ("x-mq-namespace", "m"), ("t-bin", b"\xff")))
    one, another = (RpcContext("/s/Call", head, "127.0.0.1:1", None) for _ in range(2))
    assert one.headers is another.headers
    assert (one.headers, one.namespace, one.header("t-bin")) == ({"x-mq-client-id": "c"}, "n", "")


@pytest.mark.parametrize("header", sorted(KEPT_HEADERS))
def test_headers_that_servers_keep_are_bounded(header):
    context((header, "x" * 255), ("x-other", "y" * 9_999)).must_be_legal()
    with pytest.raises(BadRequest, match=f"{header} has 256 characters, the limit is 255"):
        context((header, "x" * 256)).must_be_legal()
    with pytest.raises(BadRequest, match="not printable"):
        context((header, "a\x1b[2J")).must_be_legal()


def test_what_many_calls_share_is_bounded_in_each_of_them():
    common = CallHeaders((("x-mq-client-id", "x" * 256),))
    with pytest.raises(BadRequest, match="256 characters"):
        RpcContext("/s/Call", MoreHeaders(common, (("x-mq-request-id", "1"),)), "127.0.0.1:1", None).must_be_legal()
