"""Limits on the texts of requests that the broker keeps.

Texts about a client stay in tables while the client lives, and longer in journal and log. `answers.parsed` checks every
request with a row in `KEPT`; the server checks the headers of calls (`evenq.serving.rpc`). A test requires each text
field of a client's request to be in `KEPT`, or in the test's list of texts that are bounded elsewhere or not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from evenq.errors import BadRequest, IllegalGroup, IllegalTopic
from evenq.model.names import CLIENT_LENGTH_MAX, text_problem
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, data_pb2, groups_pb2
from evenq_broker.core.delivery.tags import EXPRESSION_LENGTH_MAX

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
