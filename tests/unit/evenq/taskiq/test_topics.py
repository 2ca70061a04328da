"""Topics of tasks are created with the type that the tasks need, once, and looked up no more than that."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from evenq.client.core.admin.views import TopicDetails
from evenq.errors import BadRequest, ConnectionFailed, Error, Forbidden, TopicNotFound
from evenq.model import MessageType
from evenq.runtime.clock import FakeClock
from evenq.taskiq.task_messages import TaskTopics
from evenq.taskiq.topics import PATIENCE_MS, TopicCreator


class Server:
    def __init__(self, **topics: MessageType) -> None:
        self.topics = topics
        self.looks = 0
        self.created: list[tuple[str, int, Any]] = []
        self.fails: list[Error] = []
        self.refuses = False
        """True: the caller may not create topics."""

    async def describe_topic(self, topic: str) -> TopicDetails:
        self.looks += 1
        if self.fails:
            raise self.fails.pop(0)
        if topic not in self.topics:
            raise TopicNotFound(f"{topic} is not there")
        return TopicDetails(topic=topic, message_type=self.topics[topic], queues=(), groups=())

    async def create_topic(self, topic: str, *, queues: int = 0, message_type: Any = None) -> list[Any]:
        if self.refuses:
            raise Forbidden(f"user ann may not create topic {topic}")
        self.created.append((topic, queues, message_type))
        self.topics[topic] = message_type
        return []


def creator(server: Server, priorities: int = 0) -> tuple[TopicCreator, FakeClock]:
    clock = FakeClock()
    topics = TaskTopics(default="tasks", priorities=priorities)
    return TopicCreator(server, topics, who="group workers", clock=clock, rng=random.Random(1)), clock


async def test_a_missing_topic_is_created_for_plain_and_delayed_tasks() -> None:
    server = Server()
    made, _ = creator(server)
    await made.ensure("tasks")
    await made.ensure("tasks")
    assert (server.created, server.looks) == ([("tasks", 0, MessageType.MIXED)], 1)


async def test_priorities_get_a_topic_with_a_queue_for_each() -> None:
    server = Server()
    made, _ = creator(server, priorities=7)
    for topic in ("tasks", "tasks-delayed"):
        await made.ensure(topic)
    assert server.created == [("tasks", 7, MessageType.PRIORITY), ("tasks-delayed", 0, MessageType.MIXED)]


async def test_an_existing_topic_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(tasks=MessageType.MIXED)
    made, _ = creator(server)
    await made.ensure("tasks")
    assert (server.created, caplog.text) == ([], "")


@pytest.mark.parametrize(
    ("has", "priorities", "advice"),
    [
        (MessageType.NORMAL, 0, "`evenq topic create tasks --type MIXED` lets it take delayed tasks"),
        (MessageType.MIXED, 7, "use another topic for tasks with priorities"),
    ],
)
async def test_a_topic_of_another_type_is_warned_of(
    caplog: pytest.LogCaptureFixture, has: MessageType, priorities: int, advice: str
) -> None:
    made, _ = creator(Server(tasks=has), priorities)
    await made.ensure("tasks")
    assert f"topic tasks takes {has} messages" in caplog.text
    assert advice in caplog.text


async def test_a_caller_that_may_not_look_goes_on_without(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.fails = [Forbidden("no grant")]
    made, _ = creator(server)
    with caplog.at_level(logging.INFO):
        await made.ensure("tasks")
    assert server.created == []
    assert "no grant" in caplog.text


async def test_a_broker_that_does_not_answer_is_waited_for() -> None:
    server = Server()
    made, clock = creator(server)
    server.fails = [ConnectionFailed("nobody answers")] * 3
    await clock.during(made.ensure("tasks"))
    assert server.created
    server.fails = [ConnectionFailed("nobody answers")] * 10_000
    with pytest.raises(ConnectionFailed):
        await clock.during(made.ensure("others"), step_ms=100)
    assert PATIENCE_MS <= clock.monotonic_ms() < PATIENCE_MS * 2


async def test_tasks_of_known_topics_do_not_wait_for_the_look_at_another_one() -> None:
    server = Server()
    made, clock = creator(server)
    await made.ensure("tasks")
    server.fails = [ConnectionFailed("nobody answers")] * 3
    looking = asyncio.ensure_future(made.ensure("others"))
    await clock.advance(0)
    await made.ensure("tasks")
    assert not looking.done()
    await clock.during(looking)
    assert [name for name, _, _ in server.created] == ["tasks", "others"]


@pytest.mark.parametrize(("priorities", "options"), [(0, "--type MIXED"), (7, "--type PRIORITY --queues 7")])
async def test_a_missing_topic_without_the_grant_to_create_it_is_an_error_with_the_command(
    priorities: int, options: str
) -> None:
    server = Server()
    server.refuses = True
    made, _ = creator(server, priorities)
    with pytest.raises(Forbidden) as raised:
        await made.ensure("tasks")
    assert str(raised.value) == (
        "topic tasks does not exist, and user ann may not create topic tasks. Create it with "
        f"`evenq topic create tasks {options}`, or grant `create` on topic:tasks"
    )


async def test_a_worker_waits_for_a_broker_and_for_a_grant_and_logs_each_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.refuses = True
    server.fails = [ConnectionFailed("nobody answers")] * 200
    made, clock = creator(server)
    preparing = asyncio.ensure_future(made.ensure_patiently("tasks"))
    for _ in range(1_000):
        await clock.advance(2_000)
    assert not preparing.done()
    assert not server.fails
    assert caplog.text.count("group workers: looking for topic tasks fails, trying again") == 1
    assert caplog.text.count("topic tasks does not exist, and user ann may not create") == 1
    server.topics["tasks"] = MessageType.MIXED
    await clock.during(preparing)
    assert "group workers: looking for topic tasks works after" in caplog.text


async def test_a_worker_does_not_wait_for_what_no_operator_can_change() -> None:
    server = Server()
    server.fails = [BadRequest("too many queues")]
    made, _ = creator(server)
    with pytest.raises(BadRequest):
        await made.ensure_patiently("tasks")
