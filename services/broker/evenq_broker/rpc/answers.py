"""Requests and answers of calls, and answers of other brokers. Frequent ones are encoded without protobuf objects."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from evenq.errors import BadRequest, Error, InternalError
from evenq.serving.rpc import RpcContext
from evenq.wire.status import INTERNAL, check, status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.state.frames import OK_STATUS
from evenq_broker.rpc.request_texts import KEPT, must_fit

__all__ = [
    "OK",
    "OK_STATUS",
    "answer_of",
    "answers_of",
    "code_of",
    "for_caller",
    "is_public",
    "parsed",
    "several",
    "status_frame",
]
log = logging.getLogger(__name__)
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")

_M = TypeVar("_M", bound=Message)


class Silent(Protocol):
    """Names of brokers: a list, or a field of a message."""

    def append(self, name: str, /) -> None: ...


def parsed(kind: type[_M], request: bytes, context: RpcContext | None = None) -> _M:
    """Returns the decoded request. Raises BadRequest if it is not valid, or has texts that are too long to be kept."""
    if context is not None and (decoded := context.decoded) is not None and decoded[0] is request:
        message = cast("_M", decoded[1])
    else:
        try:
            message = kind.FromString(request)
        except DecodeError as error:
            raise BadRequest(f"the request of {len(request)} bytes is not a valid {kind.__name__}: {error}") from error
    if kind in KEPT:
        must_fit(kind, message)
    return message


def answer_of(kind: type[_M], result: bytes | Error) -> _M:
    """Returns the response of another broker. Raises the error of the call, or that of its status."""
    if isinstance(result, Error):
        raise result
    response = kind.FromString(result)
    check(response.status)  # type: ignore[attr-defined]  # each has one
    return response


def answers_of(kind: type[_M], answers: Iterable[tuple[str, bytes | Error]], *, silent: Silent) -> Iterator[_M]:
    """Yields the responses of the brokers that answer; appends the others to `silent`. Raises the error of a status."""
    for name, result in answers:
        if isinstance(result, Error):
            silent.append(name)
        else:
            yield answer_of(kind, result)


def status_frame(error: Error, language: str = "") -> bytes:
    return status_of(error, language).SerializeToString()


def is_public(error: Error) -> bool:
    """Returns False for errors whose text is not for callers, because it names internals; raise them to the server."""
    return not isinstance(error, INTERNAL)


def for_caller(error: Error) -> Error:
    """Returns the error of a part of a request; one that is not for callers is logged and replaced."""
    if is_public(error):
        return error
    log.error("a part of a request failed", exc_info=error)
    return InternalError("the broker could not carry out a part of the request; see its log for the reason")


def several() -> bytes:
    """Returns the `Status` of a request whose entries differ."""
    status = definition_pb2.Status(
        code=definition_pb2.MULTIPLE_RESULTS, message="the entries differ; see each one's status"
    )
    return status.SerializeToString()


def code_of(status: bytes) -> bytes:
    """Returns the code of an encoded `Status` as its varint: equal codes are equal bytes."""
    end = 1
    while end < len(status) and status[end] > 127:
        end += 1
    return status[1 : end + 1]
