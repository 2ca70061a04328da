"""`evenq asyncapi`: the document of a cluster, over a net that is a script. tests/compat/test_asyncapi.py compares it with
the JSON schema of AsyncAPI.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from evenq.cli import asyncapi
from evenq.errors import TopicNotFound
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2


def cluster(*names: str) -> Any:
    response = admin_pb2.DescribeClusterResponse(cluster="shop")
    for name in names:
        summary = response.brokers.add(answered=True)
        summary.broker.name = name
        summary.broker.listeners.add(host=f"{name}.example", port=8081)
    return response


def topics(*names: str) -> Any:
    response = admin_pb2.ListTopicsResponse()
    for name in names:
        response.topics.add(topic=name, message_type=v2.FIFO)
    return response


def topic(name: str, *brokers: str) -> Any:
    response = admin_pb2.DescribeTopicResponse(message_type=v2.FIFO, retention_ms=60_000)
    for broker in brokers:
        for number in range(2):
            response.queues.add(queue=common_pb2.Queue(topic=name, broker_name=broker, queue_id=number))
    return response


def groups(*names: str) -> Any:
    response = admin_pb2.ListGroupsResponse()
    for name in names:
        response.groups.add(group=name)
    return response


def group(name: str, *read: str) -> Any:
    response = admin_pb2.DescribeGroupResponse()
    response.summary.group, response.summary.max_attempts = name, 17
    for member in ("m1", "m2"):
        one = response.members.add(client_id=member)
        one.subscriptions.add(topic=read[0]).filter.expression = "paid"
    for other in (*read, f"%RETRY%{name}"):
        response.queues.add(queue=common_pb2.Queue(topic=other, broker_name="a", queue_id=0))
    return response


def answers(**more: Any) -> dict[str, Any]:
    """Two topics and one group that reads both; it subscribes to the first."""
    return {
        "DescribeCluster": cluster("a", "b"),
        "ListTopics": topics("orders", "orders%eu"),
        "DescribeTopic": [topic("orders", "a", "b"), topic("orders%eu", "a")],
        "ListGroups": groups("billing"),
        "DescribeGroup": group("billing", "orders", "orders%eu", "another"),
        **more,
    }


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [one for part in value.values() for one in references(part)]
    return [one for part in value for one in references(part)] if isinstance(value, list) else []


def test_the_document_lists_servers_channels_and_operations(run):
    code, out, err, _ = run("asyncapi --endpoint a:8081", **answers())
    made = json.loads(out)
    assert (code, err, made["asyncapi"]) == (0, "", "3.0.0")
    assert made["info"] == {
        "title": "shop",
        "version": "1.0.0",
        "description": "Topics and consumer groups of the evenq cluster shop.",
    }
    assert made["servers"]["a"] == {
        "host": "a.example:8081",
        "protocol": "rocketmq",
        "protocolVersion": "5",
        "description": "Broker a, gRPC.",
    }
    orders = made["channels"]["orders"]
    assert (orders["address"], orders["x-evenq"]) == (
        "orders",
        {"messageType": "FIFO", "queues": {"a": 2, "b": 2}, "retentionMs": 60_000},
    )
    assert orders["servers"] == [{"$ref": "#/servers/a"}, {"$ref": "#/servers/b"}]
    assert made["channels"]["orders_eu"]["address"] == "orders%eu"
    assert set(made["operations"]) == {"billing.orders", "billing.orders_eu"}, "no retry topic, no unknown topic"
    reads = made["operations"]["billing.orders"]
    assert (reads["action"], reads["channel"]) == ("receive", {"$ref": "#/channels/orders"})
    assert reads["x-evenq"] == {
        "group": "billing",
        "members": 2,
        "filters": ["paid"],
        "ordered": False,
        "maxAttempts": 17,
    }
    assert made["operations"]["billing.orders_eu"]["x-evenq"]["members"] == 0, "read before, and by nobody now"
    assert "securitySchemes" not in made["components"]


def test_every_reference_leads_somewhere(run, monkeypatch):
    monkeypatch.setenv("EVENQ_ACCESS_KEY", "alice")
    monkeypatch.setenv("EVENQ_SECRET_KEY", "top-secret")
    _, out, _, _ = run("asyncapi --endpoint evenqs://a:8081", **answers())
    made = json.loads(out)
    found = references(made)
    assert len(found) > 10
    for reference in found:
        place: Any = made
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
        assert isinstance(place, dict)
    assert made["servers"]["a"]["security"] == [{"$ref": "#/components/securitySchemes/accessKey"}]
    assert made["servers"]["a"]["description"] == "Broker a, gRPC with TLS."
    assert "top-secret" not in out
    assert "alice" not in out


def test_only_named_topics_and_a_title_of_ones_own(run):
    line = "asyncapi --topic orders --title Shop --document-version 2.1.0"
    code, out, _, calls = run(line, **answers())
    made = json.loads(out)
    assert (code, list(made["channels"]), list(made["operations"])) == (0, ["orders"], ["billing.orders"])
    assert (made["info"]["title"], made["info"]["version"]) == ("Shop", "2.1.0")
    assert "ListTopics" not in dict(calls)


def test_a_named_topic_that_is_missing_is_an_error_and_one_that_ended_meanwhile_is_not(run):
    gone = TopicNotFound("no topic")
    code, out, err, _ = run("asyncapi --topic gone", **answers(DescribeTopic=gone))
    assert (code, out) == (3, "")
    assert "evenq topic list" in err
    code, out, _, _ = run("asyncapi", **answers(DescribeTopic=gone))
    assert (code, json.loads(out)["channels"]) == (0, {})


def test_a_broker_that_does_not_answer_makes_the_document_incomplete(run):
    response = cluster("a")
    response.brokers.add().broker.name = "b"
    code, out, err, _ = run("asyncapi", **answers(DescribeCluster=response))
    assert code == 1
    assert "No answer from b: the result lacks topics and groups that only they have." in " ".join(err.split())
    assert set(json.loads(out)["servers"]) == {"a"}


def test_the_document_as_yaml(run):
    _, expected, _, _ = run("asyncapi", **answers())
    _, out, _, _ = run("asyncapi -o yaml", **answers())
    assert yaml.safe_load(out) == json.loads(expected)
    assert out != expected


@pytest.mark.parametrize(
    ("names", "keys"),
    [(["a", "b"], ["a", "b"]), (["a%b", "a_b", "a/b"], ["a_b", "a_b-2", "a_b-3"])],
)
def test_names_become_distinct_keys(names: list[str], keys: list[str]) -> None:
    assert list(asyncapi._keys(names).values()) == keys
