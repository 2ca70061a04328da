"""Attributes that need no broker: servers, errors, and what several messages have in common."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from evenq_proofs.received import received_message

import evenq
from evenq.client.core.clients.observer import ClientIdentity
from evenq.model import MessageModel, MessageQueue
from evenq.otel.attributes import error_type, metric_attributes, partition_of, span_attributes, topic_of

MESSAGE = received_message(body=b"b", message_id="id", queue=MessageQueue("t", "a", 3))


@pytest.mark.parametrize(
    ("endpoint", "address", "port"),
    [
        ("a:8081", "a", 8081),
        ("10.0.0.1:80;b:81", "10.0.0.1", 80),
        ("[::1]:8081;b:81", "::1", 8081),
        ("a.example:443?one-address", "a.example", 443),
    ],
)
def test_the_server_is_the_first_access_point(endpoint: str, address: str, port: int) -> None:
    attributes = metric_attributes(ClientIdentity(endpoint=endpoint), "send", "send", "t")
    assert (attributes["server.address"], attributes["server.port"]) == (address, port)


def test_what_is_not_known_is_left_out() -> None:
    fixed = {"messaging.system": "rocketmq", "messaging.operation.name": "commit", "messaging.operation.type": "settle"}
    assert metric_attributes(ClientIdentity(), "commit", "settle", "") == fixed
    assert span_attributes(ClientIdentity(), "commit", "settle", "") == fixed


def test_a_span_has_client_and_model_and_a_metric_has_not() -> None:
    client = ClientIdentity(client_id="c", group="g", model=MessageModel.BROADCASTING)
    more = {"messaging.client.id": "c", "messaging.rocketmq.consumption_model": "broadcasting"}
    metric = metric_attributes(client, "process", "process", "t")
    assert span_attributes(client, "process", "process", "t") == {**metric, **more}
    assert not more.keys() & metric.keys()


def test_errors_are_named_by_their_class() -> None:
    assert error_type(evenq.errors.TopicNotFound("x")) == "TopicNotFound"
    assert error_type(KeyError("x")) == "KeyError"
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("{")
    assert error_type(raised.value) == "json.decoder.JSONDecodeError"


def test_messages_have_one_topic_or_none() -> None:
    assert topic_of([MESSAGE, MESSAGE]) == "t"
    assert topic_of([MESSAGE, replace(MESSAGE, topic="u")]) == ""
    assert topic_of([]) == ""
    assert partition_of(MESSAGE.queue) == "a/3"
