"""Which error a status of gRPC is, with the same words for all nets."""

import grpc
import pytest

from evenq import errors
from evenq.wire.call_errors import CODE_TRAILER, call_error, grpc_call_error, late, no_answer, shutting_down


@pytest.mark.parametrize(
    ("status", "details", "kind", "words"),
    [
        (1, "", errors.ConnectionFailed, "no reason given"),
        (2, "boom", errors.InternalError, "failed in Publish: boom"),
        (4, "", errors.RequestTimeout, "within 300 ms; it may or may not"),
        (7, "no", errors.Unauthorized, "check the credentials"),
        (8, "full", errors.TooManyRequests, "try again later"),
        (8, "Received message larger than max (9 vs. 8)", errors.PayloadTooLarge, "send less"),
        (12, "", errors.Unsupported, "right port"),
        (13, "boom", errors.InternalError, "boom"),
        (13, "RST_STREAM with PROTOCOL_ERROR", errors.ConnectionFailed, "RST_STREAM"),
        (14, "gone", errors.ConnectionFailed, "is it running (`evenq up` starts one)"),
        (16, "who", errors.Unauthorized, "who"),
        (99, "odd", errors.ConnectionFailed, "odd"),
    ],
)
def test_statuses(status: int, details: str, kind: type[errors.Error], words: str) -> None:
    error = call_error(status, details, [("a", b"b")], address="h:1", method="/evenq.v1.Data/Publish", timeout_ms=300)
    assert type(error) is kind
    assert words in error.message
    assert "h:1" in error.message


def test_the_code_that_our_doors_name_wins() -> None:
    error = call_error(5, "gone", [(CODE_TRAILER, "40402")], address="h:1", method="/a/b", timeout_ms=None)
    assert (type(error), error.message) == (errors.TopicNotFound, "gone")


def test_an_error_of_grpcio_is_the_same() -> None:
    class Failure:
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str | None:
            return None

        def trailing_metadata(self) -> None:
            return None

    error = grpc_call_error(Failure(), "h:1", "/a/b", 5)
    assert error.message == no_answer("h:1", "/a/b", "no reason given").message
    assert late("h:1", "/a/b", 5).retryable
    assert shutting_down("h:1").code == errors.ConnectionFailed.code


def test_another_table_stands_for_servers_that_are_not_ours() -> None:
    def theirs(
        code: int,
        details: str,
        trailers: object,
        /,
        *,
        address: str,
        method: str,
        timeout_ms: int | None,
    ) -> errors.Error:
        return errors.NotFound(f"{code} {details} {address} {method} {timeout_ms}")

    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="gone")
    result = grpc_call_error(error, "h:1", "/s/m", 5, table=theirs)
    assert type(result) is errors.NotFound
    assert result.message == "14 gone h:1 /s/m 5"
