"""Answers made of bytes are what protobuf would have written."""

from collections.abc import Iterator
from typing import Any

import pytest
from evenq_broker.core.state.frames import field
from evenq_broker.rpc.answers import (
    KEPT,
    OK_STATUS,
    TEXTS_BYTES_MAX,
    TEXTS_MAX,
    code_of,
    is_public,
    parsed,
    several,
    status_frame,
)

from evenq.errors import (
    BadRequest,
    BodyEmpty,
    InternalError,
    InvalidReceiptHandle,
    StoreCorrupted,
    StoreFull,
    TopicNotFound,
)
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import Action
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import (
    admin_pb2,
    assignment_pb2,
    backup_pb2,
    data_pb2,
    dead_letters_pb2,
    groups_pb2,
    staging_pb2,
)

ACCESS = {method: call.access for method, call in CALLS.items()}
MESSAGE = "a message's: core/sending/validation.py bounds each and all of them together"
LOOKED_UP = "looked up among what exists, and not kept"
CHECKED = "what is made of it has a bound of its own: names, closed choices, settings"
COMPARED = "compared with what the server gave out"
PASSED_ON = "passed to the one caller who asked for it"
NEVER_READ = "not read"
SCHEDULE = "core/sending/schedules.py: must_be_legal, and core/sending/cron.py: EXPRESSION_MAX"
STAGED = "core/staging/rows.py and the staging settings"
ELSEWHERE = {
    "apache.rocketmq.v2.AckMessageEntry.lite_topic": NEVER_READ,
    "apache.rocketmq.v2.AckMessageEntry.message_id": PASSED_ON,
    "apache.rocketmq.v2.AckMessageEntry.receipt_handle": COMPARED,
    "apache.rocketmq.v2.Address.host": PASSED_ON,
    "apache.rocketmq.v2.AdminSendMessageRequest.ExtInfoEntry.key": NEVER_READ,
    "apache.rocketmq.v2.AdminSendMessageRequest.ExtInfoEntry.value": NEVER_READ,
    "apache.rocketmq.v2.AdminSendMessageRequest.UserPropertiesEntry.key": MESSAGE,
    "apache.rocketmq.v2.AdminSendMessageRequest.UserPropertiesEntry.value": MESSAGE,
    "apache.rocketmq.v2.AdminSendMessageRequest.key": MESSAGE,
    "apache.rocketmq.v2.AdminSendMessageRequest.tag": MESSAGE,
    "apache.rocketmq.v2.Broker.name": LOOKED_UP,
    "apache.rocketmq.v2.DeadLetterQueue.message_id": MESSAGE,
    "apache.rocketmq.v2.DeadLetterQueue.topic": MESSAGE,
    "apache.rocketmq.v2.Digest.checksum": MESSAGE,
    "apache.rocketmq.v2.EndTransactionRequest.message_id": NEVER_READ,
    "apache.rocketmq.v2.EndTransactionRequest.trace_context": NEVER_READ,
    "apache.rocketmq.v2.EndTransactionRequest.transaction_id": COMPARED,
    "apache.rocketmq.v2.FilterExpression.expression": "compiled for the call; evenq.filters bounds it",
    "apache.rocketmq.v2.GetTopicRouteRequest.client_address": NEVER_READ,
    "apache.rocketmq.v2.GetTopicRouteRequest.protocol_type": NEVER_READ,
    "apache.rocketmq.v2.ListMessageRequest.message_id": LOOKED_UP,
    "apache.rocketmq.v2.ListMessageRequest.message_key": LOOKED_UP,
    "apache.rocketmq.v2.ListMessageRequest.scroll_id": LOOKED_UP,
    "apache.rocketmq.v2.ListMessageRequest.subscription": NEVER_READ,
    "apache.rocketmq.v2.Message.UserPropertiesEntry.key": MESSAGE,
    "apache.rocketmq.v2.Message.UserPropertiesEntry.value": MESSAGE,
    "apache.rocketmq.v2.RecallMessageRequest.recall_handle": COMPARED,
    "apache.rocketmq.v2.RecoverOrphanedTransactionCommand.transaction_id": NEVER_READ,
    "apache.rocketmq.v2.Resource.name": "looked up, or made by rules for names; where it is kept, its request has a row",
    "apache.rocketmq.v2.Resource.resource_namespace": "evenq.serving.auth.namespaces: 64 characters",
    "apache.rocketmq.v2.Settings.ClientPropertiesEntry.key": "sent back in the answer, and not kept",
    "apache.rocketmq.v2.Settings.ClientPropertiesEntry.value": "sent back in the answer, and not kept",
    "apache.rocketmq.v2.Status.message": PASSED_ON,
    "apache.rocketmq.v2.ThreadStackTrace.thread_stack_trace": PASSED_ON,
    "apache.rocketmq.v2.UA.hostname": "sent back in the answer, and not kept",
    "apache.rocketmq.v2.UA.platform": "sent back in the answer, and not kept",
    "apache.rocketmq.v2.UA.version": "sent back in the answer, and not kept",
    "evenq.v1.AbandonRequest.query_id": STAGED,
    "evenq.v1.AbandonRequest.topics": LOOKED_UP,
    "evenq.v1.AssignmentRequest.strategy": CHECKED,
    "evenq.v1.BalancePolicy.weight": CHECKED,
    "evenq.v1.BeginRequest.coordinator": CHECKED,
    "evenq.v1.BeginRequest.query_id": STAGED,
    "evenq.v1.BeginRequest.topics": CHECKED,
    "evenq.v1.DecideRequest.query_id": STAGED,
    "evenq.v1.DecideRequest.topics": LOOKED_UP,
    "evenq.v1.DeleteScheduleRequest.name": LOOKED_UP,
    "evenq.v1.ElectUncleanRequest.reason": "rpc/replication/copies.py: REASON_MAX",
    "evenq.v1.FetchBackupRequest.cluster": COMPARED,
    "evenq.v1.Filter.expression": "compiled for the call; kept ones have a row",
    "evenq.v1.FindMessagesRequest.key": LOOKED_UP,
    "evenq.v1.FindMessagesRequest.message_id": LOOKED_UP,
    "evenq.v1.ForgetBrokerRequest.leaving": LOOKED_UP,
    "evenq.v1.GroupSettings.start_from": CHECKED,
    "evenq.v1.GroupSettings.strategy": CHECKED,
    "evenq.v1.ListDeadLettersRequest.message_id": LOOKED_UP,
    "evenq.v1.ListSchedulesRequest.name": LOOKED_UP,
    "evenq.v1.MemberSubscription.topic": "kept, and has a row",
    "evenq.v1.MoveScheduleRequest.name": LOOKED_UP,
    "evenq.v1.MoveScheduleRequest.to": LOOKED_UP,
    "evenq.v1.NewCopy.address": "an operator's, in the group record",
    "evenq.v1.PauseScheduleRequest.name": LOOKED_UP,
    "evenq.v1.RetryPolicy.kind": CHECKED,
    "evenq.v1.RunScheduleRequest.name": LOOKED_UP,
    "evenq.v1.Schedule.PropertiesEntry.key": SCHEDULE,
    "evenq.v1.Schedule.PropertiesEntry.value": SCHEDULE,
    "evenq.v1.Schedule.cron": SCHEDULE,
    "evenq.v1.Schedule.keys": SCHEDULE,
    "evenq.v1.Schedule.message_group": SCHEDULE,
    "evenq.v1.Schedule.missed": SCHEDULE,
    "evenq.v1.Schedule.name": SCHEDULE,
    "evenq.v1.Schedule.tag": SCHEDULE,
    "evenq.v1.SimulateRequest.lose_zone": COMPARED,
    "evenq.v1.SimulateRequest.strategy": CHECKED,
    "evenq.v1.StageRequest.coordinator": CHECKED,
    "evenq.v1.StageRequest.query_id": STAGED,
    "evenq.v1.StartPolicy.start_from": CHECKED,
    "evenq.v1.TraceMessageRequest.message_id": LOOKED_UP,
    "evenq.v1.Winner.brokers": CHECKED,
}
ENDINGS = {
    ".group": "names of groups: looked up, or made by the rules of evenq.model.names",
    ".topic": "names of topics: as groups",
    ".source_group": LOOKED_UP,
    ".to_topic": LOOKED_UP,
    ".broker_name": LOOKED_UP,
    ".deployment_name": NEVER_READ,
    ".lite_topic": "core/lite/lite_topics.py: lite_topic_size_max",
    ".liteTopic": NEVER_READ,
    ".nonce": COMPARED,
    ".message_id": COMPARED,
    ".uid": COMPARED,
    ".receipt_handle": COMPARED,
    "Request.client_id": "of an operator's question, looked up; of a client's call, its request has a row",
}
PREFIXES = {"apache.rocketmq.v2.SystemProperties.": MESSAGE}
MODULES = (
    service_pb2, v2_admin, data_pb2, groups_pb2, admin_pb2, assignment_pb2, backup_pb2, dead_letters_pb2, staging_pb2,
)  # fmt: skip


def test_the_ok_status_is_the_first_field_of_every_response() -> None:
    for response in (service_pb2.SendMessageResponse, service_pb2.AckMessageResponse, service_pb2.HeartbeatResponse):
        assert response.FromString(OK_STATUS).status.code == definition_pb2.OK


def test_an_error_is_its_code_and_its_sentence_in_the_clients_language() -> None:
    answer = service_pb2.HeartbeatResponse.FromString(field(1, status_frame(TopicNotFound("no topic"))))
    assert (answer.status.code, answer.status.message) == (40402, "no topic")
    rust = definition_pb2.Status.FromString(status_frame(BodyEmpty("empty"), "RUST"))
    assert rust.code == 40000


def test_equal_codes_are_equal_bytes_whatever_the_sentence() -> None:
    first, second = status_frame(BodyEmpty("one")), status_frame(BodyEmpty("another"))
    assert code_of(first) == code_of(second)
    assert code_of(first) != code_of(status_frame(TopicNotFound("one")))
    assert code_of(several()) not in {code_of(first), b""}
    assert definition_pb2.Status.FromString(several()).code == definition_pb2.MULTIPLE_RESULTS


def test_bytes_that_are_no_message_are_told_with_their_number_and_the_message_meant() -> None:
    with pytest.raises(BadRequest, match="request of 3 bytes is not a valid AckMessageRequest"):
        parsed(service_pb2.AckMessageRequest, b"\xff\xff\xff")


def test_texts_that_name_files_are_not_for_callers() -> None:
    assert not is_public(StoreCorrupted("/data/log at byte 5"))
    assert all(map(is_public, (StoreFull("full"), InvalidReceiptHandle("bad"), InternalError("id"))))


def requests() -> Iterator[Any]:
    """What clients may send: the internal calls are of servers, which are trusted."""
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                access = ACCESS.get(f"/{service.full_name}/{method.name}")
                if access is not None and access.action is not Action.INTERNAL:
                    yield method.input_type


def texts(descriptor: Any, path: str = "", seen: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each text field below: its path from the request, its own full name."""
    for one in descriptor.fields:
        if one.type == one.TYPE_STRING:
            yield path + one.name, one.full_name
        elif one.message_type is not None and one.message_type.full_name not in seen:
            yield from texts(one.message_type, f"{path}{one.name}.", (*seen, one.message_type.full_name))


def test_each_text_that_clients_send_is_kept_within_a_bound_or_bounded_elsewhere() -> None:
    kept = {(kind.DESCRIPTOR.full_name, place.path) for kind, places in KEPT.items() for place in places}
    walked, missing = set(), []
    for request in requests():
        for path, name in texts(request):
            walked.add((request.full_name, path))
            known = (request.full_name, path) in kept or name in ELSEWHERE
            if not known and not name.endswith(tuple(ENDINGS)) and not name.startswith(tuple(PREFIXES)):
                missing.append(f"{request.full_name}: {path} ({name})")
    assert not missing
    assert kept <= walked, "a row names a field that is none"


def test_nothing_is_listed_that_is_gone() -> None:
    names = {name for request in requests() for _, name in texts(request)}
    assert set(ELSEWHERE) <= names
    for ending in ENDINGS:
        assert any(name.endswith(ending) for name in names), ending


def filled(kind: type[Any], path: str, value: str, count: int = 1) -> Any:
    message: Any = kind()
    *steps, last = path.split(".")
    inner = message
    for step in steps:
        inner = getattr(inner, step)
        inner = inner.add() if hasattr(inner, "add") else inner
    if hasattr(getattr(inner, last), "append"):
        getattr(inner, last).extend([value] * count)
    else:
        setattr(inner, last, value)
    return message


@pytest.mark.parametrize(("kind", "place"), [(kind, place) for kind, places in KEPT.items() for place in places])
def test_each_kept_text_is_bounded_by_its_row(kind: type[Any], place: Any) -> None:
    fits = filled(kind, place.path, "x" * place.length_max)
    assert parsed(kind, fits.SerializeToString()) == fits
    with pytest.raises(BadRequest, match=f"has {place.length_max + 1} characters, the limit is {place.length_max}"):
        parsed(kind, filled(kind, place.path, "x" * (place.length_max + 1)).SerializeToString())
    if place.printable:
        with pytest.raises(BadRequest, match="not printable"):
            parsed(kind, filled(kind, place.path, "a\x1b[2J").SerializeToString())


def test_lists_and_the_sum_of_all_texts_are_bounded() -> None:
    many = service_pb2.TelemetryCommand()
    for number in range(TEXTS_MAX + 1):
        many.settings.publishing.topics.add(name=f"t{number}")
    with pytest.raises(BadRequest, match=f"has {TEXTS_MAX + 1} entries, the limit is {TEXTS_MAX}"):
        parsed(service_pb2.TelemetryCommand, many.SerializeToString())
    long = service_pb2.TelemetryCommand()
    for _ in range(TEXTS_BYTES_MAX // 200 + 1):
        long.settings.publishing.topics.add(name="x" * 200)
    with pytest.raises(BadRequest, match=f"in all, the limit is {TEXTS_BYTES_MAX}"):
        parsed(service_pb2.TelemetryCommand, long.SerializeToString())


@pytest.mark.parametrize(
    "client_id",
    [
        "worker-7.eu-west-1.compute.internal@12345@0@1j3k9q2w4x",  # Java, C++: host@pid@index@time
        "ip-10-0-0-1@77@3@kxq1z8y7w6v5",
        "a" * 64 + "@4194304@2147483647@3w5e11264sgsf",
    ],
)
def test_ids_of_official_sdks_pass(client_id: str) -> None:
    request = groups_pb2.LockQueuesRequest(client_id=client_id, group="g")
    assert parsed(groups_pb2.LockQueuesRequest, request.SerializeToString()).client_id == client_id


def test_the_longest_tag_that_a_message_may_have_can_be_subscribed_to() -> None:
    command = service_pb2.TelemetryCommand()
    command.settings.subscription.subscriptions.add().expression.expression = "x" * (16 << 10)
    assert parsed(service_pb2.TelemetryCommand, command.SerializeToString()) == command
    session = groups_pb2.SessionRequest()
    session.join.member.subscriptions.add().filter.expression = "x" * (16 << 10)
    assert parsed(groups_pb2.SessionRequest, session.SerializeToString()) == session
