"""The group record in a real etcd: compaction, backups, users, TLS, restarts, and endpoints that do not answer."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.replication.record import Pair, RecordRefused, first_record
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack
from evenq_broker.loops.coordinators.etcd import (
    AuthIsOff,
    EtcdStore,
    EtcdUser,
    TokenRefused,
    endpoints_of,
    etcd_error,
    etcd_net,
)
from evenq_broker.loops.coordinators.remote import RemoteTiming
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.etcd import Etcd
from evenq_proofs.waiting import until

from evenq import errors
from evenq.errors import ConnectionFailed, SettingsError
from evenq.testing.certificates import Authority
from evenq.testing.free_ports import FreePorts
from evenq.wire.net import GrpcNet
from evenq.wire.tls import Tls

pytestmark = pytest.mark.timeout(BUILD_SECONDS + 300)
FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
SHORT = RemoteTiming(total_ms=3_000, silence_ms=20_000, retry_ms_max=200)


def base(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


class Interrupted:
    """A net that does something of the test just before the first watch begins, and counts them."""

    def __init__(self, net: GrpcNet, before: Any) -> None:
        self._net, self._before = net, before
        self.watches = 0

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        return await self._net.unary(address, method, request, timeout_ms=timeout_ms, metadata=metadata)

    async def stream(self, *arguments: Any, **more: Any) -> AsyncIterator[bytes]:
        self.watches += 1
        if self.watches == 1:
            await self._before()
        stream = self._net.stream(*arguments, **more)
        try:
            async for frame in stream:
                yield frame
        finally:
            await stream.aclose()


async def test_a_watch_whose_place_was_compacted_away_reads_again(etcd: Etcd, coordinators: Any) -> None:
    nets: list[Interrupted] = []
    a = coordinators.on_etcd(etcd.endpoints)
    seen = await a.compare_and_set(None, FIRST)
    newest: list[Any] = [seen]

    async def meanwhile() -> None:
        for _ in range(3):
            newest.append(await a.compare_and_set(newest[-1], newest[-1].record.renewed()))
        await asyncio.to_thread(etcd.gateway, "kv/compaction", {"revision": int(newest[-1].token)})

    def wrapped(net: GrpcNet) -> Interrupted:
        nets.append(Interrupted(net, meanwhile))
        return nets[0]

    watch = coordinators.on_etcd(etcd.endpoints, wrapped=wrapped).watch()
    assert await anext(watch) == seen
    assert await asyncio.wait_for(anext(watch), 60) == newest[-1], "by reading again"
    later = await a.compare_and_set(newest[-1], newest[-1].record.elected(0))
    assert await asyncio.wait_for(anext(watch), 60) == later
    assert nets[0].watches == 2, "the second watch began behind the compaction"
    await watch.aclose()


async def test_an_older_record_that_was_put_back_is_refused_by_who_saw_the_higher_epoch(
    etcd: Etcd, coordinators: Any
) -> None:
    a, b = coordinators.on_etcd(etcd.endpoints, broker="a"), coordinators.on_etcd(etcd.endpoints, broker="b")
    key = base(coordinators.key)
    first = await a.compare_and_set(None, FIRST)
    backup: Any = await asyncio.to_thread(etcd.gateway, "kv/range", {"key": key})
    second = await a.compare_and_set(first, FIRST.elected(0))
    await b.read()
    await asyncio.to_thread(etcd.gateway, "kv/put", {"key": key, "value": backup["kvs"][0]["value"]})
    said = f"group record {coordinators.key} of etcd at 127.0.0.1:.* is at epoch 0, version 1; .* seen epoch 1"
    for one in (a, b, coordinators.on_etcd(etcd.endpoints, broker="a")):  # the last one: a restarted broker
        with pytest.raises(RecordWentBack, match=said):
            await one.read()
        with pytest.raises(RecordWentBack):
            await one.compare_and_set(first, FIRST.elected(1))
        with pytest.raises(RecordWentBack):
            await anext(one.watch())
    assert await a.compare_and_set(second, second.record.renewed()) is None
    await asyncio.to_thread(etcd.gateway, "kv/deleterange", {"key": key})
    with pytest.raises(RecordWentBack, match="is gone; this broker has seen epoch 1"):
        await a.compare_and_set(None, FIRST)


async def test_a_key_that_is_deleted_ends_the_watch_by_name(etcd: Etcd, coordinators: Any) -> None:
    a = coordinators.on_etcd(etcd.endpoints)
    await a.compare_and_set(None, FIRST)
    watch = a.watch()
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.to_thread(etcd.gateway, "kv/deleterange", {"key": base(coordinators.key)})
    with pytest.raises(RecordWentBack, match="is gone"):
        await asyncio.wait_for(waiting, 60)


@pytest.mark.parametrize(("value", "said"), [("no record", "is not valid JSON"), ("x" * 20_000, "is over 16384 bytes")])
async def test_a_key_that_holds_something_else_is_refused_by_name(
    etcd: Etcd, coordinators: Any, value: str, said: str
) -> None:
    await asyncio.to_thread(etcd.gateway, "kv/put", {"key": base(coordinators.key), "value": base(value)})
    with pytest.raises(RecordRefused, match=f"{coordinators.key} of etcd at .* {said}"):
        await coordinators.on_etcd(etcd.endpoints).read()


@pytest.mark.slow
async def test_an_endpoint_where_nobody_listens_costs_a_try_and_none_at_all_is_unknown(
    etcd: Etcd, coordinators: Any
) -> None:
    with FreePorts() as ports:
        dead = f"http://127.0.0.1:{ports.take()}"
        a = coordinators.on_etcd(f"{dead},{etcd.endpoints}")
        seen = await a.compare_and_set(None, FIRST)
        assert seen is not None
        watch = a.watch()
        assert await anext(watch) == seen
        await watch.aclose()
        alone = coordinators.on_etcd(dead, timing=SHORT)
        began = time.monotonic()
        with pytest.raises(CoordinatorUnknown, match=rf"cannot be read: no etcd answers at {dead[7:]} .*client URL"):
            await alone.read()
        with pytest.raises(CoordinatorUnknown, match="cannot be written"):
            await alone.compare_and_set(seen, FIRST.elected(0))
        assert time.monotonic() - began < 60


@pytest.mark.slow  # an etcd of its own that is killed
async def test_a_watch_goes_on_after_etcd_was_killed_and_started_again(tmp_path: Path, coordinators: Any) -> None:
    with Etcd(tmp_path / "etcd") as own:
        a, b = coordinators.on_etcd(own.endpoints), coordinators.on_etcd(own.endpoints)
        seen = await a.compare_and_set(None, FIRST)
        watch = b.watch()
        assert await anext(watch) == seen
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.3)  # the watch stands
        await asyncio.to_thread(own.members[0].kill)
        own.members[0].start()
        await asyncio.to_thread(own.wait_healthy)
        later = await a.compare_and_set(seen, FIRST.elected(0))
        assert later is not None
        assert await asyncio.wait_for(waiting, 60) == later
        await watch.aclose()


@pytest.mark.slow  # waits until etcd's token is over
async def test_a_login_is_made_anew_when_its_token_is_over_and_a_wrong_one_is_said(
    tmp_path: Path, coordinators: Any
) -> None:
    with Etcd(tmp_path / "etcd", arguments=("--auth-token-ttl", "1")) as own:
        prefix = base(coordinators.key)
        user = EtcdUser("broker", "a-secret")
        for call, fields in (
            ("auth/user/add", {"name": "root", "password": "r"}),
            ("auth/role/add", {"name": "root"}),
            ("auth/user/grant", {"user": "root", "role": "root"}),
            ("auth/user/add", {"name": "broker", "password": "a-secret"}),
            ("auth/user/add", {"name": "stranger", "password": "s"}),
            ("auth/role/add", {"name": "group"}),
            ("auth/role/grant", {"name": "group", "perm": {"permType": "READWRITE", "key": prefix}}),
            ("auth/user/grant", {"user": "broker", "role": "group"}),
        ):
            own.gateway(call, dict(fields))
        a = coordinators.on_etcd(own.endpoints, user=user)
        seen = await a.compare_and_set(None, FIRST)  # users are not in force yet
        await asyncio.to_thread(own.gateway, "auth/enable", {})
        seen = await a.compare_and_set(seen, seen.record.renewed())
        assert seen is not None
        watch = a.watch()
        assert await anext(watch) == seen
        await asyncio.sleep(3.5)  # etcd looks for tokens that are over now and then
        seen = await a.compare_and_set(seen, seen.record.elected(0))
        assert seen is not None
        assert await asyncio.wait_for(anext(watch), 60) == seen
        await watch.aclose()
        for wrong, said in (
            (EtcdUser("broker", "not-this"), "refuses the login: authentication failed"),
            (EtcdUser("stranger", "s"), "forbids Range: permission denied; give the user a role"),
            (None, "wants a login for Range: user name is empty; give a user and a password"),
        ):
            with pytest.raises(CoordinatorUnknown, match=said) as caught:
                await coordinators.on_etcd(own.endpoints, user=wrong).read()
            assert "not-this" not in str(caught.value)
    assert "a-secret" not in repr(user)


@pytest.mark.slow  # an etcd of its own
async def test_etcd_is_spoken_to_with_tls_and_a_certificate_of_the_clients(tmp_path: Path, coordinators: Any) -> None:
    authority = Authority(tmp_path / "authority")
    server, client = authority.sign("etcd", hosts=["127.0.0.1"]), authority.sign("broker")
    files = ("--cert-file", server.certificate, "--key-file", server.key, "--trusted-ca-file", authority.ca)
    arguments = (*map(str, files), "--client-cert-auth")
    with Etcd(tmp_path / "etcd", arguments=arguments, scheme="https") as own:
        tls = Tls(ca=authority.ca, certificate=client.certificate, key=client.key)
        good = coordinators.on_etcd(own.endpoints, tls=tls)
        end = time.monotonic() + 60
        while True:
            try:
                assert await good.read() is None
                break
            except CoordinatorUnknown:
                assert time.monotonic() < end, own.members[0].log()
        seen = await good.compare_and_set(None, FIRST)
        watch = good.watch()
        assert await anext(watch) == seen
        await watch.aclose()
        for bad, setting in (
            (Tls(ca=authority.ca), "replication.etcd_user"),
            (Tls(ca=Authority(tmp_path / "other").ca), "replication.etcd_ca"),
            (None, "https:// in front of it in replication.record"),
        ):
            endpoints = own.endpoints if bad else own.endpoints.replace("https://", "")
            with pytest.raises(CoordinatorUnknown, match=r"of etcd at .*127\.0\.0\.1") as caught:
                await coordinators.on_etcd(endpoints, tls=bad, timing=SHORT).read()
            assert setting in str(caught.value)


@pytest.mark.slow  # an etcd of its own that stands still
async def test_a_server_that_is_paused_is_unknown_in_bounded_time(tmp_path: Path, coordinators: Any) -> None:
    with Etcd(tmp_path / "etcd") as own:
        a = coordinators.on_etcd(own.endpoints, timing=SHORT)
        seen = await a.compare_and_set(None, FIRST)
        own.members[0].pause()
        try:
            began = time.monotonic()
            with pytest.raises(CoordinatorUnknown, match=f"{coordinators.key} of etcd"):
                await a.compare_and_set(seen, FIRST.elected(0))
            assert 2.5 < time.monotonic() - began < 60
        finally:
            own.members[0].resume()
        until(lambda: own.members[0].running, "etcd")
        now = await coordinators.on_etcd(own.endpoints).read()
        assert now.record in {FIRST, FIRST.elected(0)}, "unknown means either"


async def test_calls_that_fail_together_turn_to_the_next_endpoint_once() -> None:
    asked: list[str] = []

    class Net:
        async def unary(self, address: str, *_: Any, **__: Any) -> bytes:
            asked.append(address)
            await asyncio.sleep(0)
            raise ConnectionFailed("it does not answer")

    store = EtcdStore(Net(), ("one:1", "two:1"), "key")  # type: ignore[arg-type]  # no more of a net is called
    await asyncio.gather(store.read(), store.read(), return_exceptions=True)
    await asyncio.gather(store.read(), return_exceptions=True)
    assert asked == ["one:1", "one:1", "two:1"]


def test_endpoints_are_client_urls() -> None:
    assert endpoints_of("http://a:2379, https://b:2379/ ,c:1") == ("evenq://a:2379", "evenqs://b:2379", "c:1")
    for wrong in ("", "a", "ftp://a:1", ",".join(["a:1"] * 10)):
        with pytest.raises(SettingsError, match="etcd"):
            endpoints_of(wrong)


async def test_a_key_has_its_limits() -> None:
    net = etcd_net()
    for wrong in ("", "x" * 1_025):
        with pytest.raises(SettingsError, match="give 1 to 1024"):
            EtcdStore(net, ("a:1",), wrong)
    await net.close()


@pytest.mark.parametrize(
    ("status", "details", "kind", "words", "again"),
    [
        (16, "etcdserver: invalid auth token", TokenRefused, "log in again", False),
        (3, "etcdserver: revision of auth store is old", TokenRefused, "wants a login for Txn", False),
        (3, "etcdserver: user name is empty", TokenRefused, "give a user and a password", False),
        (3, "etcdserver: authentication failed, invalid user ID or password", errors.Unauthorized, "right ones", False),
        (9, "etcdserver: authentication is not enabled", AuthIsOff, "knows no users", False),
        (7, "etcdserver: permission denied", errors.Forbidden, "a role with read and write", False),
        (4, "Deadline Exceeded", errors.RequestTimeout, "may or may not have taken effect", True),
        (12, "", errors.Unsupported, "a client URL of etcd v3", False),
        (8, "etcdserver: mvcc: database space exceeded", errors.TooManyRequests, "etcdctl alarm disarm", True),
        (8, "Received message larger than max (9 vs. 4)", errors.PayloadTooLarge, "is it the right key", False),
        (8, "etcdserver: too many requests", errors.TooManyRequests, "overloaded", True),
        (14, "etcdserver: no leader", errors.ConnectionFailed, "no leader; see whether most", True),
        (14, "failed to connect", errors.ConnectionFailed, "no etcd answers at h:1", True),
        (15, "etcdserver: corrupt cluster", errors.InternalError, r"corrupt cluster (gRPC status 15)", True),
    ],
)
def test_statuses(status: int, details: str, kind: type[errors.Error], words: str, *, again: bool) -> None:
    error = etcd_error(status, details, (), address="h:1", method="/etcdserverpb.KV/Txn", timeout_ms=300)
    assert type(error) is kind
    assert words in error.message
    assert "h:1" in error.message
    assert error.retryable == again
