"""The handlers without a network: bad requests, watches, shutdown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from evenq_nameserver.rpc.registry import RegistryService
from evenq_nameserver.settings import Settings
from evenq_nameserver.stats import Stats

from evenq import errors
from evenq.runtime.clock import FakeClock
from evenq.serving.rpc import Action, RpcContext
from evenq.wire.stubs.evenq.v1 import registry_pb2

CONTEXT = RpcContext("/evenq.v1.Registry/Any", (), "127.0.0.1:1", None)


def service(**settings: int) -> RegistryService:
    return RegistryService(settings=Settings.model_validate(settings), clock=FakeClock(), identity="ns", stats=Stats())


def request(name: str = "a", topics: int = 1, port: int = 8081, host: str = "h", broker_id: int = 0) -> bytes:
    asked = registry_pb2.RegisterRequest()
    info = asked.state.broker
    info.name, info.id, info.incarnation, info.start_ms = name, broker_id, "i", 1
    info.listeners.add(name="default", host=host, port=port)
    for number in range(topics):
        asked.state.topics.add(name=f"t{number}", read_queues=4, write_queues=4)
    return asked.SerializeToString()


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (request(name=""), errors.BadRequest, "broker name is empty"),
        (request(name="a b"), errors.BadRequest, "'a b'"),
        (request(port=0), errors.BadRequest, "1 to 65535"),
        (request(host=""), errors.BadRequest, "give a host"),
        (request(topics=3), errors.TooManyRequests, "3 topics"),
        (request(broker_id=1), errors.NotImplementedYet, "id 1"),
    ],
)
def test_what_a_broker_tells_is_checked(sent: bytes, kind: type[errors.Error], words: str) -> None:
    with pytest.raises(kind, match=words):
        asyncio.run(service(topics_max=2).register(sent, CONTEXT))


def test_each_call_has_its_row_of_the_access_table_and_registering_is_internal() -> None:
    actions = {rpc.method.rpartition("/")[2]: rpc.access.action for rpc in service().rpcs()}
    assert actions == {
        "Register": Action.INTERNAL,
        "Heartbeat": Action.INTERNAL,
        "Unregister": Action.INTERNAL,
        "GetRoutes": Action.DESCRIBE,
        "WatchRoutes": Action.DESCRIBE,
    }


async def event(frames: AsyncIterator[bytes]) -> registry_pb2.RouteEvent:
    return registry_pb2.RouteEvent.FromString(await asyncio.wait_for(anext(frames), 10))


def test_a_watch_begins_with_the_table_and_goes_on_with_each_change() -> None:
    async def main() -> None:
        nameserver = service()
        await nameserver.register(request("a"), CONTEXT)
        async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
            first = await event(frames)
            assert (first.snapshot, first.version, [state.broker.name for state in first.brokers]) == (True, 1, ["a"])
            await nameserver.register(request("b"), CONTEXT)
            leave = registry_pb2.UnregisterRequest(broker_name="a", incarnation="i")
            await nameserver.unregister(leave.SerializeToString(), CONTEXT)
            second, third = await event(frames), await event(frames)
            assert (second.snapshot, second.version, [state.broker.name for state in second.brokers]) == (
                False,
                2,
                ["b"],
            )
            assert (third.version, list(third.removed)) == (3, ["a"])
            assert len(nameserver.watchers) == 1
        assert len(nameserver.watchers) == 0

    asyncio.run(main())


def test_a_young_nameserver_says_that_it_is_settling_and_tells_the_whole_table_after_that() -> None:
    async def main() -> None:
        clock = FakeClock()
        settings = Settings.model_validate({"expiry_ms": 10_000})
        nameserver = RegistryService(settings=settings, clock=clock, identity="ns", stats=Stats())
        async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
            first = await event(frames)
            assert (first.snapshot, first.settling, len(first.brokers)) == (True, True, 0)
            await nameserver.register(request("a"), CONTEXT)
            assert not (await event(frames)).snapshot
            await clock.advance(10_000)
            nameserver.settled()
            whole = await event(frames)
            assert (whole.snapshot, whole.settling) == (True, False)
            assert [state.broker.name for state in whole.brokers] == ["a"]
        async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
            assert not (await event(frames)).settling

    asyncio.run(main())


def test_the_end_of_a_broker_that_a_settling_nameserver_never_met_is_told_all_the_same() -> None:
    async def main() -> None:
        clock = FakeClock()
        nameserver = RegistryService(settings=Settings(), clock=clock, identity="ns", stats=Stats())
        leave = registry_pb2.UnregisterRequest(broker_name="a", incarnation="i").SerializeToString()
        async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
            await event(frames)
            await nameserver.unregister(leave, CONTEXT)
            assert list((await event(frames)).removed) == ["a"]
            await clock.advance(Settings().expiry_ms)
            await nameserver.unregister(leave, CONTEXT)
            await nameserver.register(request("b"), CONTEXT)
            assert [state.broker.name for state in (await event(frames)).brokers] == ["b"]

    asyncio.run(main())


def test_a_slow_watcher_is_cut_off_with_a_reason() -> None:
    async def main() -> None:
        nameserver = service(watcher_behind_max=2)
        frames = nameserver.watch_routes(b"", CONTEXT)
        assert (await event(frames)).snapshot
        for number in range(3):
            await nameserver.register(request(f"b{number}"), CONTEXT)
        with pytest.raises(errors.TooManyRequests, match="2 events behind"):
            await event(frames)

    asyncio.run(main())


def test_closing_ends_watches_with_an_error_that_sends_watchers_elsewhere() -> None:
    async def main() -> None:
        nameserver = service()
        frames = nameserver.watch_routes(b"", CONTEXT)
        await event(frames)
        waiting = asyncio.ensure_future(event(frames))
        await asyncio.sleep(0)
        nameserver.close()
        with pytest.raises(errors.ConnectionFailed, match="shutting down"):
            await waiting

    asyncio.run(main())
