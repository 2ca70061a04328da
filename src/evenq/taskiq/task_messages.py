"""The message of a task: its topic, delay and priority by the labels of the task.

`EvenqBroker.kick` calls it. Workers read only the body, which is the task as taskiq's formatter wrote it, with all
labels. Key, tag and properties repeat the id, the name and short labels of the task, so that commands, the console and
filters find them.

A topic accepts either priorities or delays. With priorities, delayed tasks therefore go to a second topic of the same
name with `-delayed`. One that has a priority is sent to the first topic by the worker that receives it when it is due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from taskiq import BrokerMessage

from evenq.errors import BadRequest, IllegalDeliveryTime, IllegalTopic
from evenq.model import Message, MessageType, ReceivedMessage, topic_problem

TOPIC_LABEL, QUEUE_LABEL = "topic", "queue_name"
"""Labels that name the topic of a task; the second is the name in brokers of taskiq for Redis and RabbitMQ."""
DELAY_LABEL, PRIORITY_LABEL = "delay", "priority"
DELAYED = "-delayed"
DUE_PRIORITY = "due_priority"
"""Property of a delayed message: the priority of its task once it is due."""
LABEL_CHARACTERS_MAX = 256
"""Longer labels are only in the body."""
PROPERTIES_BYTES_MAX = 4 << 10
"""Properties of labels, in all; servers accept 16 KiB of tag, keys and properties by default."""
TAG_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTopics:
    """Topics of the tasks of one broker object."""

    default: str
    """Topic of tasks without a label `topic`."""
    priorities: int = 0
    """Number of priorities; 0: tasks have none."""

    def read(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """Returns all topics that workers of these topics subscribe to."""
        return tuple(name for topic in topics for name in (topic, *self._second(topic)))

    def kind(self, topic: str) -> MessageType:
        """Returns the type that the topic is created with."""
        return MessageType.PRIORITY if self.priorities and not topic.endswith(DELAYED) else MessageType.MIXED

    def message(self, task: BrokerMessage) -> Message:
        """Returns the message of a task. Raises IllegalTopic, IllegalDeliveryTime, BadRequest for a wrong label."""
        labels = task.labels
        topic, delay_ms, priority = self._topic(labels), _delay_ms(labels), self._priority(labels)
        properties = _properties(task)
        if delay_ms and self.priorities:
            if priority:
                properties[DUE_PRIORITY] = str(priority)
            topic, priority = topic + DELAYED, None
        return Message(
            topic=topic,
            body=task.message,
            tag=task.task_name if _is_tag(task.task_name) else None,
            keys=(task.task_id,) if _is_word(task.task_id) else (),
            properties=properties,
            delay=delay_ms or None,
            priority=priority,
        )

    def due(self, message: ReceivedMessage) -> Message | None:
        """Returns a delayed task that has a priority as a message for the topic of priorities; None: another task."""
        priority = message.properties.get(DUE_PRIORITY, "")
        if not self.priorities or not message.topic.endswith(DELAYED) or not priority.isdecimal():
            return None
        return Message(
            topic=message.topic.removesuffix(DELAYED),
            body=message.body,
            tag=message.tag,
            keys=message.keys,
            properties={key: value for key, value in message.properties.items() if key != DUE_PRIORITY},
            priority=int(priority),
        )

    def _second(self, topic: str) -> tuple[str, ...]:
        return (topic + DELAYED,) if self.priorities else ()

    def _topic(self, labels: Mapping[str, object]) -> str:
        named = [(label, str(labels[label])) for label in (TOPIC_LABEL, QUEUE_LABEL) if labels.get(label) is not None]
        if not named:
            return self.default
        label, topic = named[0]
        if any(other != topic for _, other in named):
            raise IllegalTopic(
                f"the labels {TOPIC_LABEL} and {QUEUE_LABEL} name two topics, {topic!r:.80} and {named[1][1]!r:.80}; "
                "give one of them"
            )
        problem = topic_problem(topic)
        if problem:
            raise IllegalTopic(f"label {label}: {problem}")
        return topic

    def _priority(self, labels: Mapping[str, object]) -> int | None:
        given = labels.get(PRIORITY_LABEL)
        if given is None:
            return None
        if not self.priorities:
            raise BadRequest(
                f"the task has the label {PRIORITY_LABEL}={given!s:.80}, and this broker object has no priorities; "
                "give EvenqBroker(priorities=10), or leave out the label"
            )
        try:
            priority = int(str(given))
        except ValueError:
            priority = -1
        if priority < 0:
            raise BadRequest(
                f"the label {PRIORITY_LABEL} is {given!s:.80}; give a whole number from 0 (lowest) to "
                f"{self.priorities - 1} (highest)"
            )
        return priority


def _delay_ms(labels: Mapping[str, object]) -> int:
    """Returns the delay of a task, ms; 0: none. Labels arrive as text, and retries of taskiq use fractions."""
    given = labels.get(DELAY_LABEL)
    if given is None:
        return 0
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise IllegalDeliveryTime(
            f"the label {DELAY_LABEL} is {given!s:.80}; give seconds, 0 or more, as in with_labels({DELAY_LABEL}=1.5)"
        )
    return math.ceil(seconds * 1_000)


def _properties(task: BrokerMessage) -> dict[str, str]:
    properties = {"task_id": task.task_id, "task_name": task.task_name}
    size = sum(_size(key, value) for key, value in properties.items())
    if size > PROPERTIES_BYTES_MAX:
        return {}
    for label, value in task.labels.items():
        key, text = f"label_{label}", str(value)
        size += _size(key, text)
        if size > PROPERTIES_BYTES_MAX:
            break
        if key.isprintable() and len(text) <= LABEL_CHARACTERS_MAX:
            properties[key] = text
    return properties


def _size(key: str, value: str) -> int:
    return len(key.encode()) + len(value.encode())


def _is_word(text: str) -> bool:
    return bool(text) and not text.isspace() and text.isprintable() and len(text) <= LABEL_CHARACTERS_MAX


def _is_tag(text: str) -> bool:
    return _is_word(text) and "|" not in text and len(text) <= TAG_CHARACTERS_MAX
