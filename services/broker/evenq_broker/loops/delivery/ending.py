"""The end of this broker as its consumers see it: first it hands out nothing more, then it waits for the acks of what
they have in hand.

Called by `app.py` at a shutdown and by `rpc.delivery.receive` and `rpc.delivery.pulling`. Members of our own protocol
hand their queues over meanwhile (`loops.groups.sessions`); a v2 client can only acknowledge, so without this wait all
that it holds would come again after the restart. A message that waits for its retry is in no client's hand. Always
true: the wait ends with the last ack, and at its limit in any case.

A long poll here may also have fetched messages of another broker (`rpc.polls.fetching`). Their client sends its acks to
the broker that it received from, which is this one. After a scale-in this address never answers again: the client would
repeat its acks for ever, and the messages would be delivered again. So the wait includes them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

__all__ = ["DeliveryShutdown", "FetchedMessages", "hold"]

log = logging.getLogger(__name__)

LOOK_MS = 50
HOLD_MS = 250
"""How long an empty answer is held back: clients that ask again at once must not spin for the time of the wait."""
PUSH_TYPES = frozenset({2, 5})
"""Numbers of the v2 `ClientType`s whose life holds what they have."""
FETCHED_MAX = 20_000


class FetchedMessages:
    """Receipt handles of messages of other brokers that were delivered here and are not settled yet.

    Bounded: the newest `FETCHED_MAX`. A client may also settle at another broker, so what is here may be settled.
    """

    def __init__(self) -> None:
        self._handles: dict[str, tuple[str, int]] = {}
        """Handle to its client, and when it was delivered."""

    def add(self, client_id: str, handles: Iterable[str], now_ms: int) -> None:
        """The client receives these messages now."""
        for handle in handles:
            self._handles[handle] = (client_id, now_ms)
        while len(self._handles) > FETCHED_MAX:
            del self._handles[next(iter(self._handles))]

    def settled(self, handles: Iterable[str]) -> None:
        """These messages were acknowledged or given back."""
        for handle in handles:
            self._handles.pop(handle, None)

    def clients_since(self, since_ms: int) -> list[str]:
        """The client of each message that was delivered at `since_ms` or later."""
        return [client_id for client_id, delivered_ms in self._handles.values() if delivered_ms >= since_ms]


class DeliveryShutdown:
    """One broker's end."""

    def __init__(
        self, runtime: Runtime, catalog: Catalog, ledger: Ledger, *, clients: ConnectedClients, long_polls: LongPolls
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._clients, self._long_polls = clients, long_polls
        self.fetched = FetchedMessages()

    def begin(self) -> None:
        """Hand out nothing from now on; parked polls are answered empty at once."""
        self._runtime.closing = True
        self._long_polls.close()

    async def nothing_in_hand(self, limit_ms: int) -> int:
        """Wait until v2 clients have acknowledged or given back what they were given; how many messages are still in
        hand after `limit_ms`.
        """
        clock = self._runtime.clock
        # One that was fetched longer ago was most likely acknowledged at another broker.
        since_ms = self._runtime.now_ms() - limit_ms
        deadline_ms = clock.monotonic_ms() + limit_ms
        looked_ms = clock.monotonic_ms()
        held = first = self._in_hand(since_ms)
        while held and clock.monotonic_ms() < deadline_ms:
            pause_ms = max(LOOK_MS, 4 * (clock.monotonic_ms() - looked_ms))  # acks have this loop most of the time
            await clock.sleep_ms(min(pause_ms, max(1, deadline_ms - clock.monotonic_ms())))
            looked_ms = clock.monotonic_ms()
            held = self._in_hand(since_ms)
        if held:
            log.warning("%d messages were not acknowledged within %d ms and are delivered again", held, limit_ms)
        elif first:
            log.info("consumers acknowledged all %d messages that were delivered to them", first)
        return held

    def _in_hand(self, since_ms: int) -> int:
        now_ms, takers = self._runtime.now_ms(), self._takers()
        fetched = sum(map(self._lives, self.fetched.clients_since(since_ms)))
        return fetched + sum(
            entry.deadline_ms > now_ms
            and (self._lives(entry.client_id) if entry.client_id else queue.group_id in takers and not entry.waits)
            for queue in self._ledger.progress.queues()
            for entry in queue.pending.values()
        )

    def _lives(self, client_id: str) -> bool:
        """False for a client that is most likely gone: what it holds stays its own over the restart."""
        clients = self._clients
        return not clients.table.is_lost(client_id) and clients.lives(client_id, self._runtime.settings.client_lost_ms)

    def _takers(self) -> set[int]:
        """Groups with a living client whose deliveries are held by time alone and not by its life: simple consumers.
        Where there is none, a delivery without a client waits for its retry.
        """
        groups = self._catalog.groups
        groups_of_clients = (
            groups.get(client.group)
            for _, client in self._clients.table.all()
            if client.group and client.client_type not in PUSH_TYPES
        )
        return {group.group_id for group in groups_of_clients if group is not None}


async def hold(runtime: Runtime, limit_ms: int) -> None:
    """Wait before an empty answer is given, at most `limit_ms`."""
    await runtime.clock.sleep_ms(max(0, min(HOLD_MS, limit_ms)))
