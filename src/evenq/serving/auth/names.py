"""Which topics and groups a request names: the table from each call to the places in its message.

Used by `evenq.serving.auth.guard` for users whose rights depend on names. Every element of a request is looked at, not
only the first. A unit test walks the protos: a field that is called topic or group stands here, or in the test's list
of those that name nothing of the server's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from evenq.errors import BadRequest
from evenq.serving.auth.users import UserResource
from evenq.serving.rpc import Action
from evenq.wire.status import DecodeError
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as v2
from evenq.wire.stubs.evenq.v1 import (
    admin_pb2,
    assignment_pb2,
    backup_pb2,
    common_pb2,
    data_pb2,
    dead_letters_pb2,
    diagnosis_pb2,
    groups_pb2,
    staging_pb2,
)

__all__ = ["NAMES", "Named", "Names"]


REPLY_TAG = re.compile(r"reply-[0-9a-f]{24}\Z")
"""Tag of a client's replies (`evenq.client.loops.sending.replies`): random, so only its owner and its receivers
know it."""


class Named(NamedTuple):
    """One name in a request. With an action of its own it is not what the call as a whole is about: it is judged, and
    does not stand for a name that the call leaves out.
    """

    kind: UserResource
    name: str
    action: Action | None = None


class _Path:
    """One place of names in a message: attribute after attribute, some of them repeated."""

    __slots__ = ("action", "is_text", "kind", "place", "steps")

    def __init__(self, kind: UserResource, field_path: str, action: Action | None, request: type[Any]) -> None:
        self.kind, self.place, self.action = kind, field_path, action
        descriptor = request.DESCRIPTOR
        self.steps: list[tuple[str, bool]] = []
        for name in field_path.split("."):
            field = descriptor.fields_by_name[name]
            self.steps.append((name, field.is_repeated))
            descriptor = field.message_type
        self.is_text = descriptor is None
        """False: a v2 Resource."""

    def of(self, message: Any) -> list[Named]:
        """The names there, empty ones left out."""
        values = [message]
        for name, repeated in self.steps:
            if repeated:
                values = [inner for value in values for inner in getattr(value, name)]
            else:
                values = [getattr(value, name) for value in values]
        names = values if self.is_text else [value.name for value in values]
        return [Named(self.kind, name, self.action) for name in names if name]


class Names:
    """The names in the requests of one call."""

    def __init__(self, request: type[Any], *paths: str, client: str = "") -> None:
        """`paths`: `topic messages.topic`, `group group`, or with an action of its own, `topic a.b publish`. `client`:
        the place of the client id under which the call acts.
        """
        self.request = request
        self.client = client.split(".") if client else []
        self.paths: list[_Path] = []
        for path in paths:
            kind, field_path, *action = path.split(" ")
            self.paths.append(_Path(UserResource(kind), field_path, Action(action[0]) if action else None, request))

    def read(self, request: bytes, decoded: tuple[bytes, Any, Any] | None = None) -> Any:
        """The request as a message. `decoded`: the call's (`RpcContext`), used if it is of this request. Raises
        BadRequest.
        """
        if decoded is not None and decoded[0] is request:
            return decoded[1]
        try:
            return self.request.FromString(request)
        except DecodeError as error:
            raise BadRequest(f"the request does not decode as {self.request.__name__}: {error}") from error

    def asks_for_replies(self, message: Any) -> bool:
        """Does the call read what is addressed to one client alone: messages of one tag of 96 random bits, for no
        group?
        """
        if self.request is not data_pb2.PullRequest or message.group or message.filter.type != common_pb2.Filter.TAG:
            return False
        return bool(REPLY_TAG.match(message.filter.expression))

    def client_of(self, message: Any) -> str:
        """The client id under which the call acts, if the request names one."""
        if not self.client:
            return ""
        for step in self.client:
            message = getattr(message, step)
        return str(message)

    def of(self, message: Any) -> Sequence[Named]:
        """All that is named, each once."""
        names = [named for path in self.paths for named in path.of(message)]
        # A batch names one topic many times, and each name costs a look at the grants.
        return names if len(names) < 2 else list(dict.fromkeys(names))


def _rows(service: str, rows: Mapping[str, Names]) -> dict[str, Names]:
    return {service + name: names for name, names in rows.items()}


_TOPIC, _GROUP, _QUEUE = "topic topic", "group group", "topic message_queue.topic"
_CLIENT = "client_id"
_both: Callable[[type[Any]], Names] = lambda request: Names(request, _TOPIC, _GROUP)  # noqa: E731  a row of the table

NAMES: Mapping[str, Names] = {
    **_rows(
        "/apache.rocketmq.v2.MessagingService/",
        {
            "QueryRoute": Names(v2.QueryRouteRequest, _TOPIC),
            "Heartbeat": Names(v2.HeartbeatRequest, _GROUP),
            "SendMessage": Names(v2.SendMessageRequest, "topic messages.topic"),
            "QueryAssignment": _both(v2.QueryAssignmentRequest),
            "ReceiveMessage": Names(v2.ReceiveMessageRequest, _GROUP, _QUEUE),
            "AckMessage": _both(v2.AckMessageRequest),
            "ForwardMessageToDeadLetterQueue": _both(v2.ForwardMessageToDeadLetterQueueRequest),
            "PullMessage": Names(v2.PullMessageRequest, _GROUP, _QUEUE),
            "UpdateOffset": Names(v2.UpdateOffsetRequest, _GROUP, _QUEUE),
            "GetOffset": Names(v2.GetOffsetRequest, _GROUP, _QUEUE),
            "QueryOffset": Names(v2.QueryOffsetRequest, _QUEUE),
            "EndTransaction": Names(v2.EndTransactionRequest, _TOPIC),
            # A producer that publishes to a topic is asked about other producers' half messages.
            "Telemetry": Names(
                v2.TelemetryCommand,
                "topic settings.publishing.topics publish",
                "group settings.subscription.group",
                "topic settings.subscription.subscriptions.topic",
            ),
            "NotifyClientTermination": Names(v2.NotifyClientTerminationRequest, _GROUP),
            "ChangeInvisibleDuration": _both(v2.ChangeInvisibleDurationRequest),
            "RecallMessage": Names(v2.RecallMessageRequest, _TOPIC),
            "SyncLiteSubscription": _both(v2.SyncLiteSubscriptionRequest),
        },
    ),
    **_rows(
        "/apache.rocketmq.v2.Admin/",
        {
            "DescribeTopicStatus": Names(v2_admin.DescribeTopicStatusRequest, _TOPIC),
            "ListSubscription": _both(v2_admin.ListSubscriptionRequest),
            "DescribeSubscription": _both(v2_admin.DescribeSubscriptionRequest),
            "DeleteSubscription": _both(v2_admin.DeleteSubscriptionRequest),
            "DescribeGroupAccumulation": Names(v2_admin.DescribeGroupAccumulationRequest, _GROUP, "topic topics"),
            "ListConsumerConnection": _both(v2_admin.ListConsumerConnectionRequest),
            "ResetGroupOffset": _both(v2_admin.ResetGroupOffsetRequest),
            "QueryMessage": Names(v2_admin.ListMessageRequest, _TOPIC),
            "VerifyMessage": _both(v2_admin.VerifyMessageRequest),
            "AdminSendMessage": Names(v2_admin.AdminSendMessageRequest, _TOPIC),
            "GetConsumerRunningInfo": Names(v2_admin.GetConsumerRunningInfoRequest, _GROUP),
            "GetTopicRoute": Names(v2_admin.GetTopicRouteRequest, _TOPIC),
            "QueryTimeSpan": Names(v2_admin.QueryTimeSpanRequest, _GROUP, "topic topics"),
        },
    ),
    **_rows(
        "/evenq.v1.Data/",
        {
            "Publish": Names(data_pb2.PublishRequest, "topic queue.topic", "topic messages.topic"),
            "Pull": Names(data_pb2.PullRequest, _GROUP, "topic queue.topic", client=_CLIENT),
            "Scan": Names(data_pb2.ScanRequest, _GROUP, "topic queue.topic"),
            "QueryOffsets": Names(data_pb2.QueryOffsetsRequest, _GROUP, _TOPIC, "topic queues.topic"),
            "CommitOffsets": Names(data_pb2.CommitOffsetsRequest, _GROUP, "topic offsets.queue.topic", client=_CLIENT),
            "CountDeliveries": Names(data_pb2.CountDeliveriesRequest, _GROUP, "topic queue.topic", client=_CLIENT),
            "SendBack": Names(data_pb2.SendBackRequest, _GROUP, "topic queue.topic"),
        },
    ),
    **_rows(
        "/evenq.v1.Groups/",
        {
            "Session": Names(
                groups_pb2.SessionRequest,
                "group join.group",
                "topic join.member.subscriptions.topic",
                client="join.member.client_id",
            ),
            "ListMembers": Names(groups_pb2.ListMembersRequest, _GROUP),
            "LockQueues": Names(groups_pb2.LockQueuesRequest, _GROUP, client=_CLIENT),
            "UnlockQueues": Names(groups_pb2.UnlockQueuesRequest, _GROUP, client=_CLIENT),
        },
    ),
    **_rows(
        "/evenq.v1.Admin/",
        {
            "CreateTopic": Names(admin_pb2.CreateTopicRequest, _TOPIC),
            "DeleteTopic": Names(admin_pb2.DeleteTopicRequest, _TOPIC),
            "DescribeTopic": Names(admin_pb2.DescribeTopicRequest, _TOPIC),
            "ScaleTopic": Names(admin_pb2.ScaleTopicRequest, _TOPIC),
            "PermitTopic": Names(admin_pb2.PermitTopicRequest, _TOPIC),
            "CreateGroup": Names(admin_pb2.CreateGroupRequest, _GROUP),
            "DeleteGroup": Names(admin_pb2.DeleteGroupRequest, _GROUP),
            "DescribeGroup": Names(admin_pb2.DescribeGroupRequest, _GROUP),
            "DiagnoseGroup": Names(diagnosis_pb2.DiagnoseGroupRequest, _GROUP),
            "ResetOffsets": Names(
                admin_pb2.ResetOffsetsRequest,
                _GROUP,
                _TOPIC,
                "topic queues.topic operate",
                "group source_group describe",
            ),
            "FindMessages": Names(
                admin_pb2.FindMessagesRequest,
                _TOPIC,
                "topic queue.topic consume",
                "topic positions.queue.topic consume",
            ),
            "TraceMessage": Names(admin_pb2.TraceMessageRequest, _TOPIC),
        },
    ),
    **_rows("/evenq.v1.Backup/", {"Fetch": Names(backup_pb2.FetchBackupRequest)}),
    **_rows(
        "/evenq.v1.DeadLetters/",
        {
            "List": Names(dead_letters_pb2.ListDeadLettersRequest, _GROUP),
            "Replay": Names(dead_letters_pb2.ReplayDeadLettersRequest, _GROUP, "topic to_topic publish"),
        },
    ),
    **_rows(
        "/evenq.v1.Staging/",
        {
            "Begin": Names(staging_pb2.BeginRequest, "topic topics"),
            "Stage": Names(staging_pb2.StageRequest, _TOPIC),
            "Decide": Names(staging_pb2.DecideRequest, "topic topics"),
            "Abandon": Names(staging_pb2.AbandonRequest, "topic topics"),
        },
    ),
    **_rows(
        "/evenq.v1.Assignment/",
        {
            "Query": Names(assignment_pb2.AssignmentRequest, _GROUP, _TOPIC, client=_CLIENT),
            "SetMessageRequestMode": _both(assignment_pb2.SetMessageRequestModeRequest),
            "GetMessageRequestMode": _both(assignment_pb2.GetMessageRequestModeRequest),
            "Explain": _both(assignment_pb2.ExplainRequest),
            "Simulate": _both(assignment_pb2.SimulateRequest),
        },
    ),
}
"""`/package.Service/Rpc` -> where its requests name topics and groups."""
