"""Committed messages are read from followers: three real processes, readers of chosen queues, leaders that are killed,
paused and deposed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.replicated_group import FAST, figure, group, in_sync, leader_of
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from evenq.wire.net import GrpcNet
from evenq.wire.signature import Secret
from evenq.wire.signed_net import SignedNet, Signer
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

log = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(400)

TOPIC = "flights"
QUEUES = 4
ANY = evenq.PullOptions(read_from="any", pull_batch=8, pull_threshold_queue=8)
"""Little is fetched ahead, so that most of a queue is read while the test wants it to be."""


def followers_of(cluster: LocalCluster) -> tuple[Node, list[Node]]:
    """The leader, and the others."""
    leader = leader_of(cluster)
    return leader, [node for node in cluster.brokers if node is not leader]


def address_of(node: Node) -> str:
    """Where the other copies reach it."""
    number = node.environment["EVENQ_BROKER_REPLICATION__BROKER_ID"]
    members = node.environment["EVENQ_BROKER_REPLICATION__MEMBERS"].split(",")
    return dict(one.split("=", 1) for one in members)[number]


def send(cluster: LocalCluster, first: int, count: int, *, size: int = 0) -> list[str]:
    """Numbered messages, all acknowledged."""
    bodies = [f"message {number} {'x' * size}" for number in range(first, first + count)]
    with evenq.Producer(endpoint=cluster.endpoints) as producer:
        for body in bodies:
            producer.send(evenq.Message(topic=TOPIC, body=body.encode()))
    return bodies


def started(cluster: LocalCluster, count: int) -> list[str]:
    """A topic of `QUEUES` queues with this number of messages, on all three copies."""
    in_sync(cluster, 3)
    with evenq.Admin(endpoint=cluster.endpoints) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
    return send(cluster, 0, count)


def pulled(
    address: str, queue_id: int, offset: int = 0, *, count: int = 1_000, any_copy: bool = True, owner: bool = False
) -> data_pb2.PullResponse:
    """One pull, answered at once."""
    request = data_pb2.PullRequest(
        queue=common_pb2.Queue(topic=TOPIC, broker_name="broker-a", queue_id=queue_id), offset=offset, batch_max=count,
        any_copy=any_copy, owner=owner,
    )  # fmt: skip

    async def ask() -> bytes:
        async with open_net() as net:
            return await net.unary(address, "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=20_000)

    return data_pb2.PullResponse.FromString(asyncio.run(ask()))


def shown(node: Node) -> list[str]:
    """Every body that a copy shows at its address for the other copies."""
    answers = [pulled(address_of(node), queue_id) for queue_id in range(QUEUES)]
    return [message.body.decode() for answer in answers for message in answer.messages]


def check_scan_and_offsets(leader: str, follower: str) -> None:
    """Both say the same of each queue, and give the same blocks; of progress and marks the follower says nothing."""
    queues = [common_pb2.Queue(topic=TOPIC, broker_name="broker-a", queue_id=queue_id) for queue_id in range(QUEUES)]

    async def story() -> None:
        net = GrpcNet()

        async def offsets(address: str, **fields: Any) -> data_pb2.QueryOffsetsResponse:
            request = data_pb2.QueryOffsetsRequest(any_copy=True, **fields).SerializeToString()
            data = await net.unary(address, "/evenq.v1.Data/QueryOffsets", request, timeout_ms=20_000)
            return data_pb2.QueryOffsetsResponse.FromString(data)

        async def scanned(address: str, **fields: Any) -> list[data_pb2.ScanBlock]:
            request = data_pb2.ScanRequest(any_copy=True, **fields).SerializeToString()
            stream = net.stream(address, "/evenq.v1.Data/Scan", request, timeout_ms=20_000)
            return [data_pb2.ScanBlock.FromString(one) async for one in stream]

        try:
            response = await offsets(leader, topic=TOPIC, timestamp_ms=1)
            assert await offsets(follower, topic=TOPIC, timestamp_ms=1) == response
            assert [one.queue for one in response.offsets] == queues
            for one in response.offsets:
                for records in (data_pb2.RecordsWanted(), data_pb2.RecordsWanted(version=1, head=True, system=True)):
                    wanted = {"queue": one.queue, "end": one.max_offset, "uid": one.uid, "records": records}
                    blocks = await scanned(leader, **wanted)
                    assert blocks[-1].next_offset == one.max_offset
                    assert await scanned(follower, **wanted) == blocks
            for refused in ({"group": "readers"}, {"wait_ms": 1}, {"queues": queues[:1], "mark_at": [1]}):
                answer = await offsets(follower, **({"topic": TOPIC} | refused))
                assert answer.status.code == definition_pb2.BAD_REQUEST, refused
            (other,) = await scanned(follower, queue=queues[0], end=1, uid="another")
            assert other.status.code == definition_pb2.PRECONDITION_FAILED
            (beyond,) = await scanned(follower, queue=queues[0], start=1_000, end=2_000)
            assert beyond.status.code == definition_pb2.HA_NOT_AVAILABLE, "its leader may have more"
        finally:
            await net.close()

    asyncio.run(story())


def scan_says_far_behind(leader: str, follower: str) -> None:
    """A leader in each block of a scan that begins far behind, to who takes any copy, and in both forms of a block."""

    async def story() -> None:
        net = GrpcNet()
        queue = common_pb2.Queue(topic=TOPIC, broker_name="broker-a", queue_id=0)

        async def said(address: str, start: int, **fields: Any) -> set[bool]:
            request = data_pb2.ScanRequest(queue=queue, start=start, end=1_000, **fields).SerializeToString()
            stream = net.stream(address, "/evenq.v1.Data/Scan", request, timeout_ms=20_000)
            blocks = [data_pb2.ScanBlock.FromString(one) async for one in stream]
            return {block.far_behind for block in blocks}

        try:
            for records in (data_pb2.RecordsWanted(), data_pb2.RecordsWanted(version=1, head=True, system=True)):
                assert await said(leader, 0, any_copy=True, records=records) == {True}
                assert await said(leader, 45, any_copy=True, records=records) == {False}, "near the end"
                assert await said(leader, 0, records=records) == {False}, "nobody asked"
            assert await said(follower, 0, any_copy=True) == {False}
        finally:
            await net.close()

    asyncio.run(story())


class Reader:
    """Reads all queues of the topic from any copy; keeps what came, by queue."""

    def __init__(self, consumer: evenq.PullConsumer) -> None:
        self._consumer = consumer
        consumer.assign(consumer.queues_of(TOPIC), timeout_ms=60_000)
        self.offsets: dict[int, list[int]] = {}
        self.bodies: list[str] = []

    def poll_until(self, wanted: list[str], *, within_s: float = 90.0) -> None:
        """Until all of these came."""
        end = time.monotonic() + within_s
        while not set(wanted) <= set(self.bodies):
            assert time.monotonic() < end, f"{len(set(wanted) - set(self.bodies))} are missing after {within_s} s"
            self.poll_once()

    def poll_once(self) -> int:
        """How many came."""
        messages = self._consumer.poll(8, wait_ms=500)
        for message in messages:
            self.offsets.setdefault(message.queue.queue_id, []).append(message.queue_offset)
            self.bodies.append(message.body.decode())
        return len(messages)

    def check(self, sent: list[str]) -> None:
        """Each of the messages came once, in the order of its queue, and nothing else."""
        assert sorted(self.bodies) == sorted(sent)
        assert all(offsets == list(range(len(offsets))) for offsets in self.offsets.values()), self.offsets


def reading(cluster: LocalCluster) -> evenq.PullConsumer:
    return evenq.PullConsumer(group="readers", endpoint=cluster.endpoints, options=ANY, start_from="FIRST")


@pytest.mark.spec("HA-5", "HA-9")
@pytest.mark.slow
def test_a_reader_goes_on_at_a_follower_while_nobody_leads(tmp_path: Path) -> None:
    """Two of three copies are killed, so no copy can lead; the third gives all that it knows to be committed. Once there is
    a leader again the reader goes on with what is new, and its progress is stored there.
    """
    with group(tmp_path) as cluster:
        sent = started(cluster, 400)
        leader, (left, other) = followers_of(cluster)
        with reading(cluster) as consumer:
            reader = Reader(consumer)
            reader.poll_once()
            until(lambda: len(shown(left)) == len(sent), "the follower knows that all is committed")
            other.kill()
            leader.kill()
            killed_s, before = time.monotonic(), len(reader.bodies)
            while len(reader.bodies) < before + QUEUES * 24:  # more than what was fetched ahead
                reader.poll_once()
                assert time.monotonic() < killed_s + 90
            log.info("%d messages after %.2f s", len(reader.bodies) - before, time.monotonic() - killed_s)
            reader.poll_until(sent)
            assert figure(left, "evenq_broker_replica_role", 'role="ready"') == 0, "no copy leads"
            assert figure(left, "evenq_broker_replica_messages_out_total") > 0
            leader.restart()
            other.restart()
            sent += send(cluster, len(sent), 40)
            reader.poll_until(sent)
            reader.check(sent)
            consumer.commit()
            ends = {queue.queue_id: consumer.committed(queue) for queue in consumer.queues}
        assert ends == {queue_id: len(offsets) for queue_id, offsets in reader.offsets.items()}


@pytest.mark.spec("HA-9")
@pytest.mark.slow
def test_a_follower_shows_nothing_that_is_not_committed(tmp_path: Path) -> None:
    """All three copies must have a record, and one is paused: what the leader and the follower have on disk is not
    committed. The follower does not show it, not after its leader was killed either; once it is committed it does.
    """
    settings = {"REPLICATION__MIN_IN_SYNC": "3", "REPLICATION__LAG_MS": "60000"}
    with group(tmp_path, **settings) as cluster:
        sent = started(cluster, 40)
        leader, (left, paused) = followers_of(cluster)
        until(lambda: len(shown(left)) == len(sent), "the follower knows that all is committed")
        options = evenq.ProducerOptions(max_attempts=1, timeout_ms=1_000, send_timeout_ms=1_000)
        for _ in range(20):  # a leader that heard of the pause refuses before it writes
            end = figure(left, "evenq_broker_replica_log_end")
            cluster.pause(paused)
            with evenq.Producer(endpoint=cluster.endpoints, options=options) as producer, pytest.raises(Error):
                producer.send(evenq.Message(topic=TOPIC, body=b"uncommitted"))
            if figure(left, "evenq_broker_replica_log_end") > end:
                break
            paused.resume()
            in_sync(cluster, 3)
        else:
            raise AssertionError("the leader took no message")
        assert sorted(shown(left)) == sorted(sent)
        leader.kill()
        for _ in range(5):
            assert sorted(shown(left)) == sorted(sent)
            assert figure(left, "evenq_broker_replica_committed_end") < figure(left, "evenq_broker_replica_log_end")
            time.sleep(0.2)
        paused.resume()
        leader.restart()
        leader_of(cluster)
        everywhere = [*sent, "uncommitted"]
        until(
            lambda: any(sorted(seen_by(node)) == sorted(everywhere) for node in cluster.brokers),
            "a follower shows it once it is committed",
        )


def seen_by(node: Node) -> list[str]:
    """As `shown`; nothing while the copy leads or cannot answer."""
    try:
        return shown(node)
    except Error:
        return []


@pytest.mark.spec("HA-9")
@pytest.mark.slow
def test_a_deposed_leader_that_was_away_shows_the_log_of_its_successor(tmp_path: Path) -> None:
    """A leader is paused until another one leads and messages were taken there; a reader gets everything once and in
    order, and the old leader shows the same when it is back, as a follower.
    """
    with group(tmp_path) as cluster:
        sent = started(cluster, 100)
        old, _ = followers_of(cluster)
        with reading(cluster) as consumer:
            reader = Reader(consumer)
            reader.poll_once()
            cluster.pause(old)
            until(
                lambda: any(
                    figure(one, "evenq_broker_replica_role", 'role="ready"') == 1
                    for one in cluster.brokers
                    if one is not old
                ),
                "another one leads",
            )
            sent += send(cluster, len(sent), 60)
            old.resume()
            reader.poll_until(sent)
            until(lambda: sorted(seen_by(old)) == sorted(sent), "the old leader follows and shows all")
            reader.check(sent)


@pytest.mark.spec("HA-9", "HA-10", "OC-19")
@pytest.mark.slow
def test_a_follower_answers_only_readers_that_take_any_copy_and_own_nothing(tmp_path: Path) -> None:
    """Who owns a queue, as ordered listeners do, reads from the leader; so does who did not say that any copy will do."""
    with group(tmp_path) as cluster:
        sent = started(cluster, 20)
        leader, (follower, _) = followers_of(cluster)
        until(lambda: len(shown(follower)) == len(sent), "the follower shows all")
        assert pulled(address_of(follower), 0, owner=True).status.code == definition_pb2.PRECONDITION_FAILED
        assert pulled(address_of(follower), 0, any_copy=False).status.code == definition_pb2.HA_NOT_AVAILABLE
        assert pulled(address_of(leader), 0).status.code == definition_pb2.HA_NOT_AVAILABLE, "it leads: ask at its port"
        behind = pulled(address_of(follower), 0, 1_000)
        assert behind.status.code == definition_pb2.MESSAGE_NOT_FOUND, "its leader may have more"
        assert behind.next_offset == 1_000, "no group is moved by a follower"
        check_scan_and_offsets(f"127.0.0.1:{leader.port}", address_of(follower))


@pytest.mark.spec("HA-9", "LQ-69")
@pytest.mark.slow
def test_a_reader_far_behind_is_sent_to_a_follower(tmp_path: Path) -> None:
    """The leader says so to readers that take any copy, and they read there until they have caught up."""
    with group(tmp_path, REPLICATION__FAR_BEHIND_BYTES="100000") as cluster:
        in_sync(cluster, 3)
        with evenq.Admin(endpoint=cluster.endpoints) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        sent = send(cluster, 0, 200, size=2_000)
        leader, followers = followers_of(cluster)
        client = f"127.0.0.1:{leader.port}"
        assert pulled(client, 0, count=1).far_behind
        assert not pulled(client, 0, count=1, any_copy=False).far_behind, "no client asked"
        assert not pulled(client, 0).far_behind, "it read to the end of the queue"
        scan_says_far_behind(client, address_of(followers[0]))
        until(lambda: all(len(shown(one)) == len(sent) for one in followers), "followers show all")
        given = sum(figure(one, "evenq_broker_replica_messages_out_total") for one in followers)
        with reading(cluster) as consumer:
            reader = Reader(consumer)
            reader.poll_until(sent)
            reader.check(sent)
        assert sum(figure(one, "evenq_broker_replica_messages_out_total") for one in followers) > given


USERS = """
[users.evenq-internal]
secret = "internal-4711"
internal = true
[users.root]
secret = "root-4711"
admin = true
[users.reader]
secret = "reader-4711"
allow = [{ resource = "topic:flights", actions = ["consume", "describe"] }, { resource = "group:readers", actions = ["consume"] }]
[users.guest]
secret = "guest-4711"
allow = [{ resource = "topic:other", actions = ["consume"] }]
"""


@pytest.mark.slow
def test_a_follower_asks_for_the_rights_that_its_leader_asks_for(tmp_path: Path) -> None:
    """With TLS between all and signed calls: who may read the topic goes on at a follower, anybody else gets nothing."""
    users = tmp_path / "users.toml"
    users.write_text(USERS)
    auth = {"AUTH__ENABLED": "true", "AUTH__USERS": str(users)}
    with LocalCluster(
        replicas=3, rebalancer=False, folder=tmp_path, tls=True, nameserver_settings=auth, ready_ms_max=120_000,
        broker_settings={**FAST, "REPLICATION__MODE": "sync", **auth},
    ) as cluster:  # fmt: skip
        in_sync(cluster, 3)
        tls = cluster.client_tls
        root = evenq.Credentials(access_key="root", secret_key="root-4711")
        with evenq.Admin(endpoint=cluster.endpoints, tls=tls, credentials=root) as admin:
            admin.create_topic(TOPIC, queues=1)
            admin.create_group("readers")
        sent = [f"message {number}" for number in range(60)]
        with evenq.Producer(endpoint=cluster.endpoints, tls=tls, credentials=root) as producer:
            for body in sent:
                producer.send(evenq.Message(topic=TOPIC, body=body.encode()))
        leader, (left, other) = followers_of(cluster)

        def asked_by(user: str) -> data_pb2.PullResponse:
            request = data_pb2.PullRequest(
                queue=common_pb2.Queue(topic=TOPIC, broker_name="broker-a"), batch_max=1_000, any_copy=True
            ).SerializeToString()

            async def ask() -> bytes:
                net = GrpcNet(tls=tls)
                signed = SignedNet(net, Signer(user, Secret(f"{user}-4711"), clock=SystemClock())) if user else net
                try:
                    return await signed.unary(address_of(left), "/evenq.v1.Data/Pull", request, timeout_ms=20_000)
                finally:
                    await net.close()

            return data_pb2.PullResponse.FromString(asyncio.run(ask()))

        until(lambda: len(asked_by("reader").messages) == len(sent), "the follower shows all")
        for user, code in (("guest", definition_pb2.FORBIDDEN), ("", definition_pb2.UNAUTHORIZED)):
            answer = asked_by(user)
            assert answer.status.code == code
            assert b"message 1" not in answer.SerializeToString()
        reader = evenq.Credentials(access_key="reader", secret_key="reader-4711")
        with evenq.PullConsumer(
            group="readers", endpoint=cluster.endpoints, options=ANY, start_from="FIRST", tls=tls, credentials=reader
        ) as consumer:
            from_any = Reader(consumer)
            from_any.poll_once()
            leader.kill()
            other.kill()
            from_any.poll_until(sent)
            from_any.check(sent)
