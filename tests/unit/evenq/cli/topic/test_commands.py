"""`evenq topic create | list | show | delete`: what is asked, what is printed, and how it ends."""

import json

import pytest

from evenq.errors import Forbidden, GroupNotFound
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2


def created(*brokers, message_type=v2.NORMAL, error=""):
    response = admin_pb2.CreateTopicResponse()
    for name, queues in brokers:
        placement = response.placements.add(broker_name=name, error=error)
        placement.entry.write_queues, placement.entry.message_type = queues, message_type
    return response


def asked_of(asked):
    return admin_pb2.CreateTopicRequest.FromString(asked[0][1])


def test_create_asks_for_what_was_said_and_nothing_else(run):
    code, out, _, calls = run("topic create orders --queues 8", CreateTopic=created(("a", 8), ("b", 8)))
    assert (code, "Topic orders has 16 queues on 2 brokers." in out) == (0, True)
    request = asked_of(calls)
    assert (request.topic, request.queues, request.message_type, request.mixed) == ("orders", 8, 0, False)
    assert not request.HasField("retention_ms")
    assert not request.brokers


def test_create_on_chosen_brokers_with_counts_of_their_own(run):
    line = "topic create audit --broker a:8 --broker b --queues 2 --type mixed --retention 7d --json"
    _, out, _, calls = run(line, CreateTopic=created(("a", 8), ("b", 2), message_type=0))
    request = asked_of(calls)
    assert [(one.broker_name, one.queues) for one in request.brokers] == [("a", 8), ("b", 0)]
    assert (request.mixed, request.message_type, request.retention_ms) == (True, 0, 7 * 86_400_000)
    assert [one["type"] for one in json.loads(out)["brokers"]] == ["MIXED", "MIXED"]


def test_a_broker_named_twice_is_refused_before_anything_is_asked(run):
    code, _, err, calls = run("topic create audit --broker a:8 --broker a:2")
    assert (code, calls) == (2, [])
    assert "named twice" in err


@pytest.mark.parametrize("wrong", ["a:0", "a:x", ":3", "a:4097"])
def test_a_broker_without_a_sensible_count_is_a_usage_error(run, wrong):
    with pytest.raises(SystemExit) as ended:
        run(f"topic create audit --broker {wrong}")
    assert ended.value.code == 2


def test_list_and_lite(run):
    response = admin_pb2.ListTopicsResponse()
    response.topics.add(topic="b", message_type=v2.FIFO, brokers=2, queues=8, messages=5)
    response.topics.add(topic="a", message_type=0)
    response.lite_topics.add(topic="b", lite_topic="chat-1", broker_name="x", messages=3, subscribers=1)
    _, out, _, _ = run("topic list --json", ListTopics=response)
    assert [(one["topic"], one["type"]) for one in json.loads(out)] == [("a", "MIXED"), ("b", "FIFO")]
    _, out, _, calls = run("topic list --lite --all --json", ListTopics=response)
    assert json.loads(out)["lite_topics"][0]["lite_topic"] == "chat-1"
    assert admin_pb2.ListTopicsRequest.FromString(calls[0][1]).include_system
    _, out, _, _ = run("topic list", ListTopics=admin_pb2.ListTopicsResponse())
    assert "evenq topic create NAME" in out


@pytest.mark.parametrize(("retention", "text"), [(None, "the broker's setting"), (0, "for ever"), (90_000_000, "25 h")])
def test_show_tells_queues_retention_and_readers(run, retention, text):
    topic = admin_pb2.DescribeTopicResponse(message_type=v2.NORMAL, groups=["g"], stranded=2, retention_ms=retention)
    queue = common_pb2.Queue(topic="t", broker_name="a", queue_id=1)
    topic.queues.add(queue=queue, min_offset=5, max_offset=9, permission=v2.READ)
    group = admin_pb2.DescribeGroupResponse()
    group.members.add(client_id="m").subscriptions.add(topic="t").filter.expression = "new"
    group.queues.add(queue=queue, lag=4, inflight=1)
    _, out, _, _ = run("topic show t --json", DescribeTopic=topic, DescribeGroup=group)
    output = json.loads(out)
    assert (output["messages"], output["retention"], output["stranded"]) == (4, text, 2)
    assert (output["queues"][0]["permission"], output["queues"][0]["queue"]) == ("read", 1)
    assert output["readers"] == [{"group": "g", "members": 1, "filters": "new", "lag": 4, "inflight": 1}]
    group.summary.silent.append("broker-b")
    _, out, err, _ = run("topic show t --json", DescribeTopic=topic, DescribeGroup=group)
    [reader] = json.loads(out)["readers"]
    assert (reader["lag"], reader["lag_at_least"], "broker-b" in err) == (None, 4, True)


def test_delete_wants_yes(run):
    code, _, err, calls = run("topic delete t")
    assert (code, calls, "add --yes" in err) == (1, [], True)
    code, out, _, calls = run("topic delete t --yes", DeleteTopic=admin_pb2.DeleteTopicResponse())
    assert (code, calls[0][0], "deleted" in out) == (0, "DeleteTopic", True)


def test_an_unknown_topic_names_the_command_that_helps(run):
    response = admin_pb2.DescribeTopicResponse()
    response.status.code, response.status.message = 40402, "no topic 'x'"
    code, _, err, _ = run("topic show x", DescribeTopic=response)
    assert (code, err.count("evenq topic list")) == (3, 1)


def test_show_names_readers_that_may_not_be_looked_at_and_leaves_out_those_that_went(run):
    topic = admin_pb2.DescribeTopicResponse(message_type=v2.NORMAL, groups=["gone", "secret"])
    refusals = [GroupNotFound("gone"), Forbidden("user shop may not describe group secret")]
    code, out, _, _ = run("topic show t --json", DescribeTopic=topic, DescribeGroup=refusals)
    assert code == 0
    assert json.loads(out)["readers"] == [
        {"group": "secret", "members": None, "filters": "", "lag": None, "inflight": None}
    ]
