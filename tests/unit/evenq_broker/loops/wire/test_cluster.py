"""Questions of brokers to each other about topics and groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from evenq_broker.loops.wire.cluster import (
    Placement,
    check_group_created,
    check_group_deleted,
    check_topic_deleted,
    create_group,
    create_topic,
    created_counts,
    placement_messages,
)
from evenq_broker.loops.wire.translation import counts_of

from evenq.errors import Error
from evenq.model import GroupConfig, MessageType, TopicConfig
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

OK = definition_pb2.Status(code=definition_pb2.OK)
REFUSED = definition_pb2.Status(code=definition_pb2.UNAUTHORIZED, message="no")


@pytest.mark.parametrize("kind", list(MessageType))
def test_where_a_topic_landed_comes_back_with_its_counts(kind: MessageType) -> None:
    topic = TopicConfig(name="t", topic_id=1, read_queues=3, write_queues=2, message_type=kind, chosen=True, uid="u")
    counts = counts_of("b", topic)
    response = admin_pb2.CreateTopicResponse(status=OK, placements=placement_messages("t", [Placement("b", counts)]))
    assert created_counts("b", response.SerializeToString()) == counts


def test_a_topic_that_could_not_be_made_has_the_reason_and_no_counts() -> None:
    [message] = placement_messages("t", [Placement("b", error="away")])
    assert (message.broker_name, message.error, message.HasField("entry")) == ("b", "away", False)


@pytest.mark.parametrize("kind", [MessageType.MIXED, MessageType.FIFO])
def test_another_broker_is_told_the_kind_and_to_make_the_topic_only_there(kind: MessageType) -> None:
    asked = admin_pb2.CreateTopicRequest.FromString(
        create_topic("t", kind, queues=4, retention_ms=None, chosen=False, uid="u")
    )
    assert (asked.topic, asked.queues, asked.uid, asked.local) == ("t", 4, "u", True)
    assert asked.mixed is (kind is MessageType.MIXED)
    assert not asked.HasField("retention_ms"), "the other broker's setting"


def test_a_group_goes_on_as_the_operator_asked_and_with_all_its_settings() -> None:
    request = admin_pb2.CreateGroupRequest(group="g", strategy="AVG")
    group = GroupConfig(name="g", group_id=1, strategy="AVG", max_attempts=7, revised_ms=5)
    sent = admin_pb2.CreateGroupRequest.FromString(create_group(request, group))
    assert (sent.group, sent.strategy, sent.local) == ("g", "AVG", True)
    assert (sent.settings.max_attempts, sent.settings.revised_ms) == (7, 5)
    assert not request.local, "the request itself stays as it is"


@pytest.mark.parametrize(
    ("read", "response"),
    [
        (check_topic_deleted, admin_pb2.DeleteTopicResponse(status=REFUSED)),
        (check_group_created, admin_pb2.CreateGroupResponse(status=REFUSED)),
        (check_group_deleted, admin_pb2.DeleteGroupResponse(status=REFUSED)),
    ],
)
def test_refusals_are_raised(
    read: Callable[[bytes], None],
    response: admin_pb2.DeleteTopicResponse | admin_pb2.CreateGroupResponse | admin_pb2.DeleteGroupResponse,
) -> None:
    with pytest.raises(Error, match="no"):
        read(response.SerializeToString())
