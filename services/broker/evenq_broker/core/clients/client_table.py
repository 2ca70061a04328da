"""The v2 clients this broker has heard of: when last, and what they said of themselves.

Called by every handler that knows the caller's id, and by the liveness loop. Telemetry streams come and go; this table
is what a client's life is measured by (wire contract 3.2, 4.6). It also knows who said goodbye and has called nothing
since: what a telemetry stream says of such a client counts no more. Pure: time comes in as ms since the epoch.
"""

from __future__ import annotations

from collections import OrderedDict

from evenq.errors import TooManyRequests

__all__ = ["PRODUCER", "Client", "ClientTable"]

PRODUCER = 1
"""ClientType of the v2 protocol."""
GOODBYE_MS = 60_000
"""How long a goodbye is known, and anew after each telemetry stream that comes behind it."""
GOODBYES_MAX = 10_000


class Client:
    """One client object of an SDK."""

    __slots__ = ("called", "client_type", "group", "last_ms", "subscriptions")

    def __init__(self, last_ms: int) -> None:
        self.last_ms = last_ms
        self.called = False
        """It made another call than telemetry, since `expect_call`."""
        self.client_type = 0
        """Number of the v2 `ClientType`; 0 = not known yet."""
        self.group = ""
        self.subscriptions: dict[str, str] = {}
        """Topic -> filter expression, as its settings say."""


class ClientTable:
    """client id -> Client, the one silent for longest first."""

    __slots__ = ("_clients", "_goodbyes", "_lost", "clients_max")

    def __init__(self, *, clients_max: int = 100_000) -> None:
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._lost: dict[str, None] = {}
        self._goodbyes: OrderedDict[str, int] = OrderedDict()
        self.clients_max = clients_max

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> Client | None:
        """What is known, or None."""
        return self._clients.get(client_id)

    def seen(self, client_id: str, now_ms: int, *, client_type: int = 0, group: str = "", calls: bool = True) -> Client:
        """A sign of life; 0 and "" change nothing that is known. `calls`: it is more than the settings of a stream.
        Raises TooManyRequests when the table is full.
        """
        client = self._clients.get(client_id)
        if client is None:
            self._goodbyes.pop(client_id, None)
            if len(self._clients) >= self.clients_max:
                raise TooManyRequests(f"this broker knows {len(self._clients)} clients, the limit is clients_max")
            client = self._clients[client_id] = Client(now_ms)
        else:
            client.last_ms = now_ms
            self._clients.move_to_end(client_id)
            if self._lost:
                self._lost.pop(client_id, None)
        if calls:
            client.called = True
        if client_type:
            client.client_type = client_type
        if group:
            client.group = group
        return client

    def all(self) -> list[tuple[str, Client]]:
        """All clients with their ids, the one silent for longest first."""
        return list(self._clients.items())

    def expect_call(self, client_id: str) -> None:
        """From now on, `called` says whether there was one."""
        client = self._clients.get(client_id)
        if client is not None:
            client.called = False

    def goodbye(self, client_id: str, now_ms: int) -> None:
        """The client ends, by its own word."""
        self.forget(client_id)
        self._goodbyes[client_id] = now_ms
        self._goodbyes.move_to_end(client_id)
        if len(self._goodbyes) > GOODBYES_MAX:
            self._goodbyes.popitem(last=False)

    def after_goodbye(self, client_id: str, now_ms: int) -> bool:
        """Whether a stream that the client opens now comes from what is left of it: it said goodbye, and has called
        nothing since.
        """
        said_ms = self._goodbyes.get(client_id)
        if said_ms is None:
            return False
        if said_ms + GOODBYE_MS < now_ms:
            del self._goodbyes[client_id]
            return False
        self._goodbyes[client_id] = now_ms
        return True

    def forget(self, client_id: str) -> Client | None:
        """The client is gone; gives what was known."""
        self._lost.pop(client_id, None)
        return self._clients.pop(client_id, None)

    def lose(self, client_id: str) -> None:
        """Its stream is gone and it was silent since: it is given up sooner than others, unless it is seen again."""
        if client_id in self._clients:
            self._lost[client_id] = None

    def give_up(self, now_ms: int, silence_ms: int) -> list[str]:
        """Forget those of the lost that were silent for `silence_ms`; gives their ids."""
        gone = [one for one in self._lost if self._clients[one].last_ms + silence_ms <= now_ms]
        for client_id in gone:
            self.forget(client_id)
        return gone

    def expire(self, now_ms: int, silence_ms: int) -> list[str]:
        """Forget who was silent for `silence_ms`; gives their ids."""
        gone = []
        while self._clients:
            client_id, client = next(iter(self._clients.items()))
            if client.last_ms + silence_ms > now_ms:
                break
            self.forget(client_id)
            gone.append(client_id)
        return gone

    def counts(self) -> tuple[int, int]:
        """Producers and consumers."""
        producers = sum(client.client_type == PRODUCER for client in self._clients.values())
        return producers, sum(client.client_type > PRODUCER for client in self._clients.values())
