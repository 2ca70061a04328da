"""The sync push consumer and its users' code: listeners that raise, end the consumer, or are interrupted."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.waiting import until

import evenq
import evenq.aio
from evenq.client.options import PushOptions
from evenq.errors import BadRequest, IllegalTopic, Unsupported

HASTY = PushOptions(retry="local", retry_first_ms=10, retry_max_ms=20, drain_ms=200)


class Listener:
    """Notes what it got; fails while there are failures to raise."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.seen: list[bytes] = []
        self.threads: set[str] = set()
        self._guard = threading.Lock()

    def __call__(self, messages: Sequence[evenq.ReceivedMessage]) -> object:
        with self._guard:
            self.threads.add(threading.current_thread().name)
            self.seen += [message.body for message in messages]
            failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return None


def consumer(world: Any, listener: Any, **options: Any) -> evenq.PushConsumer:
    fields = {"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST", "options": HASTY, **options}
    made: evenq.PushConsumer = world.make(evenq.PushConsumer, listener=listener, **fields)
    return made


def committed(world: Any, topic: str = "t") -> int:
    with world.make(evenq.PullConsumer, group="g") as reader:
        return int(reader.committed(reader.queues_of(topic)[0]))


@pytest.mark.parametrize(
    "failure", [KeyError("a mistake"), SystemExit("end"), KeyboardInterrupt(), StopIteration(), GeneratorExit()]
)
def test_whatever_a_listener_raises_its_message_comes_again_and_the_consumer_lives(
    world: Any, failure: BaseException
) -> None:
    world.create("t")
    listener = Listener(failure)
    with consumer(world, listener):
        world.publish("t", b"1")
        world.until(lambda: listener.seen == [b"1", b"1"])
        world.publish("t", b"2")
        world.until(lambda: listener.seen == [b"1", b"1", b"2"])
    assert all(name.startswith("evenq-listener") for name in listener.threads)
    assert committed(world) == 2


def test_a_block_that_ends_waits_for_the_listener_and_commits_what_it_did(world: Any) -> None:
    world.create("t")
    inside, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def listener(messages: Sequence[evenq.ReceivedMessage]) -> None:
        inside.set()
        assert go_on.wait(60)
        done.append(len(messages))

    world.publish("t", b"1")
    with consumer(world, listener, options=PushOptions(drain_ms=20_000)) as one:
        assert inside.wait(60)
        closing = threading.Thread(target=one.close)
        closing.start()
        world.until(lambda: one.queues == [])
        assert closing.is_alive()
        go_on.set()
        closing.join(60)
        assert not closing.is_alive()
    assert done == [1]
    assert committed(world) == 1


def test_a_listener_that_hangs_holds_the_close_no_longer_than_the_drain(world: Any) -> None:
    world.create("t")
    inside, go_on = threading.Event(), threading.Event()

    def listener(_: object) -> None:
        inside.set()
        go_on.wait(60)

    world.publish("t", b"1")
    one = consumer(world, listener, options=PushOptions(drain_ms=50)).start()
    assert inside.wait(60)
    try:
        closing = threading.Thread(target=one.close)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    finally:
        go_on.set()
    assert committed(world) <= 0, "what was not finished is not committed"


def test_a_listener_may_close_its_own_consumer(world: Any) -> None:
    world.create("t")
    closed = threading.Event()

    def listener(_: object) -> None:
        one.close()
        closed.set()

    world.publish("t", b"1")
    one = consumer(world, listener, options=PushOptions(drain_ms=50)).start()
    assert closed.wait(60), "a close in a listener hangs"
    assert one.queues == []


def test_an_asyncio_close_that_is_cancelled_during_a_listener_leaves_the_group(world: Any) -> None:
    world.create("t", queues=2)
    world.publish("t", b"1")

    async def story() -> None:
        inside, go_on = asyncio.Event(), asyncio.Event()

        async def listener(_: object) -> None:
            inside.set()
            await go_on.wait()

        one = evenq.aio.PushConsumer(
            endpoint="a:8081",
            group="g",
            subscriptions={"t": "*"},
            listener=listener,
            start_from="FIRST",
            options=PushOptions(drain_ms=20_000),
            context=world.context(),
        )
        await one.start()
        await inside.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.close(), 0.001)
        go_on.set()

    world.run(story())
    with consumer(world, Listener()) as second:
        until(lambda: len(second.queues) == 2, seconds=20)


@pytest.mark.slow
def test_on_rebalance_may_close_its_own_consumer(world: Any) -> None:
    world.create("t")
    closed = threading.Event()

    def callback(gained: Sequence[object], _: object) -> None:
        if gained:
            one.close()
            closed.set()

    one = consumer(world, Listener(), on_rebalance=callback)  # bound before the callback may need it
    one.start()
    assert closed.wait(60), "a close in on_rebalance hangs"


def test_control_c_in_the_block_leaves_the_group_in_order(world: Any) -> None:
    world.create("t")
    world.publish("t", b"1")
    listener = Listener()
    with pytest.raises(KeyboardInterrupt), consumer(world, listener) as one:  # noqa: PT012 - the block is what is tested
        world.until(lambda: listener.seen == [b"1"])
        raise KeyboardInterrupt
    assert one.queues == []
    assert committed(world) == 1
    after = Listener()
    with consumer(world, after):
        world.publish("t", b"2")
        world.until(lambda: after.seen == [b"2"])


def test_before_its_start_and_after_its_end_each_call_is_refused(world: Any) -> None:
    world.create("t")
    one = consumer(world, Listener())
    calls = [lambda: one.subscribe("u"), lambda: one.unsubscribe("t"), one.pause, one.resume]
    for call in calls:
        with pytest.raises(Unsupported, match="consumer of g is not running"):
            call()
    assert (one.queues, one.balanced) == ([], False)
    one.start()
    with pytest.raises(Unsupported, match="was started before; make a new one"):
        one.start()
    world.until(lambda: one.balanced)
    assert len(one.queues) == 1
    one.close()
    one.close()
    for call in calls:
        with pytest.raises(Unsupported, match="consumer of g is not running"):
            call()
    with pytest.raises(Unsupported, match="was started before"):
        one.start()
    assert (one.queues, one.balanced) == ([], False)


def test_one_that_never_started_is_closed_without_a_call(world: Any) -> None:
    consumer(world, Listener()).close()
    assert world.net.calls == []


def test_a_paused_consumer_reads_nothing_until_it_goes_on(world: Any) -> None:
    world.create("t")
    listener = Listener()
    with consumer(world, listener) as one:
        world.until(lambda: one.balanced)
        one.pause()
        world.publish("t", b"1")
        first = list(listener.seen)
        one.resume()
        world.until(lambda: listener.seen == [b"1"])
        assert first in ([], [b"1"]), "a pull that was under way may bring it"


def test_topics_come_and_go_while_it_runs(world: Any) -> None:
    world.create("t")
    world.create("u")
    listener = Listener()
    with consumer(world, listener) as one:
        one.subscribe("u")
        world.until(lambda: {queue.topic for queue in one.queues} == {"t", "u"})
        world.publish("u", b"1")
        world.until(lambda: listener.seen == [b"1"])
        one.unsubscribe("t")
        world.until(lambda: {queue.topic for queue in one.queues} == {"u"})
        with pytest.raises(IllegalTopic):
            one.subscribe("no such/name")


def test_queues_of_a_broadcasting_consumer_start_when_their_offsets_file_can_be_read(
    world: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.create("t", queues=2)
    world.publish("t", b"1")
    path = tmp_path / "g" / "offsets.json"
    path.mkdir(parents=True)
    listener, errors = Listener(), queue.SimpleQueue[evenq.Error]()
    options = PushOptions(offsets_folder=tmp_path, rebalance_interval_ms=100)
    with consumer(world, listener, model="BROADCASTING", options=options, on_error=errors.put) as one:
        assert "offsets.json cannot be read" in str(errors.get(timeout=20))
        assert one.queues == []
        path.rmdir()
        until(lambda: len(one.queues) == 2, seconds=20)
        until(lambda: listener.seen == [b"1"], seconds=20)
    assert "Traceback" not in caplog.text


def test_a_coroutine_listener_is_refused_by_name_before_anything_runs(world: Any) -> None:
    async def listener(_: object) -> None:
        raise AssertionError("it runs")

    with pytest.raises(BadRequest, match=r"use evenq\.aio\.PushConsumer"):
        consumer(world, listener)
    assert world.net.calls == []


def test_arguments_that_make_no_sense_are_refused_before_anything_runs(world: Any) -> None:
    for wrong in (0, 1_001):
        with pytest.raises(BadRequest, match="consume_threads"):
            consumer(world, Listener(), consume_threads=wrong)
    with pytest.raises(IllegalTopic):
        consumer(world, Listener(), subscriptions={"no such/name": "*"})
    assert world.net.calls == []


def test_threads_of_the_listener_end_with_the_consumer(world: Any) -> None:
    world.create("t")
    listener = Listener()
    with consumer(world, listener) as one:
        world.publish("t", b"1")
        world.until(lambda: listener.seen == [b"1"])
        world.until(lambda: one._threads._threads)  # an executor lists a thread only after it has begun to work
        threads = [*one._threads._threads, *one._callbacks._threads]
    world.until(lambda: not any(thread.is_alive() for thread in threads))
