"""From the labels of a task to its message: topic, delay, priority, and what is shown of it."""

from __future__ import annotations

from typing import Any

import pytest
from taskiq import BrokerMessage

from evenq.errors import BadRequest, Error, IllegalDeliveryTime, IllegalTopic
from evenq.model import Message, MessageType
from evenq.taskiq.task_messages import LABEL_CHARACTERS_MAX, PROPERTIES_BYTES_MAX, TaskTopics

PLAIN = TaskTopics(default="tasks")
RANKED = TaskTopics(default="tasks", priorities=10)


def message(
    topics: TaskTopics = PLAIN, /, *, task_id: str = "id-1", task_name: str = "app:run", **labels: Any
) -> Message:
    task = BrokerMessage(task_id=task_id, task_name=task_name, message=b"the task", labels=labels)
    return topics.message(task)


def test_a_task_without_labels_is_a_plain_message_that_can_be_found() -> None:
    made = message()
    assert (made.topic, made.body, made.tag, made.keys) == ("tasks", b"the task", "app:run", ("id-1",))
    assert (made.delay, made.priority, made.message_group) == (None, None, None)
    assert made.properties == {"task_id": "id-1", "task_name": "app:run"}


def test_labels_are_carried_as_properties() -> None:
    assert message(colour="red", retries="2").properties == {
        "task_id": "id-1", "task_name": "app:run", "label_colour": "red", "label_retries": "2",
    }  # fmt: skip


@pytest.mark.parametrize("label", ["topic", "queue_name"])
def test_a_label_names_the_topic(label: str) -> None:
    assert message(**{label: "slow"}).topic == "slow"
    assert message(topic="slow", queue_name="slow").topic == "slow"


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"topic": "a", "queue_name": "b"}, "two topics, 'a' and 'b'"),
        ({"topic": "no such/name"}, "label topic: .*no such/name"),
        ({"queue_name": ""}, "label queue_name"),
    ],
)
def test_a_label_that_names_no_topic_is_refused(labels: dict[str, str], text: str) -> None:
    with pytest.raises(IllegalTopic, match=text):
        message(**labels)


@pytest.mark.parametrize(
    ("given", "delay_ms"), [("5", 5_000), (5, 5_000), ("0.25", 250), (1.0005, 1_001), ("0", None), (0, None)]
)
def test_the_delay_is_in_seconds(given: Any, delay_ms: int | None) -> None:
    assert message(delay=given).delay == delay_ms


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf", True, ""])
def test_a_delay_that_is_not_a_duration_is_refused(given: Any) -> None:
    with pytest.raises(IllegalDeliveryTime, match=r"the label delay is .*; give seconds"):
        message(delay=given)


def test_priorities_need_a_broker_object_that_has_them() -> None:
    with pytest.raises(BadRequest, match=r"label priority=3.*EvenqBroker\(priorities=10\)"):
        message(priority="3")
    assert message(RANKED, priority="3").priority == 3
    assert message(RANKED, priority=99).priority == 99, "the server takes it as the highest"
    assert message(RANKED).priority is None


@pytest.mark.parametrize("given", ["high", "-1", "1.5", True])
def test_a_priority_that_is_not_a_whole_number_is_refused(given: Any) -> None:
    with pytest.raises(BadRequest, match=r"whole number from 0 \(lowest\) to 9 \(highest\)"):
        message(RANKED, priority=given)


def test_with_priorities_a_delayed_task_goes_to_the_second_topic() -> None:
    made = message(RANKED, priority="3", delay="2")
    assert (made.topic, made.priority, made.delay) == ("tasks-delayed", None, 2_000)
    assert message(RANKED, topic="slow", delay=2).topic == "slow-delayed"
    assert message(RANKED, priority="3", delay="0").topic == "tasks"


def test_topics_that_workers_read_and_their_types() -> None:
    assert PLAIN.read(("tasks", "slow")) == ("tasks", "slow")
    assert RANKED.read(("tasks", "slow")) == ("tasks", "tasks-delayed", "slow", "slow-delayed")
    assert [PLAIN.kind("tasks"), RANKED.kind("tasks"), RANKED.kind("tasks-delayed")] == [
        MessageType.MIXED,
        MessageType.PRIORITY,
        MessageType.MIXED,
    ]


@pytest.mark.parametrize("name", ["", " ", "a|b", "a\nb", "x" * 300])
def test_a_name_that_cannot_be_a_tag_or_key_is_left_out(name: str) -> None:
    made = message(task_name=name)
    assert made.tag is None
    made = message(task_id=name)
    assert made.keys == (("a|b",) if name == "a|b" else ())


def test_long_and_many_labels_stay_in_the_body_only() -> None:
    made = message(short="x", long="x" * (LABEL_CHARACTERS_MAX + 1), **{"new\nline": "x"})
    assert set(made.properties) == {"task_id", "task_name", "label_short"}
    made = message(**{f"n{number:04}": "x" * 100 for number in range(1_000)})
    size = sum(len(key) + len(value) for key, value in made.properties.items())
    assert PROPERTIES_BYTES_MAX - 200 < size <= PROPERTIES_BYTES_MAX
    assert message(task_id="x" * PROPERTIES_BYTES_MAX).properties == {}


def test_every_refusal_is_an_error_of_evenq() -> None:
    for labels in ({"topic": "/"}, {"delay": "x"}, {"priority": "1"}):
        with pytest.raises(Error):
            message(**labels)
