"""`evenq topic scale NAME --broker B --queues 0`: asked until it is gone; what keeps it is said with its option."""

import json

import pytest

from evenq.cli import waiting
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

LINE = "topic scale orders --queues 0 --broker b"


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(waiting, "AGAIN_MS", 1)


def view(*, gone=False, lag=0, unread=0, delayed=0, stored=0):
    answer = admin_pb2.ScaleTopicResponse()
    one = answer.brokers.add(broker_name="b", gone=gone, unread=unread, delayed=delayed, stored=stored)
    if lag:
        one.unfinished.add(queue=common_pb2.Queue(topic="orders", broker_name="b"), group="billing", lag=lag)
    return answer


def test_it_waits_for_the_groups_and_says_whom(run):
    code, out, err, asked = run(
        LINE, ScaleTopic=[view(lag=3, stored=9), view(lag=1, stored=9), view(gone=True, stored=9)]
    )
    assert (code, len(asked)) == (0, 3)
    assert "to be read: billing 3" in " ".join(err.split())
    assert "not on b any more; 9 stored messages ended with it" in out
    request = admin_pb2.ScaleTopicRequest.FromString(asked[0][1])
    assert (request.topic, request.broker_name, request.queues, request.force, request.close_unread) == (
        "orders", "b", 0, False, False,
    )  # fmt: skip


def test_what_no_group_reads_is_not_waited_for(run):
    code, _, err, asked = run(LINE, ScaleTopic=view(unread=5, stored=5))
    assert (code, len(asked)) == (1, 1)
    assert "5 messages that no group reads" in err
    assert "add --yes" in err
    assert "evenq topic permit orders read-write --broker b" in err
    code, _, _, asked = run(f"{LINE} --yes --force", ScaleTopic=view(gone=True))
    request = admin_pb2.ScaleTopicRequest.FromString(asked[0][1])
    assert (code, request.close_unread, request.force) == (0, True, True)


def test_one_step_only_and_for_programs(run):
    code, out, _, asked = run(f"{LINE} --no-wait --json", ScaleTopic=view(delayed=2, lag=1))
    told = json.loads(out)
    assert (code, len(asked), told["gone"], told["delayed"]) == (0, 1, False, 2)
    assert told["unfinished"][0]["group"] == "billing"


def test_a_wait_that_ends_too_early_says_how_to_go_on(run):
    code, _, err, asked = run(f"{LINE} --wait 1", ScaleTopic=view(lag=1))
    assert (code, len(asked) > 1) == (1, True)
    assert "run the command again to go on waiting, add --force" in err


def test_it_needs_a_broker(run):
    code, _, err, asked = run("topic scale orders --queues 0")
    assert (code, asked) == (1, [])
    assert "--broker NAME" in err
