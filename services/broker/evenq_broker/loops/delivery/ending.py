"""End of deliveries at a shutdown: no new ones, then a wait for the acks of delivered messages.

Problem: a client that received a message needs this broker to acknowledge it. If the broker stops first, the message is
delivered again after the restart. Members of evenq's own protocol hand their queues over (`loops.groups.sessions`). A
client of the v2 protocol can only acknowledge, so the broker waits for it.

Idea: `app.py` calls `begin`, then `nothing_in_hand` in parallel to the hand-over of members. `begin` rejects new
deliveries and ends parked polls. `nothing_in_hand` counts unacknowledged deliveries until there are none, or until
its limit (the setting drain_ms).

Invariants:
- Only deliveries that an ack can still end are counted: their client lives, and their invisible time has not ended.
  A message that waits for its retry is at no client.
- A long poll here may also have fetched messages of another broker (`rpc.polls.fetching`). Their client sends the acks
  to this broker, where it received them. After a scale-in, this address never answers again: the client would repeat
  its acks for ever, and the messages would be redelivered. So the wait includes them.
- The wait ends with the last ack, and at its limit in any case.

Example: a simple consumer received 32 messages with 30 s of invisible duration, and the broker gets SIGTERM. The client
acknowledges one message every 100 ms. The wait ends after 3.2 s, and no message is redelivered. If the client hangs
instead, the wait ends at the limit, and its messages become visible at the end of their 30 s.

References: `docs/internals/promises.md`; decisions 0025 (streams at a shutdown) and 0089 (each wait of a stop ends).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.runtime import Runtime

log = logging.getLogger(__name__)

LOOK_MS = 50
HOLD_MS = 250
"""How long an empty answer is delayed: clients that call again immediately would otherwise spin during the wait."""
PUSH_TYPES = frozenset({2, 5})
"""Numbers of the v2 `ClientType`s whose deliveries last as long as their client lives."""
FETCHED_MAX = 20_000


class FetchedMessages:
    """Receipt handles of messages of other brokers that were delivered here and are not settled yet.

    Only the newest `FETCHED_MAX`. A client may also settle at another broker, so a handle here may be settled.
    """

    def __init__(self) -> None:
        self._handles: dict[str, tuple[str, int]] = {}
        """Handle to (client, time of delivery in ms since the epoch), oldest delivery first."""

    def add(self, client_id: str, handles: Iterable[str], now_ms: int) -> None:
        """Notes messages that the client receives now."""
        for handle in handles:
            self._handles[handle] = (client_id, now_ms)
        while len(self._handles) > FETCHED_MAX:
            del self._handles[next(iter(self._handles))]

    def settled(self, handles: Iterable[str]) -> None:
        """Removes messages that were acknowledged or given back."""
        for handle in handles:
            self._handles.pop(handle, None)

    def clients_since(self, since_ms: int) -> list[str]:
        """Returns the client of each message that was delivered at `since_ms` or later."""
        return [client_id for client_id, delivered_ms in self._handles.values() if delivered_ms >= since_ms]


class DeliveryShutdown:
    """End of the deliveries of one broker."""

    def __init__(self, kernel: Kernel, *, clients: ConnectedClients, long_polls: LongPolls) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._clients, self._long_polls = clients, long_polls
        self.fetched = FetchedMessages()

    def begin(self) -> None:
        """Ends deliveries; parked polls get an empty answer immediately."""
        self._runtime.closing = True
        self._long_polls.close()

    async def nothing_in_hand(self, limit_ms: int) -> int:
        """Waits for v2 clients to settle their messages; returns how many are unsettled after `limit_ms`."""
        clock = self._runtime.clock
        # A message that was fetched longer ago was most likely acknowledged at another broker.
        since_ms = self._runtime.now_ms() - limit_ms
        deadline_ms = clock.monotonic_ms() + limit_ms
        looked_ms = clock.monotonic_ms()
        held = first = self._in_hand(since_ms)
        while held and clock.monotonic_ms() < deadline_ms:
            pause_ms = max(
                LOOK_MS, 4 * (clock.monotonic_ms() - looked_ms)
            )  # counting takes a fifth of the time at most
            await clock.sleep_ms(min(pause_ms, max(1, deadline_ms - clock.monotonic_ms())))
            looked_ms = clock.monotonic_ms()
            held = self._in_hand(since_ms)
        if held:
            log.warning("%d messages were not acknowledged within %d ms and will be redelivered", held, limit_ms)
        elif first:
            log.info("consumers acknowledged all %d messages that were delivered to them", first)
        return held

    def _in_hand(self, since_ms: int) -> int:
        now_ms, takers = self._runtime.now_ms(), self._takers()
        fetched = sum(map(self._lives, self.fetched.clients_since(since_ms)))
        return fetched + sum(
            # A delivery of a push consumer counts while its client lives, one of a simple consumer while any lives.
            entry.deadline_ms > now_ms
            and (self._lives(entry.client_id) if entry.client_id else queue.group_id in takers and not entry.waits)
            for queue in self._ledger.progress.queues()
            for entry in queue.pending.values()
        )

    def _lives(self, client_id: str) -> bool:
        """False for a client that is most likely gone: its deliveries stay reserved for it over the restart."""
        clients = self._clients
        return not clients.table.is_lost(client_id) and clients.lives(client_id, self._runtime.settings.client_lost_ms)

    def _takers(self) -> set[int]:
        """Returns the groups with a living simple consumer: time alone holds its deliveries, not its life."""
        groups = self._catalog.groups
        groups_of_clients = (
            groups.get(client.group)
            for _, client in self._clients.table.all()
            if client.group and client.client_type not in PUSH_TYPES
        )
        return {group.group_id for group in groups_of_clients if group is not None}


async def hold(runtime: Runtime, limit_ms: int) -> None:
    """Waits before an empty answer is sent, at most `limit_ms`."""
    await runtime.clock.sleep_ms(max(0, min(HOLD_MS, limit_ms)))
