"""Answers to calls whose handler failed; the same at every front.

Always true: a defect is answered with an id that is also in the log, never with a stack or the name of a file.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from evenq import errors
from evenq.serving.rpc import Rpc
from evenq.wire.http2.codes import Status
from evenq.wire.status import INTERNAL, DecodeError

log = logging.getLogger(__name__)

_STATUSES = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    408: Status.DEADLINE_EXCEEDED,
    413: Status.INVALID_ARGUMENT,
    428: Status.FAILED_PRECONDITION,
    429: Status.RESOURCE_EXHAUSTED,
    431: Status.INVALID_ARGUMENT,
    501: Status.UNIMPLEMENTED,
    505: Status.UNIMPLEMENTED,
}


def has_status(response: type[Any]) -> bool:
    """Returns whether responses of this class carry errors in a field `status`."""
    descriptor = getattr(response, "DESCRIPTOR", None)
    field = None if descriptor is None else descriptor.fields_by_name.get("status")
    return field is not None and field.message_type is not None


def known_error(error: Exception, rpc: Rpc) -> errors.Error:
    """Returns the error that the caller may see."""
    if isinstance(error, errors.Error) and not isinstance(error, INTERNAL):
        return error
    if isinstance(error, DecodeError):
        return errors.BadRequest(f"the request of {rpc.method} does not decode: {error}")
    if isinstance(error, errors.StorePoisoned):  # many calls may wait; the broker itself ends with the cause
        log.debug("the store stopped under a call of %s: %s", rpc.method, error)
        return errors.PersistenceTimeout(
            "the broker's disk failed, and the broker ends: it is unknown whether this was stored; check it, or send "
            "it again"
        )
    incident = os.urandom(6).hex()
    log.error("call failed", exc_info=error, extra={"method": rpc.method, "incident": incident})
    what = "internal error"
    if isinstance(error, errors.StoreCorrupted):
        what = "stored data is damaged and cannot be read, and a retry does not help: internal error"
    return errors.InternalError(f"{what} {incident}; the server's log has more under this id")


def overload(limit: int) -> errors.TooManyRequests:
    """Returns the error for more calls than the server runs at the same time."""
    return errors.TooManyRequests(f"the server runs {limit} calls, its maximum; try again after a pause")


def grpc_status(code: int) -> Status:
    """Returns gRPC's status for a code of the protocol, for responses without a field for it."""
    if code == errors.ConnectionFailed.code:
        return Status.UNAVAILABLE
    return _STATUSES.get(code // 100, Status.INTERNAL)
