"""`evenq broker check-scale-in | forget`."""

import json

import pytest

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2


def known():
    response = admin_pb2.ListBrokersResponse()
    response.brokers.add().broker.name = "a"
    response.missing.add(name="b", gone_ms=5)
    return response


def left(*, draining=True, empty=True, unread=0, dead_letters=0, writers=1, schedules=0):
    names = [f"t s{number}" for number in range(schedules)]
    return admin_pb2.DrainBrokerResponse(
        broker_name="a",
        draining=draining,
        empty=empty,
        unread=unread,
        dead_letters=dead_letters,
        writers=writers,
        schedules=schedules,
        schedule_names=names,
    )


@pytest.mark.parametrize(
    ("options", "answer", "why"),
    [
        ("", left(draining=False), "it accepts messages: `evenq broker drain a`"),
        ("", left(empty=False), "groups have not read all of it"),
        ("", left(unread=1), "it holds messages that no group waits for"),
        ("", left(dead_letters=1), "it holds messages that no group waits for"),
        ("", left(schedules=1), "it keeps 1 schedule (t s0)"),
        ("", left(schedules=7), "it keeps 7 schedules (t s0, t s1, t s2, t s3, t s4 and 2 more)"),
        ("--yes", left(unread=1, dead_letters=1, schedules=1), ""),
        ("", left(writers=0), "no other broker accepts messages"),
        ("", left(), ""),
    ],
)
def test_a_live_broker_may_go_when_nothing_of_its_is_missed(run, options, answer, why):
    code, out, _, calls = run(f"broker check-scale-in a a {options} --json", ListBrokers=known(), DrainBroker=answer)
    output = json.loads(out)
    (row,) = output["brokers"]
    assert (code, output["removable"], row["state"], row["removable"]) == (int(bool(why)), not why, "live", not why)
    assert row["why"].startswith(why)
    (look,) = [request for name, request in calls if name == "DrainBroker"]
    assert admin_pb2.DrainBrokerRequest.FromString(look).change == 0, "it only looks"


@pytest.mark.parametrize(
    ("options", "answer", "why"),
    [
        ("", left(), ""),
        ("", left(unread=1), "it holds messages that no group waits for"),
        ("", left(dead_letters=1), "it holds messages that no group waits for"),
        ("", left(schedules=1), "it keeps 1 schedule (t s0)"),
        ("", left(schedules=7), "it keeps 7 schedules (t s0, t s1, t s2, t s3, t s4 and 2 more)"),
        ("--yes", left(unread=1, dead_letters=1, schedules=1), ""),
        ("--yes", left(writers=0), "no other broker accepts messages"),
    ],
)
def test_draining_says_what_check_scale_in_says_when_all_is_read(run, options, answer, why):
    checked, _, _, _ = run(f"broker check-scale-in a {options}", ListBrokers=known(), DrainBroker=answer)
    stays = admin_pb2.MoveScheduleResponse()
    code, out, _, calls = run(f"broker drain a {options}", DrainBroker=answer, MoveSchedule=stays)
    assert [name for name, _ in calls].count("MoveSchedule") == answer.schedules
    assert code == checked == int(bool(why))
    text = " ".join(out.split())
    assert (f"it may not be removed: {why}" if why else "it may be removed.") in text


def test_draining_without_waiting_is_not_done_while_messages_are_unread(run):
    code, out, _, _ = run("broker drain a --no-wait", DrainBroker=left(empty=False))
    assert (code, "has messages to be read" in out) == (1, True)


def test_a_drain_prints_why_a_schedule_stays(run):
    refused = admin_pb2.MoveScheduleResponse()
    refused.status.code, refused.status.message = definition_pb2.FORBIDDEN, "no grant to publish"
    code, out, _, _ = run("broker drain a", DrainBroker=left(schedules=1), MoveSchedule=refused)
    text = " ".join(out.split())
    assert (code, "It still holds 1 schedule (t s0). Schedule t s0 stays: no grant to publish" in text) == (1, True), (
        text
    )


def test_others_are_missing_or_unknown(run):
    code, out, _, calls = run("broker check-scale-in b x --json", ListBrokers=known())
    assert [(one["state"], one["why"]) for one in json.loads(out)["brokers"]] == [
        ("missing", "it is not there: start it, or `evenq broker forget b --yes`"),
        ("unknown", "no broker has that name; the cluster has a"),
    ]
    assert (code, {name for name, _ in calls}) == (1, {"ListBrokers"})


def test_forgetting_needs_a_yes(run):
    code, _, err, calls = run("broker forget b")
    assert (code, calls, "add --yes" in err) == (1, [], True)
    code, out, _, calls = run("broker forget b --yes", ForgetBroker=admin_pb2.ForgetBrokerResponse())
    assert (code, "was removed from the cluster" in out) == (0, True)
    assert admin_pb2.ForgetBrokerRequest.FromString(calls[0][1]).broker_name == "b"


def test_the_reason_is_told_to_its_end_where_nobody_has_a_wide_terminal(run):
    """A chart's hook prints it into the log of a Job."""
    answer = known()
    answer.brokers[0].broker.name = "release-of-some-length-evenq-broker-0"
    _, out, _, _ = run("broker check-scale-in another-release-evenq-broker-7", ListBrokers=answer)
    assert "another-release-evenq-broker-7" in out.splitlines()[4]
    assert "…" not in out
    assert "theclusterhasrelease-of-some-length-evenq-broker-0" in "".join(out.split())
