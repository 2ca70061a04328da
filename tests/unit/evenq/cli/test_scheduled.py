"""`evenq message scheduled` and `check`, `evenq client access`: what is called and what is printed."""

from __future__ import annotations

import json
from typing import Any

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2


def waiting(**fields: Any) -> admin_pb2.ListScheduledResponse:
    one = admin_pb2.ScheduledMessage(
        broker_name="a", topic="calls", kind="DELAY", due_ms=1_700_000_000_000, message_id="id1", tag="\x1b[31m",
        keys=["k"], body_bytes=7, recall_handle="d1.a.00",
    )  # fmt: skip
    return admin_pb2.ListScheduledResponse(messages=[one], **fields)


def test_messages_that_wait_are_a_table_or_json(run: Any) -> None:
    code, out, error, calls = run("message scheduled calls --limit 5", ListScheduled=waiting(more=True))
    assert code == 0
    request = admin_pb2.ListScheduledRequest.FromString(calls[0][1])
    assert (request.topic, request.max) == ("calls", 5)
    assert "id1" in out
    assert "\x1b[31m" not in out
    assert "Later messages wait, too" in error
    _, out, _, _ = run("message scheduled --json", ListScheduled=waiting())
    [one] = json.loads(out)
    assert (one["recall_handle"], one["due_ms"], one["keys"]) == ("d1.a.00", 1_700_000_000_000, "k")


def test_no_message_waits(run: Any) -> None:
    code, out, _, _ = run("message scheduled", ListScheduled=admin_pb2.ListScheduledResponse())
    assert code == 0
    assert "No message waits." in out


def test_a_transaction_is_stored_again_with_its_first_id(run: Any) -> None:
    found = admin_pb2.FindMessagesResponse()
    message = found.messages.add().message
    message.body = b"pay"
    message.user_properties.update({"REAL_TOPIC": "payments", "TRANSACTION_CHECK_TIMES": "15", "p": "v"})
    message.system_properties.message_id, message.system_properties.queue_offset = "id1", 3
    message.system_properties.dead_letter_queue.topic = "payments"
    sent = service_pb2.SendMessageResponse()
    entry = sent.entries.add(transaction_id="t")
    entry.status.code = definition_pb2.OK
    code, out, error, calls = run(
        "message check --queue a/0 --offset 3", FindMessages=found, SendMessage=sent, ListScheduled=waiting()
    )
    assert code == 0, error
    assert "Transaction id1 is open again" in out
    [again] = service_pb2.SendMessageRequest.FromString(calls[1][1]).messages
    assert (again.topic.name, again.body, dict(again.user_properties)) == ("payments", b"pay", {"p": "v"})
    assert again.system_properties.message_id == "id1"


def test_the_rights_of_a_user_are_shown(run: Any) -> None:
    caller = admin_pb2.DescribeCallerResponse(user="shop", broker_name="a")
    caller.grants.add(resource="topic:orders-*", actions=["describe", "publish"])
    code, out, _, _ = run("client access", DescribeCaller=caller)
    assert code == 0
    assert "shop" in out
    assert "topic:orders-*" in out
    assert "describe publish" in out
    for response, text in (
        (admin_pb2.DescribeCallerResponse(), "no users"),
        (admin_pb2.DescribeCallerResponse(user="root", admin=True), "Every call is allowed"),
        (admin_pb2.DescribeCallerResponse(user="nobody"), "No grant"),
    ):
        assert text in run("client access", DescribeCaller=response)[1]
