"""Two real rebalancers with a file lease: the leader is killed, paused or stopped, and no reader notices."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Sequence
from urllib.request import urlopen

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import assignment_pb2

TOPIC, GROUP = "flights", "desk"
LEASE = {"LEASE_MS": "1500", "LEASE_RENEW_MS": "1000", "LEASE_RETRY_MS": "200", "WARM_UP_MS": "300", "DRAIN_MS": "0"}
SERVICE = "/evenq.v1.Assignment"
pytestmark = pytest.mark.integration


def leads(node: Node) -> bool:
    with urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=60) as page:
        return re.search(r"^evenq_rebalancer_leads{[^}]*} 1.0$", page.read().decode(), re.MULTILINE) is not None


class Desk:
    """Three members of a STICKY group, and a way to ask."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.seen: Counter[bytes] = Counter()
        self.lock = threading.Lock()
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=6)
            admin.create_group(GROUP, strategy="STICKY")
        self.members = [self.member() for _ in range(3)]

    def member(self) -> evenq.PushConsumer:
        return evenq.PushConsumer(
            group=GROUP,
            endpoint=self.cluster.endpoint,
            listener=self._listen,
            subscriptions={TOPIC: "*"},
            start_from="FIRST",
            assignment="server",
        ).start()

    def _listen(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        with self.lock:
            self.seen.update(message.body for message in messages)

    def sizes(self) -> list[int]:
        return sorted(len(member.queues) for member in self.members)

    def owners(self) -> dict[str, int]:
        """Queue to the number of the member that reads it."""
        return {str(queue): number for number, member in enumerate(self.members) for queue in member.queues}

    def ask(self, call: str, request, response):
        async def once():
            net = GrpcNet()
            try:
                data = request.SerializeToString()
                answer = response.FromString(
                    await net.unary(self.cluster.endpoint, f"{SERVICE}/{call}", data, timeout_ms=60_000)
                )
                check(answer.status)
                return answer
            finally:
                await net.close()

        return asyncio.run(once())

    def generation(self) -> tuple[int, int]:
        """Of the present decision; (0, 0) while no leader knows the group."""
        try:
            response = self.ask("Explain", assignment_pb2.ExplainRequest(group=GROUP), assignment_pb2.ExplainResponse)
        except evenq.Error:
            return 0, 0
        return response.generation.epoch, response.generation.counter

    def publish(self, numbers: range) -> None:
        with evenq.Producer(endpoint=self.cluster.endpoint) as producer:
            for number in numbers:
                producer.send_async(evenq.Message(topic=TOPIC, body=b"%d" % number))
            producer.flush(30_000)

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.mark.slow
def test_a_killed_leader_is_followed_within_the_bound_owners_stay_and_generations_grow() -> None:
    """OC-18, XO-3: nothing moves that need not."""
    with LocalCluster(brokers=2, rebalancers=2, rebalancer_settings=LEASE) as cluster:
        until(lambda: sum(leads(node) for node in cluster.rebalancers) == 1, what="one leads")
        first, second = sorted(cluster.rebalancers, key=leads, reverse=True)
        desk = Desk(cluster)
        try:
            until(lambda: desk.sizes() == [4, 4, 4], what="12 queues among 3")
            desk.publish(range(300))
            owners, before = desk.owners(), desk.generation()
            assert before > (0, 0)
            first.kill()
            until(
                lambda: leads(second), what="the other leads"
            )  # how soon: unit/evenq_rebalancer/core/test_election.py
            until(lambda: desk.generation() > before, seconds=60, what="the new leader decided")
            assert desk.owners() == owners
            desk.publish(range(300, 600))
            until(lambda: len(desk.seen) == 600, what="all messages")
            assert max(desk.seen.values()) == 1, "nothing twice"

            desk.members.append(desk.member())
            until(lambda: desk.sizes() == [3, 3, 3, 3], what="a newcomer gets its share from the new leader")
            moved = [queue for queue, owner in desk.owners().items() if owners[queue] != owner]
            assert len(moved) == 3, "the fewest moves"

            patient = {"EVENQ_REBALANCER_LEASE_MS": "240000", "EVENQ_REBALANCER_LEASE_RENEW_MS": "200000"}
            first.environment.update(patient)
            first.restart()
            owners, before = desk.owners(), desk.generation()
            second.stop()
            until(lambda: leads(first), what="who stops lets go of the lease: nobody waits four minutes for its end")
            until(lambda: desk.generation() > before, seconds=60, what="decided again")
            assert desk.owners() == owners
        finally:
            desk.close()


@pytest.mark.slow  # leases run out one after the other
def test_a_paused_leader_is_left_by_brokers_and_does_not_lead_when_it_wakes() -> None:
    with LocalCluster(brokers=1, rebalancers=2, rebalancer_settings=LEASE) as cluster:
        until(lambda: sum(leads(node) for node in cluster.rebalancers) == 1, what="one leads")
        first, second = sorted(cluster.rebalancers, key=leads, reverse=True)
        desk = Desk(cluster)
        try:
            until(lambda: desk.sizes() == [2, 2, 2], what="6 queues among 3")
            owners, before = desk.owners(), desk.generation()
            cluster.pause(first)
            until(lambda: leads(second), seconds=60, what="the other leads")
            until(lambda: desk.generation() > before, seconds=60, what="the broker found it")
            assert desk.owners() == owners
            first.resume()
            until(lambda: not leads(first), seconds=60, what="it noticed")
            assert leads(second)
            events = [json.loads(line)["event"] for line in first.log_text().splitlines() if line.startswith("{")]
            assert sum(event.startswith("rebalancer is no longer the leader") for event in events) == 1
        finally:
            desk.close()
