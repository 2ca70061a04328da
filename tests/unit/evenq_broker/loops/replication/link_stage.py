"""Brokers of one group on a net without sockets: their links, what each of them received, and a clock that tests move."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from evenq_broker.core.replication.messages import Body, Envelope, FollowerProgress, Records
from evenq_broker.loops.replication.peer_links import PeerLinks
from evenq_broker.rpc.replication.replication import replication_rpcs
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings
from evenq_proofs.bytes_in_hand import BytesInHand
from evenq_proofs.loop_net import LoopNet

from evenq.runtime.clock import FakeClock

CLUSTER, GROUP = "c", "broker-a"


def address(broker_id: int) -> str:
    return f"host-{broker_id}:8081"


class Node:
    """One broker."""

    def __init__(self, stage: Stage, broker_id: int, *, room_bytes: int = 1 << 30, group: str = GROUP) -> None:
        self.id = broker_id
        self.received: list[Envelope] = []
        self.hand = BytesInHand(room_bytes)
        settings = BrokerSettings(broker_name=group, cluster=CLUSTER)
        self.runtime = Runtime(settings, clock=stage.clock, rng=random.Random(broker_id), net=stage.net)
        self.links = PeerLinks(self.runtime, stage.members, broker_id, self.receive, room=self.hand.room)

    def receive(self, envelope: Envelope) -> None:
        self.received.append(envelope)
        if isinstance(envelope.body, Records):
            self.hand.take(len(envelope.body.payload))  # type: ignore[arg-type]

    def envelope(self, body: Body) -> Envelope:
        return Envelope(CLUSTER, self.id, f"{self.id:032x}", 7, 1, body)

    def say(self, to: int, number: int) -> bool:
        return self.links.send(to, self.envelope(FollowerProgress(number, 0, wants=False)))

    def send_records(self, to: int, number: int, size: int) -> bool:
        return self.links.send(
            to, self.envelope(Records(number, number + 1, 1, (), 0, 0, bytes([number % 256]) * size))
        )

    def numbers(self, sender: int) -> list[int]:
        """What came of a sender, in order."""
        bodies = [one.body for one in self.received if one.sender == sender]
        return [body.start if isinstance(body, Records) else body.end for body in bodies]  # type: ignore[union-attr]

    async def close(self) -> None:
        await self.links.close()
        await self.runtime.close()


class Stage:
    """Clock, net and brokers."""

    def __init__(self, count: int) -> None:
        self.clock = FakeClock()
        self.net: Any = LoopNet(self.clock)
        self.members = {number: address(number) for number in range(count)}
        self.nodes: list[Node] = []

    def node(self, broker_id: int, *, serves: bool = True, starts: bool = True, **options: Any) -> Node:
        node = Node(self, broker_id, **options)
        self.nodes.append(node)
        if serves:
            self.serve(node)
        if starts:
            node.links.start()
        return node

    def serve(self, node: Node) -> None:
        self.net.serve(address(node.id), replication_rpcs(node.links))

    async def until(self, state: Callable[[], object]) -> None:
        await self.clock.until(state, limit_ms=120_000)
