"""Requests and answers of calls, and answers of other brokers. Frequent ones are encoded without protobuf objects.

Limits on texts: those about a client stay in tables while the client lives, and longer in journal and log. `parsed`
checks every request with a row in `KEPT`; the server checks the headers of calls (`evenq.serving.rpc`). A test requires
each text field of a client's request to be in `KEPT`, or in the test's list of texts that are bounded elsewhere or not
kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from evenq.errors import BadRequest, Error, IllegalGroup, IllegalTopic, InternalError
from evenq.model.names import CLIENT_LENGTH_MAX, text_problem
from evenq.serving.rpc import RpcContext
from evenq.wire.status import INTERNAL, check, status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, data_pb2, groups_pb2
from evenq_broker.core.delivery.tags import EXPRESSION_LENGTH_MAX
from evenq_broker.core.state.frames import OK_STATUS

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
TEXTS_MAX = 10_000
"""Most entries of one list, such as the topics of a subscription."""
TEXTS_BYTES_MAX = 1 << 20
"""Most characters of all kept texts of one request."""


class KeptText:
    """The path of a text in a request: attributes, some of which may be lists."""

    __slots__ = ("error", "length_max", "path", "printable", "steps", "what")

    def __init__(self, path: str, length_max: int = CLIENT_LENGTH_MAX, *, printable: bool = True) -> None:
        self.path = path
        self.steps = path.split(".")
        last = path.removesuffix(".name").rpartition(".")[2].removesuffix("s")
        self.error = {"topic": IllegalTopic, "group": IllegalGroup}.get(last, BadRequest)
        """The same error as for a name that breaks another rule (wire contract 3.7)."""
        self.what = f"the {last} name ({path})" if last in {"topic", "group"} else path
        self.length_max = length_max
        self.printable = printable

    def of(self, message: Any) -> Sequence[str]:
        """Returns the texts of a request. Raises BadRequest for a list that is too long."""
        values = [message]
        for step in self.steps:
            found: list[Any] = []
            for value in values:
                inner = getattr(value, step)
                if isinstance(inner, str | Message):
                    found.append(inner)
                else:
                    found.extend(inner)
            if len(found) > TEXTS_MAX:
                raise BadRequest(f"{self.path} has {len(found)} entries, the limit is {TEXTS_MAX}; name fewer")
            values = found
        return values

    def problem(self, text: str) -> str | None:
        """Returns the fault of the text as a sentence; None: it may be kept."""
        if self.printable:
            return text_problem(self.what, text, self.length_max)
        if len(text) <= self.length_max:
            return None
        return f"{self.path} has {len(text)} characters, the limit is {self.length_max}; give a shorter one"


_FILTER = "subscriptions.filter.expression"
KEPT: Mapping[type[Any], Sequence[KeptText]] = {
    v2.HeartbeatRequest: [KeptText("group.name"), KeptText("group.resource_namespace")],
    v2.NotifyClientTerminationRequest: [KeptText("group.name"), KeptText("group.resource_namespace")],
    v2.TelemetryCommand: [
        KeptText("settings.publishing.topics.name"),
        KeptText("settings.subscription.group.name"),
        KeptText("settings.subscription.subscriptions.topic.name"),
        KeptText("settings.subscription.subscriptions.expression.expression", EXPRESSION_LENGTH_MAX, printable=False),
    ],
    v2.ReceiveMessageRequest: [
        KeptText("attempt_id"),
        KeptText("group.name"),
        KeptText("message_queue.topic.name"),
    ],
    v2.SyncLiteSubscriptionRequest: [KeptText("lite_topic_set"), KeptText("group.name"), KeptText("topic.name")],
    groups_pb2.SessionRequest: [
        KeptText("join.group"),
        *(
            KeptText(f"join.member.{name}")
            for name in ("client_id", "language", "version", "protocol", "zone", "instance", "address", "strategy")
        ),
        KeptText("join.member.subscriptions.topic"),
        KeptText(f"join.member.{_FILTER}", EXPRESSION_LENGTH_MAX, printable=False),
    ],
    groups_pb2.LockQueuesRequest: [KeptText("client_id"), KeptText("group")],
    groups_pb2.UnlockQueuesRequest: [KeptText("client_id"), KeptText("group")],
    data_pb2.PullRequest: [KeptText("client_id")],
    data_pb2.CommitOffsetsRequest: [KeptText("client_id")],
    data_pb2.CountDeliveriesRequest: [KeptText("client_id")],
    admin_pb2.CreateTopicRequest: [KeptText("topic"), KeptText("uid")],
    admin_pb2.CreateGroupRequest: [KeptText("group"), KeptText("strategy"), KeptText("start_from")],
    assignment_pb2.AssignmentRequest: [KeptText("client_id"), KeptText("group"), KeptText("topic")],
}


def must_fit(kind: type[Any], message: Any) -> None:
    """Raises BadRequest (of a name: IllegalTopic, IllegalGroup) for a text that is too long or not printable."""
    total = 0
    for place in KEPT[kind]:
        for text in place.of(message):
            problem = place.problem(text)
            if problem:
                raise place.error(problem)
            total += len(text)
    if total > TEXTS_BYTES_MAX:
        raise BadRequest(
            f"the request names topics and filters of {total} characters in all, the limit is {TEXTS_BYTES_MAX}; "
            "name fewer"
        )


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
