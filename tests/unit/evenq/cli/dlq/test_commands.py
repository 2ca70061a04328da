"""`evenq dlq list | show | replay`."""

import json

import pytest

from evenq.errors import ConnectionFailed
from evenq.wire.stubs.evenq.v1 import common_pb2
from evenq.wire.stubs.evenq.v1 import dead_letters_pb2 as pb


def listed(*ids):
    response = pb.ListDeadLettersResponse(silent=["broker-b"])
    response.counts.add(group="g", broker_name="a", stored=3, waiting=2)
    for message_id in ids:
        letter = response.letters.add(message_id=message_id, reason="attempts", attempts=17, body=b"x\xff")
        letter.origin.topic, letter.properties["region"] = "orders", "eu"
    return response


def test_counts_of_all_and_letters_of_one(run):
    _, out, _, calls = run("dlq list --json", List=listed())
    assert json.loads(out)["counts"][0]["waiting"] == 2
    _, out, _, calls = run("dlq list g --max 5 --waiting --json", List=listed("m1"))
    request = pb.ListDeadLettersRequest.FromString(calls[0][1])
    assert (request.group, request.max, request.waiting) == ("g", 5, True)
    output = json.loads(out)
    assert (output["silent"], output["letters"][0]["topic"]) == (["broker-b"], "orders")


def test_that_a_group_has_none_is_said_once(run):
    _, out, _, _ = run("dlq list g", List=pb.ListDeadLettersResponse(known=True))
    assert out.count("No dead letters.") == 1
    _, out, _, _ = run("dlq list g --waiting", List=listed())
    assert "No dead letter waits for a replay." in out


def test_one_letter_whole(run):
    _, out, _, calls = run("dlq show g m1", List=listed("m1"))
    request = pb.ListDeadLettersRequest.FromString(calls[0][1])
    assert (request.bodies, request.message_id) == (True, "m1")
    assert "region" in out
    assert "\\xff" in out, "a body never writes to the terminal as it is"
    code, _, err, _ = run("dlq show g m9", List=listed())
    assert (code, "no dead letter m9" in err) == (3, True)


@pytest.mark.parametrize(
    ("expression", "kind"), [("new", common_pb2.Filter.TAG), ("region='eu'", common_pb2.Filter.SQL)]
)
def test_a_replay_tells_each_broker_and_knows_sql_from_tags(run, expression, kind):
    progress = [
        pb.ReplayProgress(broker_name="a", total=2, replayed=1),
        pb.ReplayProgress(broker_name="a", total=2, replayed=2, done=True),
        pb.ReplayProgress(broker_name="b", total=1, replayed=1, done=True),
    ]
    line = f"dlq replay g --filter {expression} --to later --rate 50/s --max 9 --yes --json"
    code, out, _, calls = run(line, Replay=progress)
    request = pb.ReplayDeadLettersRequest.FromString(calls[0][1])
    assert not request.dry_run
    assert (request.filter.type, request.to_topic, request.per_second, request.max) == (kind, "later", 50.0, 9)
    output = json.loads(out)
    assert (code, output["replayed"], [one["replayed"] for one in output["brokers"]]) == (0, 3, [2, 1])


def test_a_replay_that_failed_or_broke_off_ends_with_1(run):
    failed = pb.ReplayProgress(broker_name="a", total=2, replayed=1, failed=1, error="no such topic", done=True)
    code, out, _, _ = run("dlq replay g --yes", Replay=[failed])
    assert (code, "no such topic" in out) == (1, True)
    refused = pb.ReplayProgress()
    refused.status.code, refused.status.message = 40000, "the request names no group"
    code, _, err, _ = run("dlq replay g --yes", Replay=[refused])
    assert (code, "names no group" in err) == (2, True)
    broken = [pb.ReplayProgress(broker_name="a", replayed=1), ConnectionFailed("it is gone")]
    code, _, err, _ = run("dlq replay g --yes", Replay=broken)
    assert (code, "start the replay again to continue" in err) == (1, True)
    code, _, err, _ = run("dlq replay g --yes", Replay=[ConnectionFailed("nothing")])
    assert (code, "start one with `evenq up`" in err) == (5, True)


def test_a_replay_is_a_plan_until_somebody_says_yes(run):
    plan = [
        pb.ReplayProgress(broker_name="a", left_out=1, done=True, would={"orders": 2, "jobs": 1}),
        pb.ReplayProgress(broker_name="b", done=True, would={"orders": 3}),
    ]
    code, out, err, calls = run("dlq replay g --json", Replay=plan)
    output = json.loads(out)
    assert [pb.ReplayDeadLettersRequest.FromString(request).dry_run for _, request in calls] == [True]
    assert (code, output["would_replay"], output["left_out"], "add --yes" in err) == (1, 6, 1, True)
    assert [(one["topic"], one["broker"], one["letters"]) for one in output["topics"]] == [
        ("jobs", "a", 1), ("orders", "a", 2), ("orders", "b", 3),
    ]  # fmt: skip
    code, out, err, calls = run("dlq replay g --dry-run --yes", Replay=plan)
    assert (code, err, "6 dead letters of g would be sent again, to jobs, orders." in " ".join(out.split())) == (
        0, "", True,
    )  # fmt: skip
    assert pb.ReplayDeadLettersRequest.FromString(calls[0][1]).dry_run
    code, _, err, _ = run("dlq replay g --dry-run", Replay=[pb.ReplayProgress(broker_name="b", error="it is gone")])
    assert (code, "some brokers did not answer, their dead letters are not included: b (it is gone)" in err) == (
        1,
        True,
    )
