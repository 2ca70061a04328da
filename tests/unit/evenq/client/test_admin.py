"""The sync admin: shared by threads, its errors, and its end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import evenq
from evenq.errors import BadRequest, ConnectionFailed, Error, GroupNotFound, IllegalTopic, RequestTimeout, TopicNotFound


def test_topics_and_groups_come_and_go(world: Any) -> None:
    with world.make(evenq.Admin) as admin:
        (placed,) = admin.create_topic("t", queues=3)
        assert (placed.broker_name, placed.queues) == ("a", 3)
        assert [topic.topic for topic in admin.list_topics()] == ["t"]
        admin.create_group("g", max_attempts=5)
        assert [group.group for group in admin.list_groups()] == ["g"]
        admin.delete_group("g")
        admin.delete_topic("t")
        assert admin.list_topics() == []
        assert [broker.name for broker in admin.list_brokers()] == ["a"]


def test_what_is_missing_or_illegal_is_named(world: Any) -> None:
    admin = world.make(evenq.Admin)
    with pytest.raises(TopicNotFound, match="nothing"):
        admin.describe_topic("nothing")
    with pytest.raises(GroupNotFound, match="nobody"):
        admin.describe_group("nobody")
    with pytest.raises(IllegalTopic):
        admin.create_topic("no such/name")
    with pytest.raises(BadRequest, match=r"5000|4,?096"):
        admin.create_topic("t", queues=5_000)
    with pytest.raises(BadRequest, match="FAST"):
        admin.create_topic("t", message_type="FAST")


def test_threads_share_an_admin(world: Any, in_threads: Any) -> None:
    admin = world.make(evenq.Admin)

    def work(number: int) -> None:
        admin.create_topic(f"t{number}", queues=1)
        assert f"t{number}" in {topic.topic for topic in admin.list_topics()}

    assert in_threads(5, work) == []
    assert len(admin.list_topics()) == 5


def test_a_broker_that_is_silent_is_waited_for_as_long_as_the_admin_was_given(world: Any) -> None:
    admin = world.make(evenq.Admin, timeout_ms=50)
    world.net.hold("ListTopics")
    with pytest.raises(RequestTimeout, match="50 ms"):
        admin.list_topics()
    world.run(world.net.let_go())
    assert admin.list_topics() == []


def test_a_broker_that_is_gone_is_a_connection_that_failed_and_closing_works_without_it(world: Any) -> None:
    admin = world.make(evenq.Admin)
    world.net.stop("a:8081")
    with pytest.raises(ConnectionFailed):
        admin.list_topics()
    admin.close()
    admin.close()


def test_control_c_ends_a_call_that_waits_and_the_admin_works_on(world: Any) -> None:
    admin = world.make(evenq.Admin)
    world.net.hold("ListTopics")
    with world.interrupted():
        admin.list_topics()
    world.run(world.net.let_go())
    assert admin.list_topics() == []


def test_the_users_error_leaves_the_block(world: Any) -> None:
    with pytest.raises(KeyError), world.make(evenq.Admin) as admin:  # noqa: PT012 - the block is what is tested
        admin.create_topic("t")
        raise KeyError("the user's mistake")


def test_a_call_of_another_thread_ends_when_the_admin_is_closed_and_later_ones_are_refused() -> None:
    """Over gRPC, since the net of a client that closes is what ends its calls."""
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        admin = evenq.Admin(endpoint=f"127.0.0.1:{deaf.getsockname()[1]}", timeout_ms=60_000)
        errors: list[BaseException] = []

        def call() -> None:
            try:
                admin.list_topics()
            except BaseException as error:  # noqa: BLE001 - handed to the test
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        deaf.settimeout(20)
        accepted, _ = deaf.accept()
        admin.close()
        thread.join(60)
        accepted.close()
    assert not thread.is_alive()
    (error,) = errors
    assert isinstance(error, Error), repr(error)
    with pytest.raises(ConnectionFailed, match="shutting down"):
        admin.list_topics()
    admin.close()
