"""Answers of the v2 calls by hand: the same few bytes again and again, without a protobuf object."""

from __future__ import annotations

import logging
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from evenq.errors import BadRequest, Error, InternalError
from evenq.serving.rpc import RpcContext
from evenq.wire.status import INTERNAL, status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.state.frames import OK_STATUS
from evenq_broker.rpc.request_texts import KEPT, must_fit

__all__ = ["OK_STATUS", "code_of", "for_caller", "is_public", "parsed", "several", "status_frame"]
log = logging.getLogger(__name__)

_M = TypeVar("_M", bound=Message)


def parsed(kind: type[_M], request: bytes, context: RpcContext | None = None) -> _M:
    """The request as a message of this kind; the server's, where that has decoded it. Raises BadRequest for bytes that
    are none, and for texts that are too long to be kept.
    """
    if context is not None and (decoded := context.decoded) is not None and decoded[0] is request:
        message = cast("_M", decoded[1])
    else:
        try:
            message = kind.FromString(request)
        except DecodeError as error:
            raise BadRequest(f"the request of {len(request)} bytes is no {kind.__name__}: {error}") from error
    if kind in KEPT:
        must_fit(kind, message)
    return message


def status_frame(error: Error, language: str = "") -> bytes:
    """An encoded `Status` of an error."""
    return status_of(error, language).SerializeToString()


def is_public(error: Error) -> bool:
    """False for errors whose text is not for callers (they name files or histories); raise those to the server."""
    return not isinstance(error, INTERNAL)


def for_caller(error: Error) -> Error:
    """The error of a part of a request, whose other parts are answered; in place of one that is not for callers another
    one, and the log has the text.
    """
    if is_public(error):
        return error
    log.error("a part of a request failed", exc_info=error)
    return InternalError("the broker could not do it; its log says why")


def several() -> bytes:
    """The `Status` of a request whose entries differ."""
    status = definition_pb2.Status(
        code=definition_pb2.MULTIPLE_RESULTS, message="the entries differ; see each one's status"
    )
    return status.SerializeToString()


def code_of(status: bytes) -> bytes:
    """The code of an encoded `Status` as its varint: equal codes are equal bytes."""
    end = 1
    while end < len(status) and status[end] > 127:
        end += 1
    return status[1 : end + 1]
