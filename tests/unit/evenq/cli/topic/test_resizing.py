"""The words of the commands that resize: their options, and what they say of those that others wait for."""

from __future__ import annotations

import json

import pytest

from evenq.cli.parser import make_parser
from evenq.cli.topic import resizing
from evenq.cli.topic.resizing import permission_text, who
from evenq.client.core.admin.views import UnfinishedView
from evenq.model import MessageQueue, Permission
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

LINE = "topic scale orders --queues 0 --broker b"


def test_scale_waits_unless_told_otherwise_and_needs_a_number() -> None:
    result = make_parser().parse_args(["topic", "scale", "t", "--queues", "3"])
    assert (result.queues, result.wait, result.no_wait, result.force, result.broker) == (3, 300, False, False, "")
    result = make_parser().parse_args(["topic", "scale", "t", "--queues", "3", "--no-wait", "--force", "--broker", "b"])
    assert (result.no_wait, result.force, result.broker) == (True, True, "b")
    for wrong in (["topic", "scale", "t"], ["topic", "scale", "t", "--queues", "-1"], ["topic", "permit", "t", "rw"]):
        with pytest.raises(SystemExit):
            make_parser().parse_args(wrong)


def test_draining_names_a_broker() -> None:
    result = make_parser().parse_args(["broker", "drain", "b", "--wait", "9"])
    assert (result.name, result.wait) == ("b", 9)
    assert make_parser().parse_args(["broker", "resume", "b"]).name == "b"


def test_permissions_have_words() -> None:
    assert [permission_text(one.name) for one in Permission] == ["none", "read", "write", "read-write"]


def test_those_who_have_most_to_read_are_named_first() -> None:
    left = [
        UnfinishedView(queue=MessageQueue("t", "b", queue), group=f"g{group}", lag=lag, inflight=0)
        for group, queue, lag in [(1, 0, 5), (2, 0, 1_000), (1, 1, 6), *((number, 0, 1) for number in range(3, 9))]
    ]
    assert who(left).startswith("g2 1,000, g1 11, ")
    assert who(left).endswith(" and 3 more groups")
    assert who([]) == "none"


def scaled(write, read, *, unread=0, stored=0):
    response = admin_pb2.ScaleTopicResponse()
    one = response.brokers.add(broker_name="b", unread=unread, stored=stored)
    one.entry.write_queues, one.entry.read_queues, one.entry.permission = write, read, 3
    return response


def test_fewer_queues_are_a_plan_until_somebody_says_yes(run) -> None:
    line = "topic scale orders --queues 2"
    plan = scaled(4, 4, unread=7, stored=9)
    for option, exit_code in (("", 1), ("--dry-run", 0), ("--dry-run --yes", 0), ("--force", 1)):
        code, out, err, calls = run(f"{line} {option}", ScaleTopic=plan)
        assert (code, [admin_pb2.ScaleTopicRequest.FromString(sent).dry_run for _, sent in calls]) == (
            exit_code,
            [True],
        )
        assert "hold 9 messages" in " ".join(out.split())
        assert "No group has read 7 of them" in " ".join(out.split())
        assert ("nothing was changed; add --yes" in err) == bool(exit_code)
    code, out, err, calls = run(f"{line} --yes", ScaleTopic=[plan, scaled(2, 2)])
    sent = admin_pb2.ScaleTopicRequest.FromString(calls[1][1])
    assert (code, sent.dry_run, sent.close_unread) == (0, False, True)
    assert [name for name, _ in calls] == ["ScaleTopic", "ScaleTopic", "ListBrokers"]
    assert "No group has read 7 of them" in " ".join(err.split())
    assert "has 2 queues on 1 broker" in out


def test_queues_are_counted_on_each_broker(run) -> None:
    """`topic create` counts all of them, so the difference has to be said."""
    two = scaled(6, 6)
    two.brokers.add(broker_name="c").entry.CopyFrom(two.brokers[0].entry)
    _, out, _, _ = run("topic scale orders --queues 6", ScaleTopic=[two, two])
    assert "has 6 queues on each of 2 brokers" in out
    _, out, _, _ = run("topic scale orders --queues 1 --yes", ScaleTopic=[scaled(1, 1), scaled(1, 1)])
    assert "has 1 queue on 1 broker" in out


def test_more_queues_need_no_yes(run) -> None:
    code, _, _, calls = run("topic scale orders --queues 6", ScaleTopic=[scaled(4, 4), scaled(6, 6)])
    assert (code, [name for name, _ in calls]) == (0, ["ScaleTopic", "ScaleTopic", "ListBrokers"])
    code, out, _, calls = run("topic scale orders --queues 6 --dry-run", ScaleTopic=scaled(4, 4))
    assert (code, len(calls), "No queue of topic orders would be closed" in out) == (0, 1, True)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(resizing, "AGAIN_MS", 1)


def view(*, gone=False, lag=0, unread=0, delayed=0, stored=0):
    response = admin_pb2.ScaleTopicResponse()
    one = response.brokers.add(broker_name="b", gone=gone, unread=unread, delayed=delayed, stored=stored)
    if lag:
        one.unfinished.add(queue=common_pb2.Queue(topic="orders", broker_name="b"), group="billing", lag=lag)
    return response


def requests(asked):
    return [admin_pb2.ScaleTopicRequest.FromString(request) for _, request in asked]


def test_it_is_a_plan_until_somebody_says_yes(run):
    for option, exit_code in (("", 1), ("--dry-run", 0), ("--dry-run --yes", 0)):
        code, out, err, calls = run(f"{LINE} {option}", ScaleTopic=view(unread=5, stored=5))
        assert (code, [one.dry_run for one in requests(calls)]) == (exit_code, [True])
        assert "No group has read 5 of them" in " ".join(out.split())
        assert ("nothing was changed; add --yes" in err) == bool(exit_code)


def test_it_waits_for_the_groups_and_says_whom(run):
    code, out, err, calls = run(
        f"{LINE} --yes",
        ScaleTopic=[view(lag=3, stored=9), view(lag=3, stored=9), view(lag=1, stored=9), view(gone=True, stored=9)],
    )
    assert (code, [one.dry_run for one in requests(calls)]) == (0, [True, False, False, False])
    assert "holds 9 messages on b" in " ".join(err.split())
    assert "to be read: billing 3" in " ".join(err.split())
    assert "was removed from b, with 9 stored messages" in out
    request = requests(calls)[1]
    assert (request.topic, request.broker_name, request.queues, request.force, request.close_unread) == (
        "orders", "b", 0, False, True,
    )  # fmt: skip
    _, _, _, calls = run(f"{LINE} --yes --force", ScaleTopic=[view(lag=1), view(gone=True)])
    assert requests(calls)[1].force


def test_the_plan_names_the_schedules_there(run):
    answer = view()
    answer.brokers[0].schedules = 1
    answer.brokers[0].schedule_names.append("nightly")
    code, out, _, _ = run(f"{LINE} --dry-run", ScaleTopic=answer)
    assert (code, "With the topic, the broker deletes 1 schedule (nightly)." in " ".join(out.split())) == (0, True)


def test_one_step_only_and_for_programs(run):
    code, out, _, calls = run(f"{LINE} --yes --no-wait --json", ScaleTopic=view(delayed=2, lag=1))
    output = json.loads(out)
    assert (code, len(calls), output["gone"], output["delayed"]) == (1, 2, False, 2)
    assert output["unfinished"][0]["group"] == "billing"


def test_a_wait_that_ends_too_early_says_how_to_go_on(run):
    code, _, err, calls = run(f"{LINE} --yes --wait 1", ScaleTopic=view(lag=1))
    assert (code, len(calls) > 2) == (1, True)
    assert "run the command again to continue waiting, add --force" in err
    assert "evenq topic permit orders read-write --broker b" in err


def test_it_needs_a_broker(run):
    code, _, err, calls = run("topic scale orders --queues 0")
    assert (code, calls) == (2, [])
    assert "--broker NAME" in err
