"""A copy as an object with ports: clients may come to any copy where connections are forwarded."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.app import BrokerApp
from evenq_broker.broker import Broker
from evenq_broker.loops.replication import record_repair, replica_driver
from evenq_broker.loops.replication.outgoing_link import OutgoingLink
from evenq_broker.loops.replication.peer_links import PeerLinks
from evenq_broker.replica import client_access
from evenq_broker.replica.replicated_app import ReplicatedApp
from evenq_broker.settings import BrokerSettings, ReplicationSettings, StoreSettings
from evenq_proofs.v2_requests import receive_frames, receive_request, v2_message
from evenq_proofs.waiting import until_async
from pydantic import ValidationError

from evenq.errors import ConnectionFailed, StoreCorrupted
from evenq.runtime.clock import SystemClock
from evenq.testing.free_ports import FreePorts
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
HEARTBEAT = V2 + "Heartbeat"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def copy(
    number: int,
    folder: Path,
    port: int,
    links: int,
    net: GrpcNet,
    *,
    forward: bool = True,
    grows: bool = False,
    **more: Any,
) -> ReplicatedApp:
    """On an address of its own, with the ports of the others."""
    settings = BrokerSettings(
        host=HOSTS[number], port=port, metrics_port=-1, drain_ms=1_000, listeners=f"external={HOSTS[number]}:{port + 1}",
        store=StoreSettings(path=folder / str(number), disk_free_min_bytes=0, disk_used_max_ratio=1, segment_bytes=1 << 20),
        replication=ReplicationSettings(
            members=",".join(f"{one}={host}:{links}" for one, host in enumerate(HOSTS)), broker_id=number,
            record=f"file:{folder / 'record'}", forward_clients=forward, renew_ms=200, suspect_ms=5_000,
            from_one_copy=grows,
        ),
        **more,
    )  # fmt: skip
    return ReplicatedApp(settings, clock=SystemClock(), rng=random.Random(number), net=net)


async def answered(net: GrpcNet, address: str) -> None:
    """A client's call is, in the end: the leader may not serve yet."""
    async with asyncio.timeout(90):
        while True:
            try:
                answer = await net.unary(address, HEARTBEAT, b"", timeout_ms=5_000)
            except ConnectionFailed:
                await net.renew(address)
                await SystemClock().sleep_ms(50)
                continue
            assert service_pb2.HeartbeatResponse.FromString(answer).status.code == 20000
            return


def client_port(app: ReplicatedApp) -> int:
    """Returns the port of its broker for clients; 0 while it follows."""
    term = app.parts.term.app
    return 0 if term is None else term.port


def in_sync(apps: list[ReplicatedApp]) -> bool:
    return all(one.parts.driver.in_sync or client_port(one) for one in apps) and any(client_port(one) for one in apps)


@dataclass
class Group:
    """Copies of one broker, which have the same ports."""

    folder: Path
    net: GrpcNet
    port: int
    links: int
    settings: dict[str, Any]
    apps: list[ReplicatedApp] = field(default_factory=list)

    def made(self, number: int) -> ReplicatedApp:
        """Returns a new copy that is not started, on the files of the last one with this number."""
        return copy(number, self.folder, self.port, self.links, self.net, **self.settings)

    @property
    def leader(self) -> ReplicatedApp:
        """The only copy that serves clients."""
        (leader,) = [one for one in self.apps if client_port(one)]
        return leader


@asynccontextmanager
async def three_copies(folder: Path, **settings: Any) -> AsyncIterator[Group]:
    """Starts three copies and waits until they are in sync. Closes everything in `apps` at the end."""
    net = GrpcNet()
    with FreePorts() as ports:
        group = Group(folder, net, ports.take(2), ports.take(), settings)
        group.apps = [group.made(number) for number in range(3)]
        try:
            for one in group.apps:
                await one.start()
            await until_async(lambda: in_sync(group.apps))
            yield group
        finally:
            await asyncio.gather(*(one.close() for one in group.apps))
            await net.close()


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_any_copy_takes_clients_whichever_leads(tmp_path: Path) -> None:
    async with three_copies(tmp_path) as group:
        leader = group.leader
        for host in HOSTS:
            for each in (group.port, group.port + 1):
                await answered(group.net, f"{host}:{each}")
        await leader.parts.control.hand_over(None)
        await until_async(lambda: in_sync(group.apps) and not client_port(leader))
        for host in HOSTS:
            await answered(group.net, f"{host}:{group.port + 1}")


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_planned_hand_over_leaves_no_sender_in_doubt(tmp_path: Path) -> None:
    """HA-6: each message is stored, or was not taken; 50401, which leaves it open, would have it sent twice. The leader's
    disk is slower than an election.
    """
    codes: Counter[int] = Counter()
    over = asyncio.Event()

    async def send(net: GrpcNet, address: str) -> None:
        request = service_pb2.SendMessageRequest(messages=[definition_pb2.Message(body=b"x")])
        request.messages[0].topic.name = "t"
        while not over.is_set():
            request.messages[0].system_properties.message_id = uuid.uuid4().hex
            with suppress(ConnectionFailed):
                answer = await net.unary(address, V2 + "SendMessage", request.SerializeToString(), timeout_ms=5_000)
                codes[service_pb2.SendMessageResponse.FromString(answer).status.code] += 1

    async with three_copies(tmp_path) as group:
        leader = group.leader
        store = leader.parts.log.writer._store
        assert store is not None
        commit_log = store._log
        sync = commit_log.sync
        commit_log.sync = lambda: (time.sleep(0.1), sync())[1]  # type: ignore[method-assign]
        address = f"{leader.settings.host}:{group.port}"
        senders = [asyncio.ensure_future(send(group.net, address)) for _ in range(32)]
        try:
            await until_async(lambda: codes[20000] > 200)
            await leader.parts.control.hand_over(None)
            await until_async(lambda: not client_port(leader))
        finally:
            over.set()
        await asyncio.gather(*senders)
        assert codes[50002] > 0
        assert codes[50401] == 0, codes


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_a_lite_consumer_reads_on_at_the_next_leader_without_a_word_of_its_own(tmp_path: Path) -> None:
    """Official SDKs say what they want every 30 s, and for no other reason: a leader that did not know it would give them
    nothing for that long.
    """
    headers = {"x-mq-client-id": "phone"}
    async with three_copies(tmp_path, auto_create_groups=True, default_start_from="FIRST") as group:
        net, address = group.net, f"{HOSTS[1]}:{group.port}"  # whichever leads

        async def call(method: str, request: Any, response: Any) -> None:
            await answered(net, address)
            data = await net.unary(address, method, request.SerializeToString(), timeout_ms=30_000, metadata=headers)
            assert (status := response.FromString(data).status).code == definition_pb2.OK, status

        async def read() -> list[str]:
            topic, group = definition_pb2.Resource(name="chats"), definition_pb2.Resource(name="phones")
            request = service_pb2.ReceiveMessageRequest(group=group, batch_size=8)
            request.message_queue.topic.CopyFrom(topic)
            request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, 20
            parsed = await receive_frames(net, address, request, metadata=headers)
            return [frame.message.body.decode() for frame in parsed if frame.HasField("message")]

        async def send(body: str) -> None:
            request = service_pb2.SendMessageRequest()
            message = request.messages.add(topic=definition_pb2.Resource(name="chats"), body=body.encode())
            message.system_properties.message_id = message.system_properties.lite_topic = body
            await call(V2 + "SendMessage", request, service_pb2.SendMessageResponse)

        leader = group.leader
        wish = service_pb2.SyncLiteSubscriptionRequest(
            action=definition_pb2.COMPLETE_ADD, lite_topic_set=["first", "second"]
        )
        wish.topic.name, wish.group.name = "chats", "phones"
        made = admin_pb2.CreateTopicRequest(topic="chats", queues=1, message_type=definition_pb2.LITE)
        await call("/evenq.v1.Admin/CreateTopic", made, admin_pb2.CreateTopicResponse)
        await call(V2 + "SyncLiteSubscription", wish, service_pb2.SyncLiteSubscriptionResponse)
        await send("first")
        assert await read() == ["first"]
        await until_async(lambda: all(one.parts.lite_sets.newest() for one in group.apps if one is not leader))
        await leader.parts.control.hand_over(None)
        await until_async(lambda: in_sync(group.apps) and not client_port(leader))
        await send("second")
        assert await read() == ["second"]


class Knocker:
    """Connects to each address again and again, and remembers for how long one refused, ms."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.longest_ms = dict.fromkeys(addresses, 0)
        self._tasks = [asyncio.ensure_future(self._knock(address)) for address in addresses]

    async def _knock(self, address: tuple[str, int]) -> None:
        clock, since_ms = SystemClock(), None
        while True:
            try:
                _, writer = await asyncio.open_connection(*address)
            except ConnectionError:
                since_ms = clock.monotonic_ms() if since_ms is None else since_ms
                self.longest_ms[address] = max(self.longest_ms[address], clock.monotonic_ms() - since_ms)
            else:
                since_ms = None
                writer.transport.abort()
            await clock.sleep_ms(25)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# A connection that comes in the turn of the loop in which its port closes: Python 3.11 drops it without closing its
# socket (`asyncio.base_events.Server._attach` asserts that the port is open), which then warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_no_copy_refuses_connections_for_as_long_as_a_log_is_opened_or_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand-over, with brokers that take 3 s to open and to close; then a leader that stops: it is left first."""
    slow_ms = 3_000
    leave_ms = 4 * slow_ms
    monkeypatch.setattr(client_access, "LEAVE_MS", leave_ms)
    for name in ("open", "close"):
        quick = getattr(Broker, name)

        async def slowly(broker: Broker, *, quick: Callable[[Broker], Awaitable[None]] = quick) -> None:
            await SystemClock().sleep_ms(slow_ms)
            await quick(broker)

        monkeypatch.setattr(Broker, name, slowly)
    async with three_copies(tmp_path) as group:
        leader = group.leader
        knocker = Knocker(*((host, group.port) for host in HOSTS))
        try:
            await leader.parts.control.hand_over(None)
            await until_async(lambda: in_sync(group.apps) and not client_port(leader))
            assert max(knocker.longest_ms.values()) < slow_ms * 0.8
            await answered(group.net, f"{HOSTS[0]}:{group.port}")
            stopped = group.leader
            began_ms = SystemClock().monotonic_ms()
            ending = asyncio.ensure_future(stopped.close())
            await until_async(lambda: not stopped.parts.driver.leads)
            assert stopped.parts.readiness.why_not() == "it stops"
            await answered(group.net, f"{stopped.settings.host}:{group.port}")
            assert not ending.done()
            await ending
            assert SystemClock().monotonic_ms() - began_ms >= leave_ms
        finally:
            await knocker.end()
    await SystemClock().sleep_ms(200)  # connections that were aborted are gone
    gc.collect()  # it warns here, not in another test


@pytest.mark.timeout(300)
async def test_copies_that_are_to_join_one_copy_lead_clients_to_it_before_it_founds_the_group(tmp_path: Path) -> None:
    """They are ready, so that load balancers send clients there while it restarts."""
    net = GrpcNet()
    with FreePorts() as ports:
        port, links = ports.take(2), ports.take()
        joining = [copy(number, tmp_path, port, links, net, grows=True) for number in (1, 2)]
        late = copy(2, tmp_path / "other", port, links, net)
        alone = BrokerApp(
            joining[0].settings.model_copy(
                update={
                    "host": HOSTS[0], "replication": ReplicationSettings(), "listeners": "",
                    "store": StoreSettings(path=tmp_path / "0", disk_free_min_bytes=0, disk_used_max_ratio=1),
                }
            ),
            clock=SystemClock(), rng=random.Random(0), net=net,
        )  # fmt: skip
        try:
            await alone.start()
            for one in joining:
                await one.start()
                assert one.parts.readiness.why_not() == ""
                await answered(net, f"{one.settings.host}:{port}")
            await joining[1].close()
            await late.start()
            assert late.parts.readiness.why_not() == "it is not in sync with its group", "it is to join nobody"
        finally:
            for each in (alone, *joining, late):
                await each.close()
            await net.close()


@pytest.mark.timeout(300)
async def test_a_copy_that_stops_waits_for_clients_only_while_it_reaches_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all stop at once there is none to lead clients to, and each moment delays the next start."""
    async with three_copies(tmp_path) as group:
        follower = next(one for one in group.apps if not one.parts.driver.leads)
        began_ms = SystemClock().monotonic_ms()
        await follower.close()
        assert SystemClock().monotonic_ms() - began_ms >= client_access.LEAVE_MS, "one leads: clients find it"
        rest = [one for one in group.apps if one is not follower]
        monkeypatch.setattr(client_access, "LEAVE_MS", 120_000)
        began_ms = SystemClock().monotonic_ms()
        await asyncio.gather(*(one.close() for one in rest))
        assert SystemClock().monotonic_ms() - began_ms < client_access.LEAVE_MS


@pytest.mark.timeout(300)
async def test_a_copy_that_starts_beside_its_leader_is_not_ready_before_it_is_in_sync(tmp_path: Path) -> None:
    """A rolling restart goes on to the next copy when this one is ready."""
    async with three_copies(tmp_path) as group:
        follower = next(one for one in group.apps if not client_port(one))
        await follower.close()
        number = group.apps.index(follower)
        back = group.apps[number] = group.made(number)
        early: list[str] = []

        async def look() -> None:
            while back._parts is None or not back.parts.driver.in_sync:
                if back._parts is not None and not back.parts.readiness.why_not():
                    early.append(f"ready, {back.parts.driver.replica.role}")
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        await back.start()
        await asyncio.wait_for(looking, 60)
        assert not early


@pytest.mark.timeout(300)
async def test_a_leader_stores_crc32_once_each_copy_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 151: a copy of 0.2, which may lead next, sends no such field in its links."""
    link = PeerLinks._link

    def older(self: PeerLinks, peer: int, address: str) -> OutgoingLink:
        made = link(self, peer, address)
        if self.own_id == 2:
            made._opening = replace(made._opening, reads_crc32=False)
        return made

    monkeypatch.setattr(PeerLinks, "_link", older)
    async with three_copies(tmp_path) as group:
        address = f"{group.leader.settings.host}:{group.port}"
        assert await _digests(group.net, address, "older") == {definition_pb2.MD5}
        monkeypatch.setattr(PeerLinks, "_link", link)
        await group.apps[2].close()
        group.apps[2] = group.made(2)
        await group.apps[2].start()
        await until_async(lambda: in_sync(group.apps))
        address = f"{group.leader.settings.host}:{group.port}"
        assert await _digests(group.net, address, "newer") == {definition_pb2.CRC32, definition_pb2.MD5}


async def _digests(net: GrpcNet, address: str, topic: str) -> set[int]:
    """Sends some messages; returns the types of their digests as they are delivered."""
    await answered(net, address)
    request = service_pb2.SendMessageRequest(messages=[v2_message(topic, f"id{one}", b"%d" % one) for one in range(64)])
    answer = await net.unary(address, V2 + "SendMessage", request.SerializeToString(), timeout_ms=10_000)
    assert service_pb2.SendMessageResponse.FromString(answer).status.code == 20000
    found: dict[bytes, int] = {}
    while len(found) < 64:
        request_of = receive_request(
            "readers", topic, queue=-1, poll_ms=500, invisible_ms=60_000, tags="*", batch_size=32
        )
        for frame in await receive_frames(net, address, request_of, metadata={"x-mq-client-id": "c"}):
            if frame.HasField("message"):
                found[frame.message.body] = frame.message.system_properties.body_digest.type
    return set(found.values())


@pytest.mark.timeout(300)
async def test_a_copy_that_may_lead_is_ready_for_clients_while_none_leads_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All copies of a group ended, and one is back: clients wait there for the leader, and are not refused."""
    async with three_copies(tmp_path) as group:
        await asyncio.gather(*(one.close() for one in group.apps))
        records = [record for one in group.apps if (record := one.parts.driver.replica.record) is not None]
        first, second = sorted(max(records, key=lambda record: record.version).isr)[:2]  # one may have left it
        group.apps = [back := group.made(first.broker_id)]
        await back.start()
        await until_async(lambda: back.parts.readiness.why_not() == "")
        end_ms = SystemClock().monotonic_ms() + 2_000
        while SystemClock().monotonic_ms() < end_ms:
            assert back.parts.readiness.why_not() == ""
            await SystemClock().sleep_ms(20)
        assert not client_port(back), "a second copy is needed"
        reader, writer = await asyncio.open_connection(back.settings.host, group.port)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.5)
        writer.close()
        group.apps.append(beside := group.made(second.broker_id))
        await beside.start()
        await answered(group.net, f"{back.settings.host}:{group.port}")
        await beside.close()
        monkeypatch.setattr(replica_driver, "AWAIT_MS", 0)
        await back.close()
        group.apps = [alone := group.made(first.broker_id)]
        await alone.start()
        await until_async(lambda: alone.parts.driver.replica.record is not None)
        assert alone.parts.readiness.why_not() in {"it is not in sync with its group", "it begins to lead"}


async def test_a_start_that_fails_for_damage_says_who_was_asked_and_what_each_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_repair, "START_MS", 0)
    net = GrpcNet()
    with FreePorts() as ports:
        port, links = ports.take(2), ports.take()
        app = copy(0, tmp_path, port, links, net)
        await app.start()
        await until_async(lambda: app.parts.driver.replica.log.end > 0)
        await app.close()
        file = tmp_path / "0" / "commitlog" / f"{0:020d}"
        damaged = bytearray(file.read_bytes())
        damaged[60] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(StoreCorrupted) as caught:
            await copy(0, tmp_path, port, links, net).start()
    said = caught.value.message
    assert "byte 0 (log offset 0) is damaged" in said
    assert "it could not be repaired: copy 1: " in said
    assert "; copy 2: " in said
    await net.close()


def test_forwarding_needs_ports_that_are_the_same_at_all_copies(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="port 0 differs at each"):
        copy(0, tmp_path, 0, 1, GrpcNet())
