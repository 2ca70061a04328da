"""The handlers without a network: bad requests, watches, shutdown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from evenq_nameserver.loops.expiry import expire_forever
from evenq_nameserver.rpc.registry import RegistryService
from evenq_nameserver.settings import NameserverSettings
from evenq_nameserver.stats import NameserverStats

from evenq import errors
from evenq.runtime.clock import FakeClock
from evenq.serving.rpc import Action, RpcContext
from evenq.wire.stubs.evenq.v1 import registry_pb2
from tests.unit.evenq_nameserver.stopped_clock import Stopped

CONTEXT = RpcContext("/evenq.v1.Registry/Any", (), "127.0.0.1:1", None)


def service(**settings: int | str) -> RegistryService:
    return RegistryService(
        settings=NameserverSettings.model_validate(settings), clock=FakeClock(), identity="ns", stats=NameserverStats()
    )


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


@pytest.mark.parametrize("call", ["register", "heartbeat", "unregister"])
@pytest.mark.parametrize(
    ("register_from", "host", "allowed"),
    [
        ("", "127.0.0.1", True),
        ("", "::1", True),
        ("", "10.1.2.3", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "127.0.0.1", False),
        ("*", "192.0.2.7", True),
    ],
)
def test_without_signatures_only_allowed_addresses_say_where_brokers_are(
    call: str, register_from: str, host: str, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    peer = f"[{host}]:1" if ":" in host else f"{host}:1"
    context = RpcContext("/evenq.v1.Registry/Any", (), peer, None)
    bodies = {"register": request(), "heartbeat": b"", "unregister": b""}

    async def main() -> None:
        nameserver = service(register_from=register_from)
        await getattr(nameserver, call)(bodies[call], context)

    if allowed:
        asyncio.run(main())
        return
    with pytest.raises(errors.Forbidden, match=rf"from {host}: register_from allows .*--register-from"):
        asyncio.run(main())
    assert f"from {host}" in caplog.text


def test_with_signatures_brokers_may_come_from_anywhere_unless_the_operator_says_where(tmp_path: Path) -> None:
    signed = {"enabled": True, "users": tmp_path / "users.toml"}
    assert NameserverSettings.model_validate({"auth": signed}).allowed_brokers().hold("192.0.2.7")
    narrow = NameserverSettings.model_validate({"auth": signed, "register_from": "10.0.0.0/8"})
    assert not narrow.allowed_brokers().hold("192.0.2.7")


async def test_refused_callers_leave_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    nameserver = RegistryService(settings=NameserverSettings(), clock=clock, identity="ns", stats=NameserverStats())

    async def refused() -> None:
        with pytest.raises(errors.Forbidden):
            await nameserver.heartbeat(b"", RpcContext("", (), "10.1.2.3:1", None))

    for _ in range(100):
        await refused()
    assert caplog.text.count("was refused") == 1
    await clock.advance(60_000)
    await refused()
    assert caplog.text.count("was refused") == 2


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
    return registry_pb2.RouteEvent.FromString(await asyncio.wait_for(anext(frames), 60))


async def test_a_watch_begins_with_the_table_and_goes_on_with_each_change() -> None:
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


async def test_a_young_nameserver_says_that_it_is_settling_and_tells_the_whole_table_after_that() -> None:
    settings = NameserverSettings.model_validate({"expiry_ms": 10_000})
    nameserver = RegistryService(settings=settings, clock=FakeClock(), identity="ns", stats=NameserverStats())
    async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
        first = await event(frames)
        assert (first.snapshot, first.settling, len(first.brokers)) == (True, True, 0)
        await nameserver.register(request("a"), CONTEXT)
        assert not (await event(frames)).snapshot
        nameserver.settled()
        whole = await event(frames)
        assert (whole.snapshot, whole.settling) == (True, False)
        assert [state.broker.name for state in whole.brokers] == ["a"]
    async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
        assert not (await event(frames)).settling


async def test_a_young_nameserver_that_was_stopped_is_settling_until_brokers_had_time_to_register() -> None:
    clock, stats = Stopped(), NameserverStats()
    settings = NameserverSettings.model_validate({"expiry_ms": 10_000})
    nameserver = RegistryService(settings=settings, clock=clock, identity="ns", stats=stats)

    async def first() -> registry_pb2.RouteEvent:
        async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
            return await event(frames)

    loop = asyncio.ensure_future(
        expire_forever(
            nameserver.registry,
            nameserver.announce,
            nameserver.settled,
            expiry_ms=settings.expiry_ms,
            clock=clock,
            stats=stats,
        )
    )
    await clock.advance(500)
    clock.pause_ms = 60_000
    await clock.advance(1_000)
    assert (await first()).settling, "no broker could register while it was stopped"
    await clock.advance(10_000)
    assert not (await first()).settling
    loop.cancel()


async def test_the_end_of_a_broker_that_a_settling_nameserver_never_met_is_told_all_the_same() -> None:
    nameserver = service()
    leave = registry_pb2.UnregisterRequest(broker_name="a", incarnation="i").SerializeToString()
    async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as frames:
        await event(frames)
        await nameserver.unregister(leave, CONTEXT)
        assert list((await event(frames)).removed) == ["a"]
        nameserver.settled()
        assert (await event(frames)).snapshot
        await nameserver.unregister(leave, CONTEXT)
        await nameserver.register(request("b"), CONTEXT)
        assert [state.broker.name for state in (await event(frames)).brokers] == ["b"]


async def test_a_watch_begins_with_the_brokers_that_left_lately_and_how_long_ago() -> None:
    nameserver = service()
    await nameserver.register(request(), CONTEXT)
    leave = registry_pb2.UnregisterRequest(broker_name="a", incarnation="i").SerializeToString()
    await nameserver.unregister(leave, CONTEXT)
    await nameserver.register(request("b"), CONTEXT)
    for passed_ms in (0, 4_000):
        await nameserver._clock.advance(passed_ms)  # type: ignore[attr-defined]  # a FakeClock
        async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as watch:
            first = await event(watch)
        assert [broker.broker.name for broker in first.brokers] == ["b"]
        [left] = first.left
        assert (left.state.broker.name, [topic.name for topic in left.state.topics]) == ("a", ["t0"])
        assert left.ago_ms == passed_ms, "also where watches share the table"


async def test_a_slow_watcher_is_cut_off_with_a_reason() -> None:
    nameserver = service(watcher_behind_max=2)
    frames = nameserver.watch_routes(b"", CONTEXT)
    assert (await event(frames)).snapshot
    for number in range(3):
        await nameserver.register(request(f"b{number}"), CONTEXT)
    with pytest.raises(errors.TooManyRequests, match="2 events behind"):
        await event(frames)


async def test_closing_ends_watches_with_an_error_that_sends_watchers_elsewhere() -> None:
    nameserver = service()
    frames = nameserver.watch_routes(b"", CONTEXT)
    await event(frames)
    waiting = asyncio.ensure_future(event(frames))
    await asyncio.sleep(0)
    nameserver.close()
    with pytest.raises(errors.ConnectionFailed, match="shutting down"):
        await waiting


async def test_watches_that_begin_between_two_changes_share_the_table() -> None:
    """It may have megabytes, and a watcher that does not read what it asked for keeps it."""
    nameserver = service()
    await nameserver.register(request(), CONTEXT)
    async with (
        aclosing(nameserver.watch_routes(b"", CONTEXT)) as one,
        aclosing(nameserver.watch_routes(b"", CONTEXT)) as other,
    ):
        table = await anext(one)
        assert await anext(other) is table
    await nameserver.register(request("b"), CONTEXT)
    async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as later:
        changed = registry_pb2.RouteEvent.FromString(await anext(later))
    assert [broker.broker.name for broker in changed.brokers] == ["a", "b"]
    assert changed.settling
    nameserver.settled()
    async with aclosing(nameserver.watch_routes(b"", CONTEXT)) as last:
        assert not registry_pb2.RouteEvent.FromString(await anext(last)).settling
