"""The end of v2 clients, agreed between brokers (decision 110).

Messages of a push consumer stay hidden while it lives, but each broker sees only a part of its life: one has its stream
and its NotifyClientTermination, another one only its receives. So a broker ends a client by itself only on that
message. It doubts a client that is silent for `client_lost_ms`, has neither a stream nor a waiting poll here, and holds
messages or a share of a group's queues, which nobody else reads. It also doubts one whose end another broker reports,
and one that held messages before this broker's start and has not returned. Then it queries all other brokers. A client
that lives at one is kept. Otherwise it ends after its termination at one of them, or once it was silent here for
`client_lost_ms`. If one does not answer, it is doubted again and ends after `client_silence_ms`. One that lives by a
call to another broker alone is doubted again `client_lost_ms` after that call: every broker then ends it as soon as the
last one that it called.

A report of an end ends nothing. It ends the client's waiting polls, which makes a living client call again, and is
examined `RELEASE_MS` later, so a late one does no harm. Bounds: `NAMES_MAX` ids a request, `REPORTED_MAX` waiting
reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from evenq.errors import Error
from evenq_broker.core.clients.client_table import silence_of
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.loops.clients.connected import RELEASE_MS, ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.signals import Signal
from evenq_broker.loops.wire.peers import ClientsKnown, clients_known, clients_request

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Peers/Clients"
SWEEP_MS = 1_000
GATHER_MS = 50
NAMES_MAX = 1_000
REPORTED_MAX = 10_000


class _Verdict(NamedTuple):
    """Knowledge of the other brokers about some clients."""

    known: ClientsKnown
    sure: bool
    """All of them answered."""


class Departures:
    """Decides when a v2 client of one broker is gone."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        clients: ConnectedClients,
        cluster: ClusterLink,
        long_polls: LongPolls,
        sessions: Sessions,
    ) -> None:
        self._runtime, self._ledger = kernel.runtime, kernel.ledger
        self._clients, self._cluster, self._long_polls = clients, cluster, long_polls
        self._sessions = sessions
        self._reported: dict[str, None] = {}
        """Ended here, to be reported to the other brokers."""
        self._news = Signal()

    def start(self) -> None:
        """Examines silent clients once a second, and reports ends."""
        self._runtime.spawn(self._watch(), name="client liveness")
        self._runtime.spawn(self._report(), name="ends of clients")

    def expect(self) -> None:
        """After the replay: gives clients with deliveries `client_grace_ms` to open a stream or call."""
        now_ms = self._runtime.now_ms()
        for client_id in sorted(self._ledger.progress.clients()):
            doubt_ms = now_ms + self._runtime.settings.client_grace_ms
            self._clients.table.expect(client_id, now_ms, doubt_ms=doubt_ms)

    def goodbye(self, client_id: str, *, spread: bool = True) -> None:
        """Ends a client by its own message. `spread`: the other brokers may not have got it."""
        self._clients.end(client_id)
        self._clients.table.goodbye(client_id, self._runtime.now_ms())
        if spread:
            self._tell(client_id)

    def answer(self, ended: Sequence[str], asked: Sequence[str]) -> ClientsKnown:
        """Handles ends reported by another broker; returns what is known here of the clients that it doubts."""
        table, now_ms = self._clients.table, self._runtime.now_ms()
        reported = [one for one in ended[:NAMES_MAX] if table.get(one) is not None]
        for client_id in reported:
            self._long_polls.end_client(client_id)
            table.suspect(client_id, now_ms + RELEASE_MS)
        if reported:
            self._runtime.spawn(self._look_later(reported), name="examine reported clients")
        names = asked[:NAMES_MAX]
        return ClientsKnown(
            {one: self._silent_ms(one, now_ms) for one in names if self._lives(one)},
            frozenset(one for one in names if table.said_goodbye(one, now_ms)),
        )

    # ------------------------------------------------------------------------------------------------ examination

    async def _watch(self) -> None:
        settings, table = self._runtime.settings, self._clients.table
        while True:
            await self._runtime.clock.sleep_ms(SWEEP_MS)
            silent_ms = settings.client_silence_ms
            for client_id in table.expire(self._runtime.now_ms(), silent_ms):
                self._end(client_id, f"made no call for {silent_ms} ms")
            for stream in self._clients.streams.tried(settings.client_lost_ms):
                client = table.get(stream.client_id)
                if client is not None and not client.called:
                    stream.end()
            doubtful = table.doubtful(self._runtime.now_ms(), settings.client_lost_ms)
            await self._look([one for one in doubtful if self._is_doubted(one)])

    async def _look_later(self, client_ids: Sequence[str]) -> None:
        await self._runtime.clock.sleep_ms(RELEASE_MS)
        await self._look([one for one in client_ids if self._clients.table.is_suspect(one) and self._is_doubted(one)])

    def _lives(self, client_id: str) -> bool:
        waits = self._long_polls.table.waits(client_id)
        return waits or self._clients.lives(client_id, self._runtime.settings.client_lost_ms)

    def _silent_ms(self, client_id: str, now_ms: int) -> int:
        """Returns the silence of a client that lives."""
        client = self._clients.table.get(client_id)
        if client is None or self._clients.streams.reaches(client_id) or self._long_polls.table.waits(client_id):
            return 0
        return max(0, now_ms - client.here_ms)

    def _is_doubted(self, client_id: str) -> bool:
        """True if there is a reason to query: nothing here shows that it lives, and its end would change something."""
        table = self._clients.table
        if self._clients.streams.reaches(client_id) or self._long_polls.table.waits(client_id):
            return False
        if table.is_suspect(client_id) or table.is_lost(client_id):
            return True
        # A member that holds no message may have queues, also if it never had a stream here, or died before it opened
        # another one: as no stream ended, it is not lost.
        return self._ledger.progress.holds(client_id) or self._sessions.has_share_v2(client_id)

    async def _look(self, client_ids: Sequence[str]) -> None:
        for at in range(0, len(client_ids), NAMES_MAX):
            part = client_ids[at : at + NAMES_MAX]
            began_ms = self._runtime.now_ms()
            verdict = await self._asked(part)
            for client_id in part:
                self._decide(client_id, verdict, began_ms)

    def _decide(self, client_id: str, verdict: _Verdict, began_ms: int) -> None:
        table, now_ms = self._clients.table, self._runtime.now_ms()
        client, lost_ms = table.get(client_id), self._runtime.settings.client_lost_ms
        if client is None or client.here_ms > began_ms or not self._is_doubted(client_id):
            return  # it ended, or made a call meanwhile
        if client_id in verdict.known.alive:
            silent_ms = verdict.known.alive[client_id]
            table.vouched(
                client_id, now_ms, doubt_ms=now_ms + silence_of(client, lost_ms) - silent_ms if silent_ms else None
            )
        elif client_id in verdict.known.gone:
            self._end(client_id, "terminated at another broker")
            table.goodbye(client_id, now_ms)
        elif verdict.sure:
            due_ms = client.here_ms + silence_of(client, lost_ms)
            if due_ms > now_ms:
                table.suspect(client_id, due_ms)
                return
            if table.is_lost(client_id):
                self._tell(client_id)
            self._end(client_id, f"made no call for {lost_ms} ms and has no stream")

    def _end(self, client_id: str, why: str) -> None:
        log.info("client %s %s, removed", client_id, why, extra={"client_id": client_id})
        self._clients.end(client_id, delay_ms=0)

    # ------------------------------------------------------------------------------------------------ other brokers

    async def _asked(self, client_ids: Sequence[str]) -> _Verdict:
        cluster = self._cluster
        request = clients_request(asked=client_ids)
        answers = await asyncio.gather(*(self._send(peer, request) for peer in cluster.peers.all()))
        answered = [one for one in answers if one is not None]
        alive: dict[str, int] = {}
        for one in answered:
            for client_id, silent_ms in one.alive.items():
                alive[client_id] = min(silent_ms, alive.get(client_id, silent_ms))
        known = ClientsKnown(alive, frozenset[str]().union(*(one.gone for one in answered)))
        sees_all = not cluster.nameservers or cluster.nameservers_answering > 0
        return _Verdict(known, sees_all and len(answered) == len(answers))

    def _tell(self, client_id: str) -> None:
        if len(self._reported) < REPORTED_MAX:
            self._reported[client_id] = None
            self._news.notify()

    async def _report(self) -> None:
        while True:
            if not self._reported:
                await self._news.wait(self._news.count, clock=self._runtime.clock)
            await self._runtime.clock.sleep_ms(GATHER_MS)
            part = list(islice(self._reported, NAMES_MAX))
            for client_id in part:
                del self._reported[client_id]
            request = clients_request(ended=part)
            await asyncio.gather(*(self._send(peer, request) for peer in self._cluster.peers.all()))

    async def _send(self, peer: RegisteredBroker, request: bytes) -> ClientsKnown | None:
        try:
            return clients_known(await self._cluster.peers.ask(peer.name, METHOD, request))
        except Error as error:  # an older version, or it has just gone
            log.debug("broker %s does not report which clients live: %s", peer.name, error.message)
            return None
