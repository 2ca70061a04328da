"""`evenq topic scale NAME --broker B --queues 0`: a plan, then asked until it is gone; what keeps it is said."""

import json

import pytest

from evenq.cli import waiting
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

LINE = "topic scale orders --queues 0 --broker b"


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(waiting, "AGAIN_MS", 1)


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
        assert "5 of them no group has read" in " ".join(out.split())
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


def test_one_step_only_and_for_programs(run):
    code, out, _, calls = run(f"{LINE} --yes --no-wait --json", ScaleTopic=view(delayed=2, lag=1))
    output = json.loads(out)
    assert (code, len(calls), output["gone"], output["delayed"]) == (0, 2, False, 2)
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
