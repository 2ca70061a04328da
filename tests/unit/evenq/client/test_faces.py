"""The two faces of the SDK are one: each public method of a client is there on both, with the same parameters, defaults,
annotations and a docstring, and what has no `await` is the same function.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from typing import Any

import pytest

import evenq
import evenq.aio
from evenq.client.faces import AsyncFace, SdkClient, SyncFace
from evenq.client.transaction import AsyncConsumerTransaction, AsyncTransaction, ConsumerTransaction, Transaction
from evenq.client.wiring import ClientContext
from evenq.errors import Unsupported
from evenq.runtime.clock import SystemClock

CLIENTS = (
    "Admin",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
)
AT_ONCE = {("SimpleConsumer", "start"), ("LiteSimpleConsumer", "start")}
"""Only the asyncio ones are started: a constructor can wait in a thread, not in a loop."""
APART = {
    ("Producer", "end_with_process"),
    ("Producer", "answer_with"),
    ("SimpleConsumer", "messages"),
    ("SimpleConsumer", "transaction"),
}
"""The first one is called when the process ends, and the loop of an asyncio client before it. The others return a
listener, an iterator and a transaction of their own face."""
RETURNS = {
    ("Producer", "send_async"): ("Future[SendResult]", "asyncio.Future[SendResult]"),
    ("Producer", "begin_transaction"): ("Transaction", "AsyncTransaction"),
    ("Producer", "answer_with"): (
        "Callable[[list[ReceivedMessage]], object]",
        "Callable[[list[ReceivedMessage]], Coroutine[Any, Any, object]]",
    ),
    ("SimpleConsumer", "messages"): ("MessageIterator", "AsyncMessageIterator"),
    ("SimpleConsumer", "transaction"): ("ConsumerTransaction", "AsyncConsumerTransaction"),
}
"""Results of another type, each of its own face."""
PAIRS = [
    *(pytest.param(getattr(evenq, name), getattr(evenq.aio, name), id=name) for name in CLIENTS),
    pytest.param(Transaction, AsyncTransaction, id="Transaction"),
    pytest.param(ConsumerTransaction, AsyncConsumerTransaction, id="ConsumerTransaction"),
]


def public(kind: type) -> dict[str, Any]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def shape(function: Any) -> list[tuple[str, object, object, object]]:
    parameters = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default, one.annotation) for one in parameters]


def test_every_client_of_one_face_is_in_the_other() -> None:
    clients = {name for name in evenq.__all__ if isinstance(getattr(evenq, name), type)}
    clients = {name for name in clients if issubclass(getattr(evenq, name), SyncFace)}
    with_await = {name for name in evenq.aio.__all__ if isinstance(getattr(evenq.aio, name), type)}
    with_await = {name for name in with_await if issubclass(getattr(evenq.aio, name), AsyncFace)}
    assert clients == with_await == set(CLIENTS)


@pytest.mark.parametrize(("sync", "with_await"), PAIRS)
def test_each_public_method_has_its_sibling_with_the_same_parameters_and_a_docstring(
    sync: type, with_await: type
) -> None:
    here, there = public(sync), public(with_await)
    name = sync.__name__
    assert {(name, one) for one in there.keys() ^ here.keys()} == {one for one in AT_ONCE if one[0] == name}
    if issubclass(sync, SyncFace):
        assert sync.__init__ is with_await.__init__, "the arguments of a client are written once"
    for method in sorted(here.keys() & there.keys()):
        one, other = here[method], there[method]
        where = f"{name}.{method}"
        assert inspect.getdoc(one), f"{where} has no docstring"
        assert inspect.getdoc(other), f"aio.{where} has no docstring"
        if isinstance(one, property):
            assert isinstance(other, property), where
            assert inspect.signature(one.fget) == inspect.signature(other.fget), where
            continue
        assert shape(one) == shape(other), where
        assert not inspect.iscoroutinefunction(one), where
        returns = (inspect.signature(one).return_annotation, inspect.signature(other).return_annotation)
        assert returns == RETURNS.get((name, method), (returns[0], returns[0])), where
        if not inspect.iscoroutinefunction(other) and (name, method) not in APART:
            assert one is other, f"{where} waits for nothing: it is written once, for both faces"


@pytest.mark.parametrize(("sync", "with_await"), PAIRS[: len(CLIENTS)])
def test_help_shows_the_constructor_with_types_and_text(sync: type, with_await: type) -> None:
    for kind in (sync, with_await):
        signature = inspect.signature(kind)
        assert "endpoint" in signature.parameters
        assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())
        assert all(one.kind is one.KEYWORD_ONLY for one in signature.parameters.values()), "no *args, no **kwargs"
        assert (kind.__init__.__doc__ or "").strip()
        assert (kind.__doc__ or "").strip()


class Where(SdkClient):
    """Says which thread its plain functions run in."""

    def thread(self) -> int:
        return self._in_loop(threading.get_ident)

    def later(self, heard: list[int], done: threading.Event) -> None:
        self._soon(lambda: (heard.append(threading.get_ident()), done.set()))


class WhereAsync(AsyncFace, Where):
    async def close(self) -> None:
        """Nothing to end."""


class WhereSync(SyncFace, Where):
    def close(self) -> None:
        """Nothing to end."""

    def wait(self) -> int:
        return self._run(self.work())

    async def work(self) -> int:
        return threading.get_ident()


def test_the_sync_face_works_in_the_loop_thread_and_the_asyncio_face_where_it_is_called() -> None:
    one = WhereSync()
    in_loop = one.wait()
    assert in_loop != threading.get_ident()
    assert one.thread() == in_loop
    heard: list[int] = []
    done = threading.Event()
    one.later(heard, done)
    assert done.wait(60)
    assert heard == [in_loop]
    with_await = WhereAsync()
    assert with_await.thread() == threading.get_ident()
    with_await.later(heard, done)
    assert heard == [in_loop, threading.get_ident()]


def test_a_sync_call_in_the_loop_thread_is_refused_instead_of_waiting_for_itself() -> None:
    one = WhereSync()

    async def inside() -> None:
        with pytest.raises(Unsupported, match="inside its own loop thread"):
            one.thread()

    one._run(inside())


def test_an_asyncio_flush_or_close_that_takes_too_long_says_how_many_are_left(world: Any) -> None:
    world.create("t")
    world.net.hold("Publish", "SendMessage")
    context = ClientContext(clock=SystemClock(), rng=random.Random(1), net=world.net)

    async def story() -> None:
        async with evenq.aio.Producer(endpoint="a:8081", context=context) as producer:
            await producer.send_async(evenq.Message(topic="t", body=b"1"))
            with pytest.raises(evenq.errors.RequestTimeout, match="1 messages are not acknowledged after 30 ms"):
                await producer.flush(30)
            await world.net.let_go()
            await asyncio.wait_for(producer.flush(), 60)
            world.net.hold("Publish", "SendMessage")
            last = await producer.send_async(evenq.Message(topic="t", body=b"2"))
            with pytest.raises(evenq.errors.RequestTimeout, match="1 messages are not acknowledged after 20 ms"):
                await producer.close(20)
            with pytest.raises(evenq.errors.Error):
                await asyncio.wait_for(last, 60)

    world.run(story())


CLOSED = {
    "LitePushConsumer": {"group": "g", "topic": "l", "listener": print},
    "LiteSimpleConsumer": {"group": "g", "topic": "l"},
    "Producer": {},
    "PullConsumer": {"group": "g", "subscriptions": {"t": "*"}},
    "PushConsumer": {"group": "g", "subscriptions": {"t": "*"}, "listener": print},
    "SimpleConsumer": {"group": "g", "subscriptions": {"t": "*"}},
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_close_that_is_cancelled_ends_the_client_nevertheless(world: Any, name: str) -> None:
    """It is marked as closed before anything is awaited, so that no later call could end the rest."""

    async def story() -> None:
        begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        client: Any = getattr(evenq.aio, name)(endpoint="a:8081", context=world.context(), **CLOSED[name])
        if name != "Producer":
            client._lifetime.started = True  # without a member whose own end would count
        shut = client._shut

        async def slow(**_: object) -> None:
            begun.set()
            await go_on.wait()
            ended.set()

        client._shut = slow
        closing = asyncio.create_task(client.close())
        await begun.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        go_on.set()
        await asyncio.wait_for(ended.wait(), 10)
        if name.endswith("PushConsumer"):  # `run` in another task returns
            await asyncio.wait_for(client._ends.wait(), 10)
        if name in {"Producer", "SimpleConsumer"}:  # the others have opened nothing
            await shut()

    world.run(story())
