"""The access table: what each call of the broker touches and does, for the day that authentication is on.

`rpc` makes the `Rpc` of one call; without a row here it raises, and a unit test walks all services of the protos.
"""

from __future__ import annotations

from typing import Any

from evenq.serving.rpc import Access, Action, Bidi, CallKind, Resource, Rpc, ServerStream, Unary

__all__ = ["ACCESS", "ADMIN_V2", "MESSAGING", "rpc"]

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
ADMIN_V2 = "/apache.rocketmq.v2.Admin/"

_TOPIC, _GROUP, _BOTH = Resource.TOPIC, Resource.GROUP, Resource.TOPIC_AND_GROUP
_CLUSTER, _CLIENT, _BROKER, _NONE = Resource.CLUSTER, Resource.CLIENT, Resource.BROKER, Resource.NONE

_ROWS: dict[str, dict[str, tuple[Resource, Action]]] = {
    MESSAGING: {
        "QueryRoute": (_TOPIC, Action.DESCRIBE),
        "Heartbeat": (_CLIENT, Action.CONSUME),
        "SendMessage": (_TOPIC, Action.PUBLISH),
        "QueryAssignment": (_BOTH, Action.CONSUME),
        "ReceiveMessage": (_BOTH, Action.CONSUME),
        "AckMessage": (_BOTH, Action.CONSUME),
        "ForwardMessageToDeadLetterQueue": (_BOTH, Action.CONSUME),
        "PullMessage": (_BOTH, Action.CONSUME),
        "UpdateOffset": (_BOTH, Action.CONSUME),
        "GetOffset": (_BOTH, Action.CONSUME),
        "QueryOffset": (_TOPIC, Action.DESCRIBE),
        "EndTransaction": (_TOPIC, Action.PUBLISH),
        "Telemetry": (_CLIENT, Action.CONSUME),
        "NotifyClientTermination": (_CLIENT, Action.CONSUME),
        "ChangeInvisibleDuration": (_BOTH, Action.CONSUME),
        "RecallMessage": (_TOPIC, Action.PUBLISH),
        "SyncLiteSubscription": (_BOTH, Action.CONSUME),
    },
    ADMIN_V2: {
        "ChangeLogLevel": (_BROKER, Action.OPERATE),
        "DescribeTopicStatus": (_TOPIC, Action.DESCRIBE),
        "ListSubscription": (_GROUP, Action.DESCRIBE),
        "DescribeSubscription": (_GROUP, Action.DESCRIBE),
        "DeleteSubscription": (_BOTH, Action.DELETE),
        "DescribeGroupAccumulation": (_GROUP, Action.DESCRIBE),
        "ListConsumerConnection": (_GROUP, Action.DESCRIBE),
        "ResetGroupOffset": (_BOTH, Action.OPERATE),
        "QueryMessage": (_TOPIC, Action.CONSUME),
        "PrintThreadStackTrace": (_CLIENT, Action.OPERATE),
        "VerifyMessage": (_BOTH, Action.OPERATE),
        "AdminSendMessage": (_TOPIC, Action.PUBLISH),
        "GetConsumerRunningInfo": (_GROUP, Action.DESCRIBE),
        "GetTopicRoute": (_TOPIC, Action.DESCRIBE),
        "QueryTimeSpan": (_GROUP, Action.DESCRIBE),
        "GetProxyRuntimeStats": (_BROKER, Action.DESCRIBE),
    },
    "/evenq.v1.Data/": {
        "Publish": (_TOPIC, Action.PUBLISH),
        "Pull": (_BOTH, Action.CONSUME),
        "Scan": (_TOPIC, Action.CONSUME),
        "QueryOffsets": (_BOTH, Action.DESCRIBE),
        "CommitOffsets": (_BOTH, Action.CONSUME),
        "CountDeliveries": (_BOTH, Action.CONSUME),
        "SendBack": (_BOTH, Action.CONSUME),
        "RelayCheck": (_CLUSTER, Action.INTERNAL),
    },
    "/evenq.v1.Groups/": {
        "Session": (_GROUP, Action.CONSUME),
        "ListMembers": (_GROUP, Action.DESCRIBE),
        "LockQueues": (_GROUP, Action.CONSUME),
        "UnlockQueues": (_GROUP, Action.CONSUME),
    },
    "/evenq.v1.Admin/": {
        "CreateTopic": (_TOPIC, Action.CREATE),
        "DeleteTopic": (_TOPIC, Action.DELETE),
        "ListTopics": (_CLUSTER, Action.DESCRIBE),
        "DescribeTopic": (_TOPIC, Action.DESCRIBE),
        "ScaleTopic": (_TOPIC, Action.OPERATE),
        "PermitTopic": (_TOPIC, Action.OPERATE),
        "DrainBroker": (_BROKER, Action.OPERATE),
        "ForgetBroker": (_BROKER, Action.OPERATE),
        "MoveLeader": (_BROKER, Action.OPERATE),
        "ChangeCopies": (_BROKER, Action.OPERATE),
        "ElectUnclean": (_BROKER, Action.OPERATE),
        "CreateGroup": (_GROUP, Action.CREATE),
        "DeleteGroup": (_GROUP, Action.DELETE),
        "ListGroups": (_CLUSTER, Action.DESCRIBE),
        "DescribeGroup": (_GROUP, Action.DESCRIBE),
        "DiagnoseGroup": (_GROUP, Action.DESCRIBE),
        "ListBrokers": (_CLUSTER, Action.DESCRIBE),
        "DescribeCluster": (_CLUSTER, Action.DESCRIBE),
        "ResetOffsets": (_BOTH, Action.OPERATE),
        "FindMessages": (_TOPIC, Action.CONSUME),
        "TraceMessage": (_TOPIC, Action.DESCRIBE),
        "ListClients": (_CLUSTER, Action.DESCRIBE),
    },
    "/evenq.v1.Backup/": {
        "Fetch": (_BOTH, Action.OPERATE),  # it names none, so it is for those who may operate all
    },
    "/evenq.v1.DeadLetters/": {
        "List": (_GROUP, Action.DESCRIBE),
        "Replay": (_GROUP, Action.OPERATE),
    },
    "/evenq.v1.Peers/": {
        "Interest": (_CLUSTER, Action.INTERNAL),
        "GroupSettings": (_CLUSTER, Action.INTERNAL),
        "LiteSubscriptions": (_CLUSTER, Action.INTERNAL),
        "LiteReady": (_CLUSTER, Action.INTERNAL),
        "Clients": (_CLUSTER, Action.INTERNAL),
        "CatalogChanges": (_CLUSTER, Action.INTERNAL),
    },
    "/evenq.v1.Replication/": {
        "Link": (_CLUSTER, Action.INTERNAL),
        "FetchSnapshot": (_CLUSTER, Action.INTERNAL),
        "FetchRecords": (_CLUSTER, Action.INTERNAL),
    },
    "/evenq.v1.Staging/": {
        "Begin": (_TOPIC, Action.PUBLISH),
        "Stage": (_TOPIC, Action.PUBLISH),
        "Decide": (_TOPIC, Action.PUBLISH),
        "Abandon": (_TOPIC, Action.PUBLISH),
        "RollForward": (_CLUSTER, Action.INTERNAL),
        "Outcome": (_CLUSTER, Action.INTERNAL),
    },
    "/evenq.v1.Assignment/": {
        "Query": (_BOTH, Action.CONSUME),
        "SetMessageRequestMode": (_BOTH, Action.OPERATE),
        "GetMessageRequestMode": (_BOTH, Action.DESCRIBE),
        "Explain": (_BOTH, Action.DESCRIBE),
        "Simulate": (_BOTH, Action.DESCRIBE),
    },
}

ACCESS: dict[str, Access] = {
    service + name: Access(resource, action)
    for service, rows in _ROWS.items()
    for name, (resource, action) in rows.items()
}
"""`/package.Service/Rpc` -> what the call touches and does."""


def rpc(method: str, handler: Unary | ServerStream | Bidi, response: type[Any], kind: CallKind = CallKind.UNARY) -> Rpc:
    """One call with its row. Raises KeyError if the table has none."""
    return Rpc(method=method, kind=kind, handler=handler, response=response, access=ACCESS[method])
