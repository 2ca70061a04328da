"""The sync consumers of lite topics in their users' threads: listeners that raise, Ctrl-C, errors at the start, the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

import evenq
from evenq.client.options import LiteOptions
from evenq.errors import ConnectionFailed, IllegalGroup, IllegalTopic, TopicNotFound, Unsupported
from evenq.model.retry import RetryKind, RetryPolicy


def create(world: Any) -> None:
    world.create("p", message_type="LITE")


def send(world: Any, name: str, *bodies: bytes) -> None:
    producer = world.make(evenq.Producer)
    for body in bodies:
        producer.send(evenq.Message(topic="p", body=body, lite_topic=name))


def simple(world: Any, *names: str, **options: Any) -> evenq.LiteSimpleConsumer:
    fields = {"group": "g", "topic": "p", "lite_topics": names, **options}
    made: evenq.LiteSimpleConsumer = world.make(evenq.LiteSimpleConsumer, **fields)
    return made


def push(world: Any, listener: Any, *names: str, **options: Any) -> evenq.LitePushConsumer:
    fields = {"group": "g", "topic": "p", "lite_topics": names, "listener": listener, **options}
    made: evenq.LitePushConsumer = world.make(evenq.LitePushConsumer, **fields)
    return made


def test_the_next_of_a_lite_topic_comes_when_the_one_before_is_done(world: Any) -> None:
    create(world)
    with simple(world, "ann") as one:
        send(world, "ann", b"1", b"2")
        (first,) = one.receive(wait_ms=10_000)
        assert (first.body, first.lite_topic) == (b"1", "ann")
        assert one.receive(wait_ms=0) == []
        hidden = one.change_invisible(first, 60_000)
        one.ack(hidden)
        (second,) = one.receive(wait_ms=10_000)
        assert second.body == b"2"
        one.suspend(second, 50)
        (again,) = one.receive(wait_ms=10_000)
        assert (again.body, again.delivery_attempt) == (b"2", 1)


def test_lite_topics_come_and_go(world: Any) -> None:
    create(world)
    one = simple(world, "ann")
    one.subscribe_lite("bob", "cat")
    one.unsubscribe_lite("ann")
    assert one.lite_topics == ["bob", "cat"]
    one.close()
    assert one.lite_topics == []


def test_after_its_end_each_call_is_refused(world: Any) -> None:
    create(world)
    send(world, "ann", b"1")
    one = simple(world, "ann")
    (message,) = one.receive(wait_ms=10_000)
    one.close()
    one.close()
    calls = [
        lambda: one.receive(wait_ms=0),
        lambda: one.ack(message),
        lambda: one.change_invisible(message, 10_000),
        lambda: one.suspend(message, 10_000),
        lambda: one.subscribe_lite("bob"),
        lambda: one.unsubscribe_lite("ann"),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="consumer of g is not running"):
            call()


def test_a_start_that_fails_says_why_and_leaves_nothing_behind(world: Any) -> None:
    world.create("plain")
    with pytest.raises(IllegalGroup):
        simple(world, "ann", group="no such/name")
    with pytest.raises(IllegalTopic):
        simple(world, "ann", topic="plain")
    world.net.stop("a:8081")
    with pytest.raises((ConnectionFailed, TopicNotFound)):
        simple(world, "ann")
    listener = push(world, lambda _: None, "ann")
    with pytest.raises((ConnectionFailed, TopicNotFound)):
        listener.start()
    assert listener.lite_topics == []
    listener.close()


def test_a_push_consumer_whose_start_failed_may_be_started_again(world: Any) -> None:
    seen: list[bytes] = []
    one = push(world, lambda messages: seen.extend(message.body for message in messages), "ann")
    world.create("p", message_type="LITE")
    rpcs = list(world.net._hosts["a:8081"].rpcs.values())
    world.net.stop("a:8081")
    with pytest.raises((ConnectionFailed, TopicNotFound)):
        one.start()
    world.net.serve("a:8081", rpcs)
    with one:
        send(world, "ann", b"1")
        world.until(lambda: seen == [b"1"])
        with pytest.raises(Unsupported, match="was started before"):
            one.start()
    with pytest.raises(Unsupported, match="was started before"):
        one.start()


def test_control_c_ends_a_receive_and_it_takes_no_message_afterwards(world: Any) -> None:
    create(world)
    one = simple(world, "ann")
    assert one.receive(wait_ms=0) == []
    world.net.hold("ReceiveMessage")
    with world.interrupted():
        one.receive(wait_ms=20_000)
    world.run(world.net.let_go())
    send(world, "ann", b"1")
    assert [message.body for message in one.receive(wait_ms=10_000)] == [b"1"], "the interrupted call took it"


@pytest.mark.parametrize("failure", [KeyError("a mistake"), SystemExit("end"), KeyboardInterrupt(), StopIteration()])
@pytest.mark.slow
def test_whatever_a_listener_raises_its_message_comes_again_and_others_go_on(
    world: Any, failure: BaseException
) -> None:
    create(world)
    world.make(evenq.Admin).create_group(
        "g", ordered=True, retry=RetryPolicy(kind=RetryKind.CUSTOMIZED, delays_ms=(100,))
    )
    seen: list[tuple[str | None, bytes]] = []
    guard = threading.Lock()
    failures = [failure]

    def listener(messages: Sequence[evenq.ReceivedMessage]) -> None:
        with guard:
            (message,) = messages
            seen.append((message.lite_topic, message.body))
            if message.body == b"1" and failures:
                raise failures.pop()

    send(world, "ann", b"1", b"2")
    send(world, "bob", b"3")
    with push(world, listener, "ann", "bob"):
        world.until(lambda: len(seen) == 4)
    assert [body for name, body in seen if name == "ann"] == [b"1", b"1", b"2"]
    assert ("bob", b"3") in seen


def test_a_listener_may_close_its_own_consumer(world: Any) -> None:
    create(world)
    closed = threading.Event()

    def listener(_: object) -> None:
        one.close()
        closed.set()

    send(world, "ann", b"1")
    one = push(world, listener, "ann", options=LiteOptions(drain_ms=50))
    one.start()
    assert closed.wait(60), "a close in a listener hangs"


def test_one_that_never_started_is_closed_without_a_call(world: Any) -> None:
    one = push(world, lambda _: None, "ann")
    with pytest.raises(Unsupported, match="not running; call start"):
        one.subscribe_lite("bob")
    one.close()
    assert world.net.calls == []
    with pytest.raises(Unsupported, match="was started before"):
        one.start()
