"""The only table between the classes of `evenq.errors` and the codes of `apache.rocketmq.v2.Code`.

Servers call `status_of` for answers, clients call `error_of` on received codes. The classes define their codes. Here
are: the class of each code, errors that must not be shown to callers, codes that are never sent, and replacements for
codes that Rust's SDK does not support (wire contract 10).
"""

from __future__ import annotations

from typing import cast

from google.protobuf.message import DecodeError

from evenq import errors
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

__all__ = ["CLASS_OF_CODE", "INTERNAL", "NEVER_SENT", "OK", "DecodeError", "check", "code_for", "error_of", "status_of"]

OK = 20000

CLASS_OF_CODE: dict[int, type[errors.Error]] = {
    kind.code: kind
    for kind in (
        errors.BadRequest,
        errors.IllegalAccessPoint,
        errors.IllegalTopic,
        errors.IllegalGroup,
        errors.IllegalMessageTag,
        errors.IllegalMessageKey,
        errors.IllegalMessageGroup,
        errors.IllegalPropertyKey,
        errors.InvalidTransactionId,
        errors.IllegalMessageId,
        errors.IllegalFilterExpression,
        errors.IllegalInvisibleTime,
        errors.IllegalDeliveryTime,
        errors.InvalidReceiptHandle,
        errors.MessageTypeConflict,
        errors.UnrecognizedClientType,
        errors.MessageCorrupted,
        errors.ClientIdRequired,
        errors.IllegalOffset,
        errors.IllegalLiteTopic,
        errors.InvalidClientProperties,
        errors.Unauthorized,
        errors.Forbidden,
        errors.NotFound,
        errors.MessageNotFound,
        errors.TopicNotFound,
        errors.GroupNotFound,
        errors.OffsetNotFound,
        errors.RequestTimeout,
        errors.PayloadTooLarge,
        errors.BodyTooLarge,
        errors.BodyEmpty,
        errors.PreconditionFailed,
        errors.TooManyRequests,
        errors.LiteTopicQuotaExceeded,
        errors.LiteSubscriptionQuotaExceeded,
        errors.PropertiesTooLarge,
        errors.InternalError,
        errors.HaNotAvailable,
        errors.NotImplementedYet,
        errors.ConnectionFailed,
        errors.PersistenceTimeout,
        errors.Unsupported,
    )
}
"""Class that a client raises for a code. `StoreFull` shares 42900 with `TooManyRequests` and arrives as the latter."""

NEVER_SENT = frozenset(
    {
        0,  # CODE_UNSPECIFIED
        20000,  # OK and
        30000,  # MULTIPLE_RESULTS are not errors: handlers write them
        40018,  # ILLEGAL_POLLING_TIME: a short deadline makes a short poll (wire contract 9.3)
        40200,  # PAYMENT_REQUIRED: reserved
        43100,  # REQUEST_HEADER_FIELDS_TOO_LARGE: gRPC itself rejects them
        50000,  # INTERNAL_ERROR: reserved, 50001 is sent
        50402,  # SLAVE_PERSISTENCE_TIMEOUT waits for replicas
        50501,  # VERSION_UNSUPPORTED: reserved
        50502,  # VERIFY_FIFO_MESSAGE_UNSUPPORTED and
        60000,  # FAILED_TO_CONSUME_MESSAGE are sent by clients
    }
)

INTERNAL: tuple[type[errors.Error], ...] = (
    errors.StorePoisoned,
    errors.StoreCorrupted,
    errors.StoreLocked,
    errors.RecordsDamaged,
    errors.SettingsError,
    errors.PortInUse,
    errors.InvalidTransition,
)
"""Errors whose text names files, ports or histories: the caller gets InternalError with an id, the log has the text."""

RUST_KNOWS = {
    40019: 40000,
    40020: 40000,
    40021: 40000,
    40404: 40400,
    41302: 40000,
    42901: 42900,
    42902: 42900,
}
"""Rust's SDK 5.0.0 panics on codes that its older proto lacks; it gets an older code of the same family."""

_NO_LITE_NAMES = frozenset({"DOTNET", "HTTP"})
"""Languages whose SDKs report ILLEGAL_LITE_TOPIC as unsupported: C# and Node.js (wire contract 3.14)."""

_FAMILIES: tuple[tuple[int, int, type[errors.Error]], ...] = (
    (40000, 40100, errors.BadRequest),
    (40100, 40200, errors.Unauthorized),
    (40200, 40400, errors.Forbidden),
    (40400, 40500, errors.NotFound),
    (40800, 40900, errors.RequestTimeout),
    (41300, 41400, errors.PayloadTooLarge),
    (42800, 42900, errors.PreconditionFailed),
    (42900, 43000, errors.TooManyRequests),
    (43100, 43200, errors.BadRequest),
    (50100, 50200, errors.NotImplementedYet),
    (50402, 50500, errors.PersistenceTimeout),
    (50500, 50600, errors.Unsupported),
)


def code_for(code: int, language: str = "") -> int:
    """Returns the code that a client of this language (`RpcContext.language`) supports in place of `code`."""
    if code == errors.IllegalLiteTopic.code and language in _NO_LITE_NAMES:
        return errors.BadRequest.code
    return RUST_KNOWS.get(code, code) if language == "RUST" else code


def status_of(error: errors.Error, language: str = "") -> definition_pb2.Status:
    """Returns the status of an answer for an error. `language` is `RpcContext.language`."""
    code = cast("definition_pb2.Code.ValueType", code_for(error.code, language))
    return definition_pb2.Status(code=code, message=error.message)


def error_of(code: int, message: str) -> errors.Error:
    """Returns the error for an answer that is not OK; for a code without a class, that of its family."""
    kind = CLASS_OF_CODE.get(code)
    if kind is not None:
        return kind(message)
    for low, high, family in _FAMILIES:
        if low <= code < high:
            return family(f"{message} (code {code})")
    return errors.InternalError(f"{message} (code {code})")


def check(status: definition_pb2.Status) -> None:
    """Raises the error of a status. OK and MULTIPLE_RESULTS pass."""
    if status.code not in {20000, 30000}:
        raise error_of(status.code, status.message)
