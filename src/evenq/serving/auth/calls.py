"""The calls of all servers, one row each: what a call touches and does, and where its request names topics and groups.

`evenq.serving.auth.guard` decides by a row, `rpc` makes a server's call from it, and a call without a row cannot be
served. Types and direction of streaming are those of the proto. Tests walk the protos: each call has a row, and each
field called topic or group is in it, or in the test's list of fields that name nothing of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from evenq.serving.auth.names import Names
from evenq.serving.rpc import Access, Action, Bidi, CallKind, PlainReader, Resource, Rpc, ServerStream, Unary
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as v2
from evenq.wire.stubs.evenq.v1 import (
    admin_pb2,
    assignment_pb2,
    backup_pb2,
    data_pb2,
    dead_letters_pb2,
    groups_pb2,
    peers_pb2,
    registry_pb2,
    replication_pb2,
    staging_pb2,
)

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
ADMIN_V2 = "/apache.rocketmq.v2.Admin/"


@dataclass(frozen=True, slots=True)
class CallRow:
    """One row of the table."""

    access: Access
    names: Names | None
    """Where a request names topics and groups; None: in no field, and the right to the resource decides."""
    directed: bool
    """True: about one broker, and sent on to the broker that its header names (`evenq_broker.rpc.cluster.directing`).
    Other calls of the public protocol find their broker by a queue or handle. A call whose handler checks grants again
    must not be directed: the next broker sees a server, and only the name of the user. By that name the guard there
    leaves out topics of `Session` and `LockQueues`.
    """
    kind: CallKind
    response: type[Any]


def _row(
    resource: Resource,
    action: Action,
    *paths: str,
    client: str = "",
    names_none: bool = False,
    directed: bool = False,
    audited: bool = False,
) -> Callable[[Any], CallRow]:
    """`paths`, `client`: see `Names`. `names_none`: the call is about every topic or group, so its request names none.
    `audited`: see `Access`. The result takes the descriptor of the method.
    """

    def call(method: Any) -> CallRow:
        named = paths or names_none
        names = Names(GetMessageClass(method.input_type), *paths, client=client) if named else None
        kind = CallKind.SERVER_STREAM if method.server_streaming else CallKind.UNARY
        if method.client_streaming:
            kind = CallKind.BIDI
        return CallRow(Access(resource, action, audited), names, directed, kind, GetMessageClass(method.output_type))

    return call


_TOPIC, _GROUP, _BOTH = Resource.TOPIC, Resource.GROUP, Resource.TOPIC_AND_GROUP
_CLUSTER, _CLIENT, _BROKER = Resource.CLUSTER, Resource.CLIENT, Resource.BROKER
_BY_TOPIC, _BY_GROUP, _BY_QUEUE = "topic topic", "group group", "topic message_queue.topic"

_ROWS: Mapping[Any, Mapping[str, Callable[[Any], CallRow]]] = {
    v2.DESCRIPTOR.services_by_name["MessagingService"]: {
        "QueryRoute": _row(_TOPIC, Action.DESCRIBE, _BY_TOPIC),
        "Heartbeat": _row(_CLIENT, Action.CONSUME, _BY_GROUP, directed=True),
        "SendMessage": _row(_TOPIC, Action.PUBLISH, "topic messages.topic"),
        "QueryAssignment": _row(_BOTH, Action.CONSUME, _BY_TOPIC, _BY_GROUP),
        "ReceiveMessage": _row(_BOTH, Action.CONSUME, _BY_GROUP, _BY_QUEUE),
        "AckMessage": _row(_BOTH, Action.CONSUME, _BY_TOPIC, _BY_GROUP),
        "ForwardMessageToDeadLetterQueue": _row(_BOTH, Action.CONSUME, _BY_TOPIC, _BY_GROUP),
        "PullMessage": _row(_BOTH, Action.CONSUME, _BY_GROUP, _BY_QUEUE),
        "UpdateOffset": _row(_BOTH, Action.CONSUME, _BY_GROUP, _BY_QUEUE),
        "GetOffset": _row(_BOTH, Action.CONSUME, _BY_GROUP, _BY_QUEUE),
        "QueryOffset": _row(_TOPIC, Action.DESCRIBE, _BY_QUEUE),
        "EndTransaction": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC),
        # A producer that publishes to a topic gets checks of other producers' half messages.
        "Telemetry": _row(
            _CLIENT,
            Action.CONSUME,
            "topic settings.publishing.topics publish",
            "group settings.subscription.group",
            "topic settings.subscription.subscriptions.topic",
        ),
        "NotifyClientTermination": _row(_CLIENT, Action.CONSUME, _BY_GROUP, directed=True),
        "ChangeInvisibleDuration": _row(_BOTH, Action.CONSUME, _BY_TOPIC, _BY_GROUP),
        "RecallMessage": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC),
        "SyncLiteSubscription": _row(_BOTH, Action.CONSUME, _BY_TOPIC, _BY_GROUP),
    },
    v2_admin.DESCRIPTOR.services_by_name["Admin"]: {
        "ChangeLogLevel": _row(_BROKER, Action.OPERATE),
        "DescribeTopicStatus": _row(_TOPIC, Action.DESCRIBE, _BY_TOPIC),
        "ListSubscription": _row(_GROUP, Action.DESCRIBE, _BY_TOPIC, _BY_GROUP),
        "DescribeSubscription": _row(_GROUP, Action.DESCRIBE, _BY_TOPIC, _BY_GROUP),
        "DeleteSubscription": _row(_BOTH, Action.DELETE, _BY_TOPIC, _BY_GROUP),
        "DescribeGroupAccumulation": _row(_GROUP, Action.DESCRIBE, _BY_GROUP, "topic topics"),
        "ListConsumerConnection": _row(_GROUP, Action.DESCRIBE, _BY_TOPIC, _BY_GROUP),
        "ResetGroupOffset": _row(_BOTH, Action.OPERATE, _BY_TOPIC, _BY_GROUP),
        "QueryMessage": _row(_TOPIC, Action.CONSUME, _BY_TOPIC),
        "PrintThreadStackTrace": _row(_CLIENT, Action.OPERATE),
        "VerifyMessage": _row(_BOTH, Action.OPERATE, _BY_TOPIC, _BY_GROUP),
        "AdminSendMessage": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC),
        "GetConsumerRunningInfo": _row(_GROUP, Action.DESCRIBE, _BY_GROUP),
        "GetTopicRoute": _row(_TOPIC, Action.DESCRIBE, _BY_TOPIC),
        "QueryTimeSpan": _row(_GROUP, Action.DESCRIBE, _BY_GROUP, "topic topics"),
        "GetProxyRuntimeStats": _row(_BROKER, Action.DESCRIBE),
    },
    data_pb2.DESCRIPTOR.services_by_name["Data"]: {
        "Publish": _row(_TOPIC, Action.PUBLISH, "topic queue.topic", "topic messages.topic", directed=True),
        "Pull": _row(_BOTH, Action.CONSUME, _BY_GROUP, "topic queue.topic", client="client_id", directed=True),
        "Scan": _row(_TOPIC, Action.CONSUME, _BY_GROUP, "topic queue.topic", directed=True),
        "QueryOffsets": _row(_BOTH, Action.DESCRIBE, _BY_GROUP, _BY_TOPIC, "topic queues.topic", directed=True),
        "CommitOffsets": _row(
            _BOTH, Action.CONSUME, _BY_GROUP, "topic offsets.queue.topic", client="client_id", directed=True
        ),
        "CountDeliveries": _row(
            _BOTH, Action.CONSUME, _BY_GROUP, "topic queue.topic", client="client_id", directed=True
        ),
        "SendBack": _row(_BOTH, Action.CONSUME, _BY_GROUP, "topic queue.topic", directed=True),
        "Transact": _row(
            _BOTH, Action.CONSUME, _BY_GROUP, "topic acks.topic", "topic messages.topic publish", directed=True
        ),
        "RelayCheck": _row(_CLUSTER, Action.INTERNAL),
    },
    groups_pb2.DESCRIPTOR.services_by_name["Groups"]: {
        "Session": _row(
            _GROUP,
            Action.CONSUME,
            "group join.group",
            "topic join.member.subscriptions.topic",
            client="join.member.client_id",
            directed=True,
        ),
        "ListMembers": _row(_GROUP, Action.DESCRIBE, _BY_GROUP, directed=True),
        # Queues of a topic without the right are answered as not granted.
        "LockQueues": _row(_GROUP, Action.CONSUME, _BY_GROUP, "topic queues.topic", client="client_id", directed=True),
        "UnlockQueues": _row(_GROUP, Action.CONSUME, _BY_GROUP, client="client_id", directed=True),
    },
    admin_pb2.DESCRIPTOR.services_by_name["Admin"]: {
        "CreateTopic": _row(_TOPIC, Action.CREATE, _BY_TOPIC),
        "DeleteTopic": _row(_TOPIC, Action.DELETE, _BY_TOPIC),
        "ListTopics": _row(_CLUSTER, Action.DESCRIBE),
        "DescribeTopic": _row(_TOPIC, Action.DESCRIBE, _BY_TOPIC),
        "ScaleTopic": _row(_TOPIC, Action.OPERATE, _BY_TOPIC),
        "PermitTopic": _row(_TOPIC, Action.OPERATE, _BY_TOPIC),
        "DrainBroker": _row(_BROKER, Action.OPERATE),
        "ForgetBroker": _row(_BROKER, Action.OPERATE),
        "MoveLeader": _row(_BROKER, Action.OPERATE),
        "ChangeCopies": _row(_BROKER, Action.OPERATE),
        "ElectUnclean": _row(_BROKER, Action.OPERATE),
        "CreateGroup": _row(_GROUP, Action.CREATE, _BY_GROUP),
        "DeleteGroup": _row(_GROUP, Action.DELETE, _BY_GROUP),
        "ListGroups": _row(_CLUSTER, Action.DESCRIBE),
        "DescribeGroup": _row(_GROUP, Action.DESCRIBE, _BY_GROUP),
        "DiagnoseGroup": _row(_GROUP, Action.DESCRIBE, _BY_GROUP),
        "ListBrokers": _row(_CLUSTER, Action.DESCRIBE),
        "DescribeCluster": _row(_CLUSTER, Action.DESCRIBE),
        "ResetOffsets": _row(
            _BOTH, Action.OPERATE, _BY_GROUP, _BY_TOPIC, "topic queues.topic operate", "group source_group describe"
        ),
        "FindMessages": _row(
            _TOPIC, Action.CONSUME, _BY_TOPIC, "topic queue.topic consume", "topic positions.queue.topic consume"
        ),
        "TraceMessage": _row(_TOPIC, Action.DESCRIBE, _BY_TOPIC),
        "ListClients": _row(_CLUSTER, Action.DESCRIBE),
        "ListScheduled": _row(_TOPIC, Action.DESCRIBE, _BY_TOPIC),
        "PutSchedule": _row(_TOPIC, Action.PUBLISH, "topic schedule.topic", audited=True),
        "ListSchedules": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC),
        "PauseSchedule": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC, audited=True),
        "RunSchedule": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC, audited=True),
        "DeleteSchedule": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC, audited=True),
        "MoveSchedule": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC, audited=True),
        # Any user: it names its caller alone.
        "DescribeCaller": _row(_CLIENT, Action.DESCRIBE, names_none=True),
    },
    backup_pb2.DESCRIPTOR.services_by_name["Backup"]: {
        "Fetch": _row(_BOTH, Action.OPERATE, names_none=True, directed=True),  # requires the right to operate all
    },
    dead_letters_pb2.DESCRIPTOR.services_by_name["DeadLetters"]: {
        "List": _row(_GROUP, Action.DESCRIBE, _BY_GROUP),
        "Replay": _row(_GROUP, Action.OPERATE, _BY_GROUP, "topic to_topic publish"),
    },
    peers_pb2.DESCRIPTOR.services_by_name["Peers"]: {
        "Interest": _row(_CLUSTER, Action.INTERNAL),
        "GroupSettings": _row(_CLUSTER, Action.INTERNAL),
        "LiteSubscriptions": _row(_CLUSTER, Action.INTERNAL),
        "LiteReady": _row(_CLUSTER, Action.INTERNAL),
        "Clients": _row(_CLUSTER, Action.INTERNAL),
        "CatalogChanges": _row(_CLUSTER, Action.INTERNAL),
        "GiveSchedule": _row(_CLUSTER, Action.INTERNAL),
    },
    replication_pb2.DESCRIPTOR.services_by_name["Replication"]: {
        "Link": _row(_CLUSTER, Action.INTERNAL),
        "FetchSnapshot": _row(_CLUSTER, Action.INTERNAL),
        "FetchRecords": _row(_CLUSTER, Action.INTERNAL),
    },
    staging_pb2.DESCRIPTOR.services_by_name["Staging"]: {
        "Begin": _row(_TOPIC, Action.PUBLISH, "topic topics", directed=True),
        "Stage": _row(_TOPIC, Action.PUBLISH, _BY_TOPIC, directed=True),
        "Decide": _row(_TOPIC, Action.PUBLISH, "topic topics", directed=True),
        "Abandon": _row(_TOPIC, Action.PUBLISH, "topic topics", directed=True),
        "RollForward": _row(_CLUSTER, Action.INTERNAL),
        "Outcome": _row(_CLUSTER, Action.INTERNAL),
    },
    assignment_pb2.DESCRIPTOR.services_by_name["Assignment"]: {
        "Report": _row(_BROKER, Action.INTERNAL),
        "Query": _row(_BOTH, Action.CONSUME, _BY_GROUP, _BY_TOPIC, client="client_id"),
        "SetMessageRequestMode": _row(_BOTH, Action.OPERATE, _BY_TOPIC, _BY_GROUP),
        "GetMessageRequestMode": _row(_BOTH, Action.DESCRIBE, _BY_TOPIC, _BY_GROUP),
        "Explain": _row(_BOTH, Action.DESCRIBE, _BY_TOPIC, _BY_GROUP),
        "Simulate": _row(_BOTH, Action.DESCRIBE, _BY_TOPIC, _BY_GROUP),
    },
    registry_pb2.DESCRIPTOR.services_by_name["Registry"]: {
        "Register": _row(_BROKER, Action.INTERNAL),
        "Heartbeat": _row(_BROKER, Action.INTERNAL),
        "Unregister": _row(_BROKER, Action.INTERNAL),
        "GetRoutes": _row(_CLUSTER, Action.DESCRIBE),
        "WatchRoutes": _row(_CLUSTER, Action.DESCRIBE),
    },
}

CALLS: Mapping[str, CallRow] = {
    f"/{service.full_name}/{name}": row(service.methods_by_name[name])
    for service, rows in _ROWS.items()
    for name, row in rows.items()
}
"""`/package.Service/Rpc` -> its row."""


def rpc(method: str, handler: Unary | ServerStream | Bidi, *, plain: PlainReader | None = None) -> Rpc:
    """Returns one call with its row of the table. Raises KeyError if there is none."""
    call = CALLS[method]
    return Rpc(method=method, kind=call.kind, handler=handler, response=call.response, access=call.access, plain=plain)
