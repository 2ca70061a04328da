"""The errors that are raised for the status of a failed gRPC call: one table for all nets.

Answers of evenq carry their errors inside. A status comes from the layers below, from streams whose frames hold none,
or from a server of another make.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from evenq import errors
from evenq.wire.http2.codes import Status
from evenq.wire.status import error_of

CODE_TRAILER = "evenq-code"
"""Trailer of a call that ends with a gRPC error: the number of the intended `apache.rocketmq.v2.Code`."""


class ErrorTable(Protocol):
    """A function from the status of a failed call to the error that is raised."""

    def __call__(
        self,
        code: int,
        details: str,
        trailers: Iterable[tuple[str, str | bytes]],
        /,
        *,
        address: str,
        method: str,
        timeout_ms: int | None,
    ) -> errors.Error:
        """Returns the error for gRPC's status `code`, which is not OK."""
        ...


def call_error(
    code: int,
    details: str,
    trailers: Iterable[tuple[str, str | bytes]],
    *,
    address: str,
    method: str,
    timeout_ms: int | None,
) -> errors.Error:
    """Returns the error for gRPC's status `code`, which is not OK."""
    reason = _cause(details) or "no reason given"
    for key, value in trailers:
        if key == CODE_TRAILER and str(value).isdigit():
            return error_of(int(value), reason)
    call = method.rpartition("/")[2]
    match code:
        case Status.DEADLINE_EXCEEDED:
            return late(address, method, timeout_ms)
        case Status.UNAUTHENTICATED | Status.PERMISSION_DENIED:
            return errors.Unauthorized(f"{address} rejects {call}: {reason}; check the credentials")
        case Status.UNIMPLEMENTED:
            return errors.Unsupported(
                f"{address} does not serve {method}; is this the right port, and does its version match?"
            )
        # gRPC has one status for "too large" and "too many"; only its text differs, and our front uses the same text.
        case Status.RESOURCE_EXHAUSTED if "larger than max" in reason:
            return errors.PayloadTooLarge(f"{address} rejects {call}: {reason}; send less per call")
        case Status.RESOURCE_EXHAUSTED:
            return errors.TooManyRequests(f"{address} is overloaded: {reason}; try again later")
        # gRPC reports a reset stream as INTERNAL: the connection ended, and the call may be repeated elsewhere.
        case Status.INTERNAL | Status.UNKNOWN if "RST_STREAM" not in reason:
            return errors.InternalError(f"{address} failed in {call}: {reason}")
        case _:
            return no_answer(address, method, reason)


def grpc_call_error(
    error: Any, address: str, method: str, timeout_ms: int | None, *, table: ErrorTable = call_error
) -> errors.Error:
    """Returns the same for an error of grpcio, sync or async."""
    code: int = error.code().value[0]
    trailers = error.trailing_metadata() or ()
    return table(code, error.details() or "", trailers, address=address, method=method, timeout_ms=timeout_ms)


def _cause(details: str) -> str:
    """Returns the last part of grpcio's text, which names each layer of a failed connection."""
    if details.startswith(("failed to connect to all addresses", "DNS resolution failed")):
        return details.rpartition(": ")[2]
    return details


def late(address: str, method: str, timeout_ms: int | None) -> errors.RequestTimeout:
    """Returns the error for a call without an answer in time."""
    call = method.rpartition("/")[2]
    return errors.RequestTimeout(
        f"{address} did not answer {call} within {timeout_ms} ms; it may or may not have taken effect"
    )


def no_answer(address: str, method: str, reason: str) -> errors.ConnectionFailed:
    """Returns the error for a server that does not answer, or closed the connection."""
    call = method.rpartition("/")[2]
    return errors.ConnectionFailed(
        f"no evenq server answers at {address} ({call}: {reason}); is it running (`evenq up` starts one), and is "
        "host:port right?"
    )


def shutting_down(address: str) -> errors.ConnectionFailed:
    """Returns the error for a call after the net was closed."""
    return errors.ConnectionFailed(f"cannot call {address}: this side is shutting down")
