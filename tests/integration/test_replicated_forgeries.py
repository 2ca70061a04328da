"""Copies that say, or hold, what no copy of their group does: real processes, and a peer that speaks the links' protocol.

What is refused is refused by name, nothing is committed by it, and nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from crc32c import crc32c
from evenq_broker.core.replication.messages import (
    Body,
    Envelope,
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    Records,
    Refusal,
)
from evenq_broker.loops.replication.peer_links import PeerLinks
from evenq_broker.rpc.replication.replication import replication_rpcs
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.replicated_group import (
    events,
    figure,
    folder_of,
    group,
    in_sync,
    leader_of,
    members_of,
    number_of,
    readiness,
)
from evenq_proofs.waiting import until as within

import evenq
from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_server import open_grpc_server
from evenq.store import StoreOptions
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.disk import RealDisk
from evenq.store.log.last_record import record_before
from evenq.store.log.record import STATE, pack
from evenq.store.log.segment import path_of, segment_of
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from evenq.wire.net import GrpcNet

pytestmark = [pytest.mark.timeout(BUILD_SECONDS + 300), pytest.mark.slow]

TOPIC, NAME = "flights", "broker-a"
LONG_S = 90.0
until = partial(within, seconds=LONG_S)
BODY = b"x" * 4_000
FAR = 1 << 40
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with group(tmp_path_factory.mktemp("copies")) as cluster:
        yield cluster


async def reached(what: Callable[[], object], why: Callable[[], object] = lambda: "") -> None:
    end = time.monotonic() + LONG_S
    while not what():
        assert time.monotonic() < end, why()
        await asyncio.sleep(0.05)


def identity_of(node: Node) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((folder_of(node) / "replica").read_text())
    return fields


def in_record(cluster: LocalCluster) -> dict[str, str]:
    """Who is in sync by the group record: number and store."""
    stores: dict[str, str] = json.loads((cluster.folder / f"{NAME}.group").read_text())["isr"]
    return stores


def log_of(node: Node) -> bytes:
    """What was written of its log; the files are longer."""
    return b"".join(path.read_bytes() for path in sorted((folder_of(node) / "commitlog").iterdir())).rstrip(b"\0")


def send(cluster: LocalCluster, names: list[str]) -> list[str]:
    """Messages that were acknowledged: all of them."""
    options = evenq.ProducerOptions(send_timeout_ms=int(LONG_S * 1_000))
    with evenq.Producer(endpoint=cluster.endpoints, options=options) as producer:
        for name in names:
            producer.send(evenq.Message(topic=TOPIC, body=name.encode() + b"|" + BODY))
    return names


def names_of(story: str, count: int) -> list[str]:
    return [f"{story} {number}" for number in range(count)]


def received(cluster: LocalCluster, wanted: list[str]) -> set[str]:
    """Those of the names that are there for a new group of consumers."""
    names: set[str] = set()
    with evenq.SimpleConsumer(
        group=wanted[0].replace(" ", "-"), subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, start_from="FIRST"
    ) as consumer:
        end = time.monotonic() + LONG_S
        while not names.issuperset(wanted) and time.monotonic() < end:
            for message in consumer.receive(64, invisible_ms=60_000, wait_ms=1_000):
                names.add(message.body.decode().partition("|")[0])
                consumer.ack(message)
    return names & set(wanted)


def acknowledged(sending: Future[list[str]]) -> list[str]:
    """What a send that is over, or not, was told; it gives up when it was refused often enough."""
    return sending.result() if sending.done() and sending.exception() is None else []


def sent_alone(cluster: LocalCluster, leader: Node, name: str, pool: ThreadPoolExecutor) -> Future[list[str]]:
    """A message that only the leader has: both others are paused. It is not acknowledged."""
    others = [node for node in cluster.brokers if node is not leader]
    for node in others:
        cluster.pause(node)
    sending = pool.submit(send, cluster, [name])
    for node in others:
        mark = f'broker_id="{number_of(node)}"'
        until(lambda mark=mark: figure(leader, "evenq_broker_replica_lag", mark) > len(BODY))  # type: ignore[misc]
    assert not sending.done()
    return sending


class Peer:
    """Speaks for one copy, whose process is dead, over real links in both directions."""

    def __init__(self, victim: Node, leader: Node) -> None:
        members = members_of(leader)
        self.number, self.leader = number_of(victim), number_of(leader)
        self.port = int(members[self.number].rpartition(":")[2])
        self.identity = identity_of(victim)
        self.received: list[Envelope] = []
        self.net = GrpcNet()
        self.runtime = Runtime(BrokerSettings(broker_name=NAME), clock=CLOCK, rng=random.Random(1), net=self.net)
        both = {number: members[number] for number in (self.number, self.leader)}
        self.links = PeerLinks(self.runtime, both, self.number, self.received.append)

    def say(self, body: Body, *, ahead: int = 0, store_id: str = "") -> None:
        """To be lost unless a link stands. `ahead`: of the epoch of the group."""
        known = self.identity
        if self.leader not in self.links.connected or self.links.waiting_bytes:
            return  # what waits would come again with the next link
        self.links.send(
            self.leader,
            Envelope(known["cluster"], self.number, store_id or known["store_id"], 7, known["epoch"] + ahead, body),
        )

    async def answer(self, kind: type[Body], body: Body, **options: Any) -> Any:
        """What the leader answers, asked until it does: after a fault it takes no link for a while."""
        self.received.clear()

        def answered() -> bool:
            self.say(body, **options)
            return any(isinstance(one.body, kind) for one in self.received)

        await reached(answered)
        return next(one.body for one in self.received if isinstance(one.body, kind))

    async def end(self) -> int:
        """Of the leader's log."""
        reply: EpochsReply = await self.answer(EpochsReply, EpochsRequest(1))
        return reply.end

    async def committed(self) -> int:
        records: Records = await self.answer(Records, FollowerProgress(0, 0, wants=True))
        return records.committed

    async def close(self) -> None:
        await self.links.close()
        await self.runtime.close()
        await self.net.close()


def as_peer(victim: Node, leader: Node, story: Callable[[Peer], Awaitable[None]]) -> None:
    async def body() -> None:
        peer = Peer(victim, leader)
        server = await open_grpc_server(replication_rpcs(peer.links), host="127.0.0.1", port=peer.port, clock=CLOCK)
        peer.links.start()
        try:
            await story(peer)
        finally:
            await peer.close()
            await server.stop()

    asyncio.run(body())


@pytest.mark.spec("HA-2")
def test_forged_confirmations_are_refused_by_name_and_commit_nothing(cluster: LocalCluster) -> None:
    """R3, R5, R10: a record that waits for one copy is committed by what that copy confirms, and by nothing else."""
    send(cluster, names_of("before forgeries", 5))
    in_sync(cluster, 3)
    leader = leader_of(cluster)
    followers = [node for node in cluster.brokers if node is not leader]
    with ThreadPoolExecutor(1) as pool:
        sending = sent_alone(cluster, leader, "forged", pool)
        for node in followers:
            node.kill()
        until(lambda: len(in_record(cluster)) == 2)
        (victim,) = [node for node in followers if str(number_of(node)) in in_record(cluster)]

        async def story(peer: Peer) -> None:
            committed, end = await peer.committed(), await peer.end()
            assert committed <= end - len(BODY)
            other = "f" * 32
            epoch = peer.identity["epoch"]
            # Few: each one closes the links for twice as long as the one before.
            forgeries: list[tuple[Body, dict[str, Any], str]] = [
                (FollowerProgress(FAR, FAR, wants=True), {}, f"its log ends at {FAR}, that of its leader at "),
                (FollowerProgress(end, end, wants=True), {"store_id": "mine"}, "store id 'mine' is not 32 lower-case"),
                (
                    FollowerProgress(end, end, wants=True),
                    {"ahead": 2_000_000},
                    f"epoch {epoch + 2_000_000}, while {epoch}",
                ),
            ]
            for body, options, words in forgeries:
                begun = len(leader.log_text())

                def refused(body: Body = body, options: Any = options, words: str = words, begun: int = begun) -> bool:
                    peer.say(body, **options)
                    return bool(events(leader, words, since=begun))

                await reached(refused, leader.log_text)
                line = events(leader, words, since=begun)[0]
                assert line.startswith(f"replication of {NAME}: links with broker {peer.number} are closed for ")
            await peer.answer(Refusal, FollowerProgress(end, end, wants=True), ahead=-1)
            assert await peer.committed() == committed, "what was confirmed in another epoch does not count"
            peer.say(FollowerProgress(committed - 1, committed - 1, wants=False), store_id=other)
            assert await peer.committed() == committed
            assert in_record(cluster)[str(peer.number)] == peer.identity["store_id"], "a new disk that lacks something"
            assert acknowledged(sending) == []
            end = await peer.end()
            limit = time.monotonic() + LONG_S
            while await peer.committed() < end:  # nothing else was waited for
                assert time.monotonic() < limit, leader.log_text()
                peer.say(FollowerProgress(end, end, wants=False))

        as_peer(victim, leader, story)
    for node in followers:
        node.start()
    in_sync(cluster, 3)
    assert leader_of(cluster) is leader, "it led all the time"
    assert received(cluster, ["forged"]) == {"forged"}
    until(lambda: len({log_of(node) for node in cluster.brokers}) == 1)


@pytest.mark.spec("HA-2")
def test_records_that_only_a_deposed_leader_wrote_are_cut_and_nothing_acknowledged_is_lost(
    cluster: LocalCluster,
) -> None:
    """R4: they are of an older epoch, and lie over what the new leader has."""
    sent = send(cluster, names_of("before the cut", 20))
    in_sync(cluster, 3)
    old = leader_of(cluster)
    begun = len(old.log_text())
    with ThreadPoolExecutor(1) as pool:
        sending = sent_alone(cluster, old, "alone", pool)
        own = log_of(old)
        for node in cluster.brokers:
            node.kill()  # what was on its way to the others is lost, too
        for node in cluster.brokers:
            if node is not old:
                node.start()
        new = leader_of(cluster)
        sent += send(cluster, names_of("after the cut", 20))
    sent += acknowledged(sending)
    assert not log_of(new).startswith(own), "the new leader has other records there"
    old.start()
    until(lambda: events(old, "the leader does not have the rest", since=begun), old.log_text)
    (line,) = events(old, "the leader does not have the rest", since=begun)
    assert line.startswith(f"replica {NAME}: the log is cut from ")
    in_sync(cluster, 3)
    assert received(cluster, sent) == set(sent)
    until(lambda: len({log_of(node) for node in cluster.brokers}) == 1)


def put_behind(node: Node, *sizes: int) -> None:
    """Records of the epoch that the group is in, behind the log of a copy that does not run: its leader never wrote them."""
    epoch = int(identity_of(node)["epoch"])

    async def story() -> None:
        copy = await LogCopy.open(folder_of(node), StoreOptions(), broker_name=NAME)
        for size in sizes:
            frame = pack(
                kind=STATE, flags=0, epoch=epoch, topic_id=0, queue_id=0, queue_offset=0, log_offset=copy.end,
                synced_offset=copy.synced_end, store_ms=1, born_ms=1, tag_hash=0, head=bytes(size), system=b"",
            )  # fmt: skip
            await copy.append(frame, start=copy.end, then_sync=True)
        await copy.close()

    asyncio.run(story())


def put_another_byte_into_the_last_record(node: Node) -> None:
    """Of a copy that does not run: a whole record of the same place, epoch and length, as a cloned disk may have it."""

    async def end_of() -> int:
        copy = await LogCopy.open(folder_of(node), StoreOptions(), broker_name=NAME)
        try:
            segments.append(copy.identity.segment_bytes)
            return copy.end
        finally:
            await copy.close()

    segments: list[int] = []
    end = asyncio.run(end_of())
    record = record_before(RealDisk(folder_of(node)), segments[0], end)
    assert record is not None
    file_start, position = segment_of(record[0], segments[0])
    with (folder_of(node) / path_of(file_start)).open("r+b") as file:
        file.seek(position)
        data = bytearray(file.read(end - record[0]))
        data[-1] ^= 1
        data[8:12] = crc32c(bytes(data[12:])).to_bytes(4, "big")
        file.seek(position)
        file.write(data)


@pytest.mark.spec("HA-2")
def test_a_copy_with_other_bytes_of_the_very_same_lengths_and_epochs_is_refused_at_its_start(
    cluster: LocalCluster,
) -> None:
    """Decision 93: only the checksum of the last record that both logs have tells it."""
    sent = send(cluster, names_of("same lengths", 10))
    in_sync(cluster, 3)
    leader = leader_of(cluster)
    victim = next(node for node in cluster.brokers if node is not leader)
    victim.stop()
    put_another_byte_into_the_last_record(victim)
    sent += send(cluster, names_of("same lengths more", 5))
    begun = len(victim.log_text())
    victim.start()
    until(lambda: not victim.alive, victim.log_text)
    line = victim.log_text().splitlines()[-1]
    assert f"the log of this copy of {NAME} is in epoch " in line
    assert "its last record before log offset " in line
    assert "Start that copy with an empty folder" in line
    assert "Traceback" not in victim.log_text()[begun:]
    assert str(number_of(victim)) not in in_record(cluster)
    shutil.rmtree(folder_of(victim))
    victim.start()
    in_sync(cluster, 3)
    assert received(cluster, sent) == set(sent)
    until(lambda: len({log_of(node) for node in cluster.brokers}) == 1)


@pytest.mark.spec("HA-2")
@pytest.mark.parametrize(
    ("sizes", "messages"),
    [((10, 20, 30), 0), ((100_000,), 5), ((6_000,), 20)],
    ids=["its leader ends where they begin", "its leader ends within", "its leader went past"],
)
def test_a_copy_with_records_that_its_leader_never_wrote_in_this_epoch_is_cut_or_refused(
    cluster: LocalCluster, sizes: tuple[int, ...], messages: int
) -> None:
    """As a cloned or restored disk has them. Where it shows in the bytes, the copy is refused and counts for nothing."""
    story = f"ahead {sum(sizes)}"
    sent = send(cluster, names_of(story, 10))
    in_sync(cluster, 3)
    leader = leader_of(cluster)
    victim = next(node for node in cluster.brokers if node is not leader)
    victim.stop()
    put_behind(victim, *sizes)
    sent += send(cluster, [f"{story} more {number}" for number in range(messages)])
    begun = len(leader.log_text()), len(victim.log_text())
    victim.start()
    if not messages:
        until(lambda: events(victim, "the leader does not have the rest", since=begun[1]), victim.log_text)
    elif len(sizes) and sizes[0] > messages * len(BODY):
        until(lambda: not victim.alive, victim.log_text)
        line = victim.log_text().splitlines()[-1]
        assert f"the log of this copy of {NAME} is in epoch " in line
        assert "Start that copy with an empty folder" in line
        assert "Traceback" not in victim.log_text()[begun[1] :]
    else:
        until(lambda: events(leader, "where no record of its leader's ends", since=begun[0]), leader.log_text)
        (line, *_) = events(leader, "where no record of its leader's ends", since=begun[0])
        assert line.startswith(f"replication of {NAME}: links with broker {number_of(victim)} are closed for ")
        until(lambda: events(victim, "where no record of its leader's ends", since=begun[1]), victim.log_text)
        assert "not in sync" in readiness(victim)
        assert not events(leader, "is damaged", since=begun[0]), "its own log is whole"
    if messages:
        assert str(number_of(victim)) not in in_record(cluster)
        if victim.alive:
            victim.kill()
        shutil.rmtree(folder_of(victim))
        victim.start()
    in_sync(cluster, 3)
    assert received(cluster, sent) == set(sent)
    until(lambda: len({log_of(node) for node in cluster.brokers}) == 1)
