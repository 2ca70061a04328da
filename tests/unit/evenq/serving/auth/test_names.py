"""The table of names against the protos: no field that names a topic or group is forgotten."""

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from evenq.errors import BadRequest
from evenq.serving.auth.calls import CALLS
from evenq.serving.auth.names import Named
from evenq.serving.auth.users import UserResource
from evenq.serving.rpc import Action, Resource
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, data_pb2, dead_letters_pb2, groups_pb2

ACCESS = {method: call.access for method, call in CALLS.items()}
NAMES = {method: call.names for method, call in CALLS.items() if call.names is not None}

MODULES: tuple[ModuleType, ...] = (
    service_pb2,
    v2_admin,
    data_pb2,
    groups_pb2,
    admin_pb2,
    assignment_pb2,
    dead_letters_pb2,
)

NOTHING_OF_THE_SERVERS = re.compile(
    r"message_group$|lite_topic(_set)?$|dead_letter_queue\.topic$"  # words of messages, and names within a LITE topic
    r"|^(recover_orphaned_transaction|verify_message|notify_unsubscribe_lite)_command\."  # servers send these
)
DECIDED_OTHERWISE = {
    "/evenq.v1.Admin/ListClients",  # about the cluster
    "/evenq.v1.Data/RelayCheck",  # servers among themselves
    "/evenq.v1.Assignment/Report",
    "/apache.rocketmq.v2.Admin/PrintThreadStackTrace",  # for operators
}
LEFT_OUT = {
    # A lock is released, and a trace found, by the group or the topic that the call's row names.
    ("/evenq.v1.Groups/UnlockQueues", "queues.topic"),
    ("/evenq.v1.Admin/TraceMessage", "group"),
}


def methods() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"/{service.full_name}/{method.name}", method.input_type


def named_fields(descriptor: Any, prefix: str = "", seen: frozenset[str] = frozenset()) -> Iterator[str]:
    for field in descriptor.fields:
        path = prefix + field.name
        inner = field.message_type
        if inner is not None and inner.name == "Resource":
            yield path
        elif inner is not None and inner.full_name not in seen:
            yield from named_fields(inner, path + ".", seen | {inner.full_name})
        elif inner is None and field.type == field.TYPE_STRING and re.search("topic|group", field.name):
            yield path


def test_every_field_that_names_a_topic_or_group_is_in_the_table() -> None:
    for method, request in methods():
        if method in DECIDED_OTHERWISE:
            assert method not in NAMES
            continue
        expected = {
            path
            for path in named_fields(request)
            if not NOTHING_OF_THE_SERVERS.search(path) and (method, path) not in LEFT_OUT
        }
        reported = {path.place for path in NAMES[method].paths} if method in NAMES else set()
        assert reported == expected, method
        if method in NAMES:
            assert NAMES[method].request.DESCRIPTOR.full_name == request.full_name


NAMELESS = {"/evenq.v1.Backup/Fetch"}
"""About every topic and group, so it names none: for admins, and those who may operate all."""


def test_every_call_about_topics_or_groups_has_a_row_that_names_them() -> None:
    expected = {
        Resource.TOPIC: {UserResource.TOPIC},
        Resource.GROUP: {UserResource.GROUP},
        Resource.TOPIC_AND_GROUP: {UserResource.TOPIC, UserResource.GROUP},
    }
    for method, access in ACCESS.items():
        if access.resource in expected and method not in NAMELESS:
            assert expected[access.resource] <= {path.kind for path in NAMES[method].paths}, method


def test_every_element_counts() -> None:
    request = service_pb2.SendMessageRequest()
    request.messages.add().topic.name = "orders"
    request.messages.add().topic.name = "other"
    request.messages.add().topic.name = "orders"
    names = NAMES["/apache.rocketmq.v2.MessagingService/SendMessage"]
    assert [one.name for one in names.of(names.read(request.SerializeToString()))] == ["orders", "other"]


def test_a_telemetry_frame_names_what_is_published_and_the_group() -> None:
    command = service_pb2.TelemetryCommand()
    command.settings.publishing.topics.add().name = "orders"
    names = NAMES["/apache.rocketmq.v2.MessagingService/Telemetry"]
    assert names.of(names.read(command.SerializeToString())) == [Named(UserResource.TOPIC, "orders", Action.PUBLISH)]
    command.settings.subscription.group.name = "billing"
    assert names.of(names.read(command.SerializeToString())) == [Named(UserResource.GROUP, "billing")]


def test_a_request_that_does_not_decode_names_nothing_but_an_error() -> None:
    with pytest.raises(BadRequest, match="does not decode as PullRequest"):
        NAMES["/evenq.v1.Data/Pull"].read(b"\xff\xff")


def client_fields(descriptor: Any, prefix: str = "", seen: frozenset[str] = frozenset()) -> Iterator[str]:
    for field in descriptor.fields:
        if field.name == "client_id":
            yield prefix + field.name
        elif field.message_type is not None and field.message_type.full_name not in seen:
            yield from client_fields(
                field.message_type, f"{prefix}{field.name}.", seen | {field.message_type.full_name}
            )


def test_every_call_that_acts_under_a_client_id_of_its_request_says_where_it_stands() -> None:
    """The guard binds an id to its user; one that it does not see would be anybody's."""
    for method, request in methods():
        if method in ACCESS and ACCESS[method].action in {Action.PUBLISH, Action.CONSUME}:
            reported = [".".join(NAMES[method].client)] if method in NAMES and NAMES[method].client else []
            assert reported == list(client_fields(request)), method


def test_the_client_id_of_a_request_is_read() -> None:
    request = groups_pb2.SessionRequest()
    request.join.member.client_id = "c1"
    names = NAMES["/evenq.v1.Groups/Session"]
    assert names.client_of(names.read(request.SerializeToString())) == "c1"
    assert names.client_of(names.read(b"")) == ""
    assert NAMES["/evenq.v1.Admin/DeleteGroup"].client_of(admin_pb2.DeleteGroupRequest()) == ""
