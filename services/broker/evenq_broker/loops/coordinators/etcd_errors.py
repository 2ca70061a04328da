"""What each status of etcd's gRPC API means, for the coordinator on it: the `error_table` of its net.

etcd tells kinds of refusals apart by the text of the status only; the texts are part of its API (rpctypes).
"""

from __future__ import annotations

from collections.abc import Iterable

from evenq import errors
from evenq.wire.call_errors import late
from evenq.wire.http2.codes import Status

__all__ = ["AuthIsOff", "TokenRefused", "etcd_error"]


class TokenRefused(errors.Unauthorized):
    """The token of the login is missing, over, or older than a change of users. Log in again."""


class AuthIsOff(errors.Error):
    """This etcd knows no users: no login is needed."""


def etcd_error(
    code: int,
    details: str,
    trailers: Iterable[tuple[str, str | bytes]],  # noqa: ARG001 - etcd says all in the text
    /,
    *,
    address: str,
    method: str,
    timeout_ms: int | None,
) -> errors.Error:
    """An `ErrorTable`."""
    reason = details.removeprefix("etcdserver: ") or "no reason given"
    call = method.rpartition("/")[2]
    match code:
        case Status.UNAUTHENTICATED:
            return TokenRefused(f"etcd at {address} refuses the login's token: {reason}; log in again")
        case Status.INVALID_ARGUMENT if reason in {"user name is empty", "revision of auth store is old"}:
            return TokenRefused(f"etcd at {address} wants a login for {call}: {reason}; give a user and a password")
        case Status.INVALID_ARGUMENT if reason.startswith("authentication failed"):
            return errors.Unauthorized(f"etcd at {address} refuses the login: {reason}; give the right ones")
        case Status.FAILED_PRECONDITION if reason == "authentication is not enabled":
            return AuthIsOff(f"etcd at {address} knows no users")
        case Status.PERMISSION_DENIED:
            return errors.Forbidden(
                f"etcd at {address} forbids {call}: {reason}; give the user a role with read and write of the key"
            )
        case Status.DEADLINE_EXCEEDED if "etcdserver" not in details:
            return late(address, method, timeout_ms)
        case Status.UNIMPLEMENTED:
            return errors.Unsupported(f"{address} does not serve {method}; is it a client URL of etcd v3?")
        case Status.RESOURCE_EXHAUSTED if "space exceeded" in reason:
            return errors.TooManyRequests(
                f"etcd at {address} takes no writes: {reason}; compact and defragment it, then `etcdctl alarm disarm`"
            )
        case Status.RESOURCE_EXHAUSTED if "larger than max" in reason:
            return errors.PayloadTooLarge(
                f"etcd at {address} gives too much for {call}: {reason}; is it the right key?"
            )
        case Status.RESOURCE_EXHAUSTED:
            return errors.TooManyRequests(f"etcd at {address} is overloaded: {reason}")
        case Status.UNAVAILABLE if "etcdserver" in details:
            return errors.ConnectionFailed(
                f"etcd at {address} cannot do {call}: {reason}; see whether most of its members are up"
            )
        case Status.UNAVAILABLE | Status.CANCELLED | Status.DEADLINE_EXCEEDED:
            return errors.ConnectionFailed(
                f"no etcd answers at {address} ({call}: {reason}); is it running, and is it a client URL?"
            )
        case _:
            return errors.InternalError(f"etcd at {address} failed in {call}: {reason} (gRPC status {code})")
