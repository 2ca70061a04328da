"""What is raised for a call that gRPC ended with a status: one table for all nets.

`evenq.wire.net` and the two blocking nets ask it. Our own answers carry their errors inside; a status comes from below
them, from streams whose frames hold none, or from a server of another make.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from evenq import errors
from evenq.wire.http2.codes import Status
from evenq.wire.status import error_of

__all__ = ["CODE_TRAILER", "ErrorTable", "call_error", "grpc_call_error", "late", "no_answer", "shutting_down"]

CODE_TRAILER = "evenq-code"
"""Trailer of a call that ends with a gRPC error: the number of `apache.rocketmq.v2.Code` that is meant."""


class ErrorTable(Protocol):
    """From the status of a call that failed to what is raised for it."""

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
        """The error for gRPC's status `code`, which is not OK."""
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
    """The error for gRPC's status `code`, which is not OK."""
    reason = _cause(details) or "no reason given"
    for key, value in trailers:
        if key == CODE_TRAILER and str(value).isdigit():
            return error_of(int(value), reason)
    call = method.rpartition("/")[2]
    match code:
        case Status.DEADLINE_EXCEEDED:
            return late(address, method, timeout_ms)
        case Status.UNAUTHENTICATED | Status.PERMISSION_DENIED:
            return errors.Unauthorized(f"{address} refuses {call}: {reason}; check the credentials")
        case Status.UNIMPLEMENTED:
            return errors.Unsupported(
                f"{address} does not serve {method}; is this the right port, and does its version match?"
            )
        # gRPC has one status for "too large" and "too many"; its text is all that tells them apart, and our front uses
        # the same.
        case Status.RESOURCE_EXHAUSTED if "larger than max" in reason:
            return errors.PayloadTooLarge(f"{address} does not read {call}: {reason}; send less at once")
        case Status.RESOURCE_EXHAUSTED:
            return errors.TooManyRequests(f"{address} is overloaded: {reason}; try again later")
        # gRPC reports a reset stream as INTERNAL: the connection went, and the call may be tried again elsewhere.
        case Status.INTERNAL | Status.UNKNOWN if "RST_STREAM" not in reason:
            return errors.InternalError(f"{address} failed in {call}: {reason}")
        case _:
            return no_answer(address, method, reason)


def grpc_call_error(
    error: Any, address: str, method: str, timeout_ms: int | None, *, table: ErrorTable = call_error
) -> errors.Error:
    """The same for an error of grpcio, of either face."""
    code: int = error.code().value[0]
    trailers = error.trailing_metadata() or ()
    return table(
        code, error.details() or "", trailers, address=address, method=method, timeout_ms=timeout_ms
    )  # fmt: skip


def _cause(details: str) -> str:
    """The last part of grpcio's chain of texts, which names each layer that a failed connection passed."""
    if details.startswith(("failed to connect to all addresses", "DNS resolution failed")):
        return details.rpartition(": ")[2]
    return details


def late(address: str, method: str, timeout_ms: int | None) -> errors.RequestTimeout:
    """No answer in time."""
    call = method.rpartition("/")[2]
    return errors.RequestTimeout(
        f"{address} did not answer {call} within {timeout_ms} ms; it may or may not have taken effect"
    )


def no_answer(address: str, method: str, reason: str) -> errors.ConnectionFailed:
    """No server answers there, or it went away."""
    call = method.rpartition("/")[2]
    return errors.ConnectionFailed(
        f"no evenq server answers at {address} ({call}: {reason}); is it running, and is host:port right?"
    )


def shutting_down(address: str) -> errors.ConnectionFailed:
    """The net was closed."""
    return errors.ConnectionFailed(f"cannot call {address}: this side is shutting down")
