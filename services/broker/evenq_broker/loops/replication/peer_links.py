"""The links between this broker and the others of its group, in both directions. The owner of a `Replica` sends and
receives with them and does not know the network.

One link leads to each other member (`outgoing_link`), one comes from each (`incoming_links`, read by
`rpc.replication`); members come and go (`set_members`). `send` never waits and may lose a message; `on_message` gets
the messages of each sender in their order, at most once. Nothing here decides: the core interprets messages. Memory
that peers can occupy here is bounded per link: `outbox`, one message that leaves, and one that arrives
(`RECORDS_BYTES_MAX`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from evenq_broker.core.replication.messages import Envelope
from evenq_broker.core.replication.snapshot_files import SnapshotSource
from evenq_broker.loops.replication.incoming_links import IncomingLinks
from evenq_broker.loops.replication.outgoing_link import OutgoingLink
from evenq_broker.loops.wire.replication import LinkOpening
from evenq_broker.runtime import Runtime

log = logging.getLogger(__name__)


async def _always() -> None:
    """Returns immediately: there is always space."""


class PeerLinks:
    """All links of one broker. A `rpc.replication.replication.ReplicationReceiver`. Belongs to one loop."""

    def __init__(
        self,
        runtime: Runtime,
        members: Mapping[int, str],
        own_id: int,
        on_message: Callable[[Envelope], None],
        *,
        room: Callable[[], Awaitable[None]] = _always,
        snapshots: SnapshotSource | None = None,
    ) -> None:
        """`members`: the brokers of the group by id, with their addresses; the own one may be among them. `room`: waits
        while this broker cannot accept another message. `snapshots`: source for peers; may be set later.
        """
        self._runtime = runtime
        self.own_id = own_id
        self.snapshots = snapshots
        self._on_message, self._room = on_message, room
        settings = runtime.settings
        self.group = settings.broker_name
        self.incoming = IncomingLinks(
            cluster=settings.cluster,
            group=self.group,
            own_id=own_id,
            members=members,
            clock=runtime.clock,
            rng=runtime.rng,
            on_opened=self._heard_of,
        )
        self._links = {peer: self._link(peer, members[peer]) for peer in sorted(members) if peer != own_id}
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._dropped_before = 0
        """Of removed links."""
        self._started = self._closed = False
        self._strangers: set[int] = set()
        self._gone: set[int] = set()
        """Former members: messages to them may still come here."""

    @property
    def connected(self) -> set[int]:
        """Ids of the brokers that accept messages of this one now."""
        return {peer for peer, link in self._links.items() if link.connected}

    @property
    def unreached(self) -> set[int]:
        """See PeerSender."""
        return {peer for peer, link in self._links.items() if link.tries and not link.connected}

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent, all peers together, without the messages that are being sent."""
        return sum(link.outbox.bytes for link in self._links.values())

    @property
    def dropped(self) -> int:
        """Messages since the start that were not sent: the outbox was full, or there was no link."""
        return self._dropped_before + sum(link.outbox.dropped for link in self._links.values())

    def start(self) -> None:
        """Opens the links to all others, and keeps them."""
        self._started = True
        for peer in self._links:
            self._run(peer)

    def set_members(self, members: Mapping[int, str]) -> None:
        """Sets the group's copies and addresses (empty: not known); ends and opens links accordingly."""
        wanted = {peer: address for peer, address in members.items() if peer != self.own_id and address}
        for peer, link in list(self._links.items()):
            if wanted.get(peer) != link.address:
                self._dropped_before += link.outbox.dropped
                del self._links[peer]
                task = self._tasks.pop(peer, None)
                if task is not None:
                    task.cancel()
        for peer in sorted(wanted.keys() - self._links.keys()):
            self._links[peer] = self._link(peer, wanted[peer])
            if self._started and not self._closed:
                self._run(peer)
        # Reported again if it is still so: the log has each stranger once for one set of members.
        self._strangers.clear()
        self._gone = (self._gone | (self.incoming.members - members.keys())) - members.keys()
        self.incoming.set_members(members)

    def _link(self, peer: int, address: str) -> OutgoingLink:
        cluster = self._runtime.settings.cluster
        opening = LinkOpening(cluster, self.group, self.own_id, peer, reads_crc32=True)
        return OutgoingLink(self._runtime, opening, address)

    def _run(self, peer: int) -> None:
        link = self._links[peer]
        self._tasks[peer] = self._runtime.spawn(link.run(), name=f"replication link to broker {peer}")

    def send(self, to: int, envelope: Envelope) -> bool:
        """Sends a message without waiting; False: it is certainly lost. Raises MalformedMessage."""
        link = self._links.get(to)
        if link is None or self._closed:
            if link is None and to not in self._strangers and to not in self._gone:
                self._strangers.add(to)
                log.warning(
                    "replication of %s: broker %d is in the group record and has no address here; known are %s",
                    self.group,
                    to,
                    sorted(self._links),
                    extra={"group": self.group, "peer": to},
                )
            return False
        return link.send(envelope)

    def close_peer(self, broker_id: int, reason: str) -> None:
        """Ends the links with a broker for its messages. New ones follow after a pause of 1 s to a minute."""
        link = self._links.get(broker_id)
        if link is not None:
            link.close(reason, self.incoming.pause(broker_id, reason))

    async def close(self) -> None:
        """Ends all links. Idempotent."""
        self._closed = True
        self.incoming.close(f"broker {self.own_id} of group {self.group} ends")
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    # ------------------------------------------------------------------------------------ for the calls that are served

    def receive(self, envelope: Envelope) -> None:
        """Passes a message of a peer on."""
        if not self._closed:
            self._on_message(envelope)

    async def room(self) -> None:
        """Waits until one more message may come."""
        await self._room()

    def _heard_of(self, sender: int) -> None:
        link = self._links.get(sender)
        if link is not None:
            link.hurry()
