"""`evenq offset`, `evenq message`, `evenq client`: what is asked and what is printed, over a net that is a script."""

import json

import pytest

from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

QUEUE = common_pb2.Queue(topic="orders", broker_name="broker-a", queue_id=0)


def moves(*, error="", note=""):
    move = admin_pb2.OffsetMove(
        queue=QUEUE, before=5, after=2, min_offset=0, max_offset=9, inflight=3, owner="me", error=error, note=note
    )
    return admin_pb2.ResetOffsetsResponse(moves=[move])


def test_a_reset_is_a_plan_until_it_is_confirmed(run):
    line = "offset reset billing --topic orders --to earliest --queue broker-a/0"
    code, out, _, calls = run(line, ResetOffsets=moves())
    assert code == 0
    assert "nothing was changed" in out
    assert "--yes" in out
    assert "would move" in out
    request = admin_pb2.ResetOffsetsRequest.FromString(calls[0][1])
    assert (request.dry_run, request.to, request.topic, list(request.queues)) == (
        True,
        admin_pb2.EARLIEST,
        "orders",
        [QUEUE],
    )
    code, out, _, calls = run(f"{line} --yes --json", ResetOffsets=moves(note="gone"))
    assert not admin_pb2.ResetOffsetsRequest.FromString(calls[0][1]).dry_run
    output = json.loads(out)
    assert (output["done"], output["moves"][0]["result"], output["moves"][0]["messages"]) == (True, "moved (gone)", -3)


def test_a_reset_that_failed_somewhere_ends_with_1_and_says_where(run):
    code, out, _, _ = run("offset reset billing --to latest --yes", ResetOffsets=moves(error="no answer"))
    assert code == 1
    assert "failed: no answer" in out


@pytest.mark.parametrize(
    ("words", "to", "value"),
    [
        ("reset g --to latest", admin_pb2.LATEST, 0),
        ("reset g --to 1700000000000", admin_pb2.TIMESTAMP, 1_700_000_000_000),
        ("reset g --to-offset 7", admin_pb2.OFFSET, 7),
        ("skip g", admin_pb2.LATEST, 0),
        ("skip g --count 3", admin_pb2.SKIP, 3),
        ("clone g --from h", admin_pb2.LIKE_GROUP, 0),
    ],
)
def test_each_word_becomes_its_target(run, words, to, value):
    _, _, _, calls = run(f"offset {words}", ResetOffsets=moves())
    request = admin_pb2.ResetOffsetsRequest.FromString(calls[0][1])
    assert (request.to, request.value) == (to, value)


def test_an_unknown_group_names_the_command_that_helps_once(run):
    response = admin_pb2.ResetOffsetsResponse()
    response.status.code, response.status.message = 40403, "no consumer group 'x'; see `evenq group list`"
    code, _, err, _ = run("offset reset x --to latest", ResetOffsets=response)
    assert code == 3
    assert err.count("evenq group list") == 1


def test_offsets_are_shown_with_the_age_of_what_comes_next(run):
    response = admin_pb2.DescribeGroupResponse()
    response.queues.add(queue=QUEUE, committed=5, min_offset=1, max_offset=9, lag=4, next_store_ms=1_000)
    _, out, _, _ = run("offset show billing --json", DescribeGroup=response)
    output = json.loads(out)
    assert (output["lag"], output["queues"][0]["committed"], output["queues"][0]["next_store_ms"]) == (4, 5, 1_000)
    _, out, _, _ = run("offset show billing --topic other", DescribeGroup=response)
    assert "The group has read nothing yet" in out


def found(body=b"hello", size=5, **system):
    one = admin_pb2.FoundMessage(queue=QUEUE, body_bytes=size)
    one.message.body = body
    one.message.system_properties.message_id = "id-1"
    one.message.system_properties.tag = "new"
    one.message.system_properties.keys.append("42")
    one.message.system_properties.queue_offset = system.get("offset", 7)
    set_ms(one.message.system_properties.store_timestamp, 1_000)
    return one


def answer(*messages, more=False, silent=()):
    return admin_pb2.FindMessagesResponse(messages=messages, more=more, silent=silent)


def test_messages_are_a_table_for_people_and_lines_for_programs(run):
    line = "message find orders --key 42 --from 10 --to 2000 --limit 5"
    code, out, err, calls = run(line, FindMessages=answer(found(), more=True, silent=["broker-b"]))
    assert code == 1
    assert "id-1" in out
    _, wide, _, _ = run(f"{line} --wide", FindMessages=answer(found()))
    assert "broker-a/0:7" in wide
    assert "broker-a/0:7" not in out
    assert "hello" in out
    assert "broker-b" in err
    assert "--limit" in err
    request = admin_pb2.FindMessagesRequest.FromString(calls[0][1])
    assert (request.topic, request.key, request.begin_ms, request.end_ms, request.count_max) == (
        "orders",
        "42",
        10,
        2000,
        5,
    )
    _, out, _, _ = run("message find orders --json", FindMessages=answer(found(), found(b"\xff", 1)))
    first, second = map(json.loads, out.splitlines())
    assert (first["body"], first["offset"], second["body_base64"]) == ("hello", 7, "/w==")
    _, out, _, _ = run("message find orders", FindMessages=answer())
    assert "evenq message tail orders" in out


@pytest.mark.parametrize(
    ("form", "shown"),
    [("text", "a\\x00b"), ("hex", "61 00 62"), ("base64", "YQBi"), ("none", "3 bytes")],
)
def test_a_body_is_shown_in_each_form_and_never_controls_the_terminal(run, form, shown):
    code, out, _, _ = run(f"message get id-1 --body {form}", FindMessages=answer(found(b"a\x00b", 3)))
    assert code == 0
    assert shown in out
    assert "\x00" not in out


def test_a_cut_body_and_a_missing_message_say_what_to_do(run):
    _, _, err, _ = run("message get id-1", FindMessages=answer(found(b"abc", 99)))
    assert "--body-max" in err
    code, _, err, _ = run("message get id-1", FindMessages=answer())
    assert (code, "evenq message find" in err) == (3, True)
    code, _, err, _ = run("message get --topic orders --queue broker-a/0 --offset 6", FindMessages=answer(found()))
    assert (code, "offset 6 in broker-a/0" in err) == (3, True)
    for words in ("message get", "message get id --offset 1", "message find orders --offset 3"):
        code, _, err, _ = run(words, FindMessages=answer())
        assert code == 2, words
        assert "evenq:" in err


@pytest.mark.parametrize(("words", "code"), [("", 130), ("--follow", 0)])
def test_ctrl_c_is_the_end_only_of_a_tail_that_follows(run, monkeypatch, words, code):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("evenq.cli.messages.with_admin", interrupted)
    assert run(f"message tail orders {words}")[0] == code


def test_a_trace_tells_each_step(run):
    answered = admin_pb2.MessageTrace(message=found(), remembered_since_ms=5)
    kinds = admin_pb2.TraceEvent
    answered.groups.add(group="billing", state="IN_FLIGHT", attempt=2, client_id="me", until_ms=9_000)
    answered.events.add(at_ms=1_000, kind=kinds.STORED)
    answered.events.add(at_ms=2_000, kind=kinds.DELIVERED, group="billing", client_id="me", attempt=1)
    answered.events.add(at_ms=3_000, kind=kinds.INVISIBLE, group="billing")
    answered.events.add(at_ms=4_000, kind=kinds.DEAD_LETTERED, group="billing")
    response = admin_pb2.TraceMessageResponse(traces=[answered])
    code, out, _, _ = run("message trace id-1", TraceMessage=response)
    assert code == 0
    for words in ("stored", "delivered, attempt 1", "given back", "dead-letter topic", "not acknowledged", "billing"):
        assert words in out
    _, out, _, _ = run("message trace id-1 --json", TraceMessage=response)
    [copy] = json.loads(out)["copies"]
    assert [event["what"] for event in copy["events"]] == ["STORED", "DELIVERED", "INVISIBLE", "DEAD_LETTERED"]
    assert "body" not in copy


def test_clients_are_listed_shown_and_asked(run):
    listed = admin_pb2.ListClientsResponse()
    client = listed.clients.add(client_id="me", kind="PUSH_CONSUMER", group="g", brokers=["broker-a"], owned=[QUEUE])
    client.subscriptions.add(topic="orders")
    code, out, _, _ = run("client list", ListClients=listed)
    assert (code, "push consumer" in out) == (0, True)
    _, out, _, _ = run("client show me --json", ListClients=listed)
    output = json.loads(out)
    assert (output["groups"], output["subscriptions"][0]["filter"], output["queues"][0]["queue"]) == (["g"], "*", 0)
    code, _, err, _ = run("client show other", ListClients=listed)
    assert (code, "evenq client list" in err) == (3, True)
    traced = v2.PrintThreadStackTraceResponse(thread_stack_trace="main: waits")
    _, out, _, calls = run("client stack me", PrintThreadStackTrace=traced)
    assert out == "main: waits\n"
    assert v2.PrintThreadStackTraceRequest.FromString(calls[0][1]).client_id == "me"
