"""What a handler knows of a call."""

from evenq.serving.rpc import CallHeaders, RpcContext


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
