"""What a handler knows of a call."""

from evenq.serving.rpc import RpcContext


def context(*metadata):
    return RpcContext("/s/Call", metadata, "127.0.0.1:1", None)


def test_headers_are_read_by_the_names_of_the_protocol():
    known = context(("x-mq-client-id", "c"), ("x-mq-language", "rust"), ("x-mq-namespace", "n"))
    assert (known.client_id, known.language, known.namespace) == ("c", "RUST", "n")
    unknown = context()
    assert (unknown.client_id, unknown.language, unknown.namespace) == ("", "", "")


def test_binary_headers_are_left_out_and_the_last_of_two_counts():
    found = context(("trace-bin", b"\xff"), ("x-mq-client-id", "first"), ("x-mq-client-id", "second"))
    assert found.headers == {"x-mq-client-id": "second"}
