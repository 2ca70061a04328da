"""`evenq top --once` over scripted answers, and where it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2


def described(end: int) -> admin_pb2.DescribeTopicResponse:
    response = admin_pb2.DescribeTopicResponse()
    response.queues.add(queue=common_pb2.Queue(topic="orders", broker_name="a", queue_id=0), max_offset=end)
    return response


def test_once_polls_twice_and_prints_what_grew(run: Any) -> None:
    topics = admin_pb2.ListTopicsResponse(topics=[admin_pb2.TopicSummary(topic="orders", messages=10)])
    code, out, _, calls = run(
        "top --once --interval 0.2 -o json",
        ListTopics=topics,
        ListGroups=admin_pb2.ListGroupsResponse(),
        DescribeTopic=[described(10), described(30)],
    )
    shown = json.loads(out)
    assert code == 0
    assert [name for name, _ in calls].count("ListTopics") == 2
    assert shown["topics"][0]["in_per_s"] == pytest.approx(20 / shown["interval_s"], rel=0.01)


def test_a_pipe_without_once_is_a_mistake_that_names_it(run: Any) -> None:
    code, out, err, calls = run("top")
    assert (code, out, calls) == (2, "", [])
    assert "evenq top --once" in err


@pytest.mark.parametrize("value", ["0.1", "61", "x"])
def test_an_interval_that_is_not_valid_is_named(run: Any, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(f"top --interval {value}")
    assert value in capsys.readouterr().err
