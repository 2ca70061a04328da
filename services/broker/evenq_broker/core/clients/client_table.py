"""The v2 clients that this broker knows: their last calls and their settings.

Called by every handler that knows the caller's id, and by the liveness loop. Telemetry streams come and go, so this
table decides how long a client lives (wire contract 3.2, 4.6). It also keeps clients that announced their end and have
called nothing since: their telemetry streams no longer count. A client that is silent, or whose end another broker
reports, is doubtful: `loops.groups.departures` queries the other brokers before it ends the client. Pure: times are ms
since the epoch.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from evenq.errors import TooManyRequests

PRODUCER = 1  # ClientType of the v2 protocol
GOODBYE_MS = 60_000
"""Time for which an announced end is remembered, renewed by each telemetry stream that is opened after it."""
GOODBYES_MAX = 10_000
RUST = "RUST"
RUST_MS = 20_000
"""Rust sends a heartbeat every 30 s, all other SDKs every 10 s: it may be silent for that much longer."""
_RUST_ID = re.compile(r"@\d+#\d+$")  # the only SDK whose client ids have this form


class Client:
    """One client object of an SDK."""

    __slots__ = ("called", "came", "client_type", "group", "here_ms", "language", "last_ms", "refused", "subscriptions")

    def __init__(self, last_ms: int) -> None:
        self.last_ms = last_ms  # last sign of life, here or at another broker
        self.here_ms = last_ms
        """Last call here; this broker's start for a client that held something before it and has not called since."""
        self.came = False  # it made a call since this broker's start
        self.language = ""
        self.called = False
        """It made a call other than telemetry since `expect_call`."""
        self.client_type = 0  # number of the v2 `ClientType`; 0 = not known yet
        self.group = ""
        self.refused = False
        """Its settings name no topic that it may read: it is a member of no group."""
        self.subscriptions: dict[str, str] = {}  # topic -> filter expression, from its settings


def silence_of(client: Client, silence_ms: int) -> int:
    """Returns how long this client may be silent where others may be for `silence_ms`."""
    return silence_ms + RUST_MS if client.language == RUST else silence_ms


class ClientTable:
    """client id -> Client, the one silent for longest first."""

    __slots__ = ("_clients", "_goodbyes", "_lost", "_suspects", "clients_max")

    def __init__(self, *, clients_max: int = 100_000) -> None:
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._lost: dict[str, None] = {}
        self._suspects: dict[str, int] = {}
        """Client id -> when it becomes doubtful, unless it makes a call before."""
        self._goodbyes: OrderedDict[str, int] = OrderedDict()
        self.clients_max = clients_max

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def seen(
        self,
        client_id: str,
        now_ms: int,
        *,
        client_type: int = 0,
        group: str = "",
        language: str = "",
        calls: bool = True,
    ) -> Client:
        """Records a sign of life; `calls`: more than a stream's settings. Raises TooManyRequests for a full table."""
        client = self._clients.get(client_id)
        if client is None:
            self._goodbyes.pop(client_id, None)
            if len(self._clients) >= self.clients_max:
                raise TooManyRequests(f"this broker knows {len(self._clients)} clients, the limit is clients_max")
            client = self._clients[client_id] = Client(now_ms)
        else:
            client.last_ms = now_ms
            self._clients.move_to_end(client_id)
            self._trust(client_id)
        client.here_ms, client.came = now_ms, True
        if calls:
            client.called = True
        if language:
            client.language = language
        if client_type:
            client.client_type = client_type
        if group:
            client.group = group
        return client

    def all(self) -> list[tuple[str, Client]]:
        """Returns all clients with their ids, the one silent for longest first."""
        return list(self._clients.items())

    def expect_call(self, client_id: str) -> None:
        """Clears `called`, which the client's next call sets."""
        client = self._clients.get(client_id)
        if client is not None:
            client.called = False

    def goodbye(self, client_id: str, now_ms: int) -> None:
        """Forgets a client that announced its end."""
        self.forget(client_id)
        self._goodbyes[client_id] = now_ms
        self._goodbyes.move_to_end(client_id)
        if len(self._goodbyes) > GOODBYES_MAX:
            self._goodbyes.popitem(last=False)

    def after_goodbye(self, client_id: str, now_ms: int) -> bool:
        """Returns whether a new stream of the client is a leftover: it announced its end and made no call since."""
        said_ms = self._goodbyes.get(client_id)
        if said_ms is None:
            return False
        if said_ms + GOODBYE_MS < now_ms:
            del self._goodbyes[client_id]
            return False
        self._goodbyes[client_id] = now_ms
        return True

    def said_goodbye(self, client_id: str, now_ms: int) -> bool:
        """Returns whether the client announced its end in the last `GOODBYE_MS` and has made no call since."""
        said_ms = self._goodbyes.get(client_id)
        return said_ms is not None and said_ms + GOODBYE_MS >= now_ms

    def forget(self, client_id: str) -> Client | None:
        self._trust(client_id)
        return self._clients.pop(client_id, None)

    # ------------------------------------------------------------------------------------------------ doubts

    def expect(self, client_id: str, now_ms: int, *, doubt_ms: int) -> None:
        """Adds a client that held something before the start. From `doubt_ms` on it is doubtful unless it calls."""
        if client_id not in self._clients and len(self._clients) < self.clients_max:
            client = self._clients[client_id] = Client(now_ms)
            client.language = RUST if _RUST_ID.search(client_id) else ""
            self.suspect(client_id, doubt_ms)

    def lose(self, client_id: str) -> None:
        """Marks a client that is silent since its stream ended: it becomes doubtful sooner, unless it is seen again."""
        if client_id in self._clients:
            self._lost[client_id] = None

    def is_lost(self, client_id: str) -> bool:
        return client_id in self._lost

    def suspect(self, client_id: str, doubt_ms: int) -> None:
        """Makes the client doubtful from `doubt_ms` on, unless it makes a call before."""
        if client_id in self._clients:
            self._suspects[client_id] = doubt_ms

    def is_suspect(self, client_id: str) -> bool:
        return client_id in self._suspects

    def doubtful(self, now_ms: int, silence_ms: int) -> list[str]:
        """Returns suspects whose time has come, and all clients that were silent for `silence_ms`."""
        doubtful = dict.fromkeys(one for one, doubt_ms in self._suspects.items() if doubt_ms <= now_ms)
        for client_id, client in self._clients.items():
            if client.last_ms + silence_ms > now_ms:
                break
            if client.last_ms + silence_of(client, silence_ms) <= now_ms:
                doubtful[client_id] = None
        return list(doubtful)

    def vouched(self, client_id: str, now_ms: int, *, doubt_ms: int | None = None) -> None:
        """Records that another broker vouches for the client. `doubt_ms`: when its evidence, a mere call, is too old.
        It is kept as a suspicion and not as an older `last_ms`, because the table is ordered by `last_ms`.
        """
        client = self._clients.get(client_id)
        if client is not None:
            client.last_ms = now_ms
            self._clients.move_to_end(client_id)
            self._suspects.pop(client_id, None)
            if doubt_ms is not None:
                self._suspects[client_id] = doubt_ms

    def heard(self, client_id: str, now_ms: int, silence_ms: int) -> bool:
        """Returns whether it made a call here within `silence_ms` and after this broker's start."""
        client = self._clients.get(client_id)
        if client is None or not client.came:
            return False
        return client.here_ms + silence_of(client, silence_ms) > now_ms

    def _trust(self, client_id: str) -> None:
        if self._lost:
            self._lost.pop(client_id, None)
        if self._suspects:
            self._suspects.pop(client_id, None)

    def expire(self, now_ms: int, silence_ms: int) -> list[str]:
        """Forgets the clients that were silent for `silence_ms`; returns their ids."""
        gone = []
        while self._clients:
            client_id, client = next(iter(self._clients.items()))
            if client.last_ms + silence_ms > now_ms:
                break
            self.forget(client_id)
            gone.append(client_id)
        return gone

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of producers and consumers."""
        producers = sum(client.client_type == PRODUCER for client in self._clients.values())
        return producers, sum(client.client_type > PRODUCER for client in self._clients.values())
