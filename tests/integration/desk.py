"""Members of a group that a rebalancer serves, and what the brokers report of it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.request import urlopen

from evenq_proofs.nets import open_net

import evenq
from evenq.model import BalancePolicy
from evenq.testing import LocalCluster
from evenq.testing.node import Node
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import assignment_pb2

TOPIC, GROUP = "flights", "desk"


def leads(node: Node) -> bool:
    with urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=60) as page:
        return re.search(r"^evenq_rebalancer_leads{[^}]*} 1.0$", page.read().decode(), re.MULTILINE) is not None


class Desk:
    """A STICKY group of members, by name, and six queues on each broker."""

    def __init__(self, cluster: LocalCluster, **balance: int) -> None:
        self.cluster = cluster
        self.seen: Counter[bytes] = Counter()
        self.lock = threading.Lock()
        self.members: dict[str, evenq.PushConsumer] = {}
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=6)
            admin.create_group(GROUP, strategy="STICKY", balance=BalancePolicy(**balance))

    def start(self, own: str, **fields: Any) -> None:
        self.members[own] = evenq.PushConsumer(
            group=GROUP,
            endpoint=self.cluster.endpoint,
            listener=self._listen,
            subscriptions={TOPIC: "*"},
            start_from="FIRST",
            assignment="server",
            **fields,
        ).start()

    def stop(self, own: str) -> None:
        self.members.pop(own).close()

    def _listen(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        with self.lock:
            self.seen.update(message.body for message in messages)

    def sizes(self) -> list[int]:
        """How many queues each member reads."""
        return sorted(len(member.queues) for member in self.members.values())

    def owners(self) -> dict[str, str]:
        """Queue to the name of the member that reads it."""
        return {str(queue): own for own, member in self.members.items() for queue in member.queues}

    def explained(self, topic: str = "") -> assignment_pb2.ExplainResponse:
        async def once() -> bytes:
            async with open_net() as net:
                data = assignment_pb2.ExplainRequest(group=GROUP, topic=topic).SerializeToString()
                return await net.unary(self.cluster.endpoint, "/evenq.v1.Assignment/Explain", data, timeout_ms=60_000)

        result = assignment_pb2.ExplainResponse.FromString(asyncio.run(once()))
        check(result.status)
        return result

    def generation(self) -> tuple[int, int]:
        """Of the present decision; (0, 0) while no leader knows the group."""
        try:
            result = self.explained()
        except evenq.Error:
            return 0, 0
        return result.generation.epoch, result.generation.counter

    def publish(self, numbers: range) -> None:
        with evenq.Producer(endpoint=self.cluster.endpoint) as producer:
            for number in numbers:
                producer.send_async(evenq.Message(topic=TOPIC, body=b"%d" % number))
            producer.flush(30_000)

    def close(self) -> None:
        for member in self.members.values():
            member.close()
