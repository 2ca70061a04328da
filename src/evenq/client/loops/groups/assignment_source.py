"""The member's share of each topic: computed here by an allocate strategy (RB-8 to RB-14), or decided by the server
(SR-1, XO-3).

By default the server is queried while the group has a strategy there. `loops.ownership` calls this in each round. None
means "unknown, change nothing"; an empty list means "no queues". Brokers push each member its share of new decisions,
so a round seldom has to query (`core.decided`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evenq.allocation import Strategy, absence
from evenq.client.core.groups.decided import DecidedShares
from evenq.client.loops.groups.sessions import BrokerSessions
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import BadRequest
from evenq.model import Generation, MessageModel, MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.model.session_events import AssignmentChanged
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)

NAMED_MAX = 5
SHARE_NAMED_MAX = 32
NO_QUEUE = "it has no readable queue"
NO_MEMBERS = "no broker reports the members of the group"
UNKNOWN_MS = 2_000
"""Members that are unknown for less time are not logged."""


class AssignmentSource:
    """The source of one consumer's assignment."""

    def __init__(
        self,
        *,
        calls: RpcConsumerCalls,
        routes: RouteBook,
        sessions: BrokerSessions,
        group: str,
        client_id: str,
        strategy: Strategy,
        model: MessageModel,
        ask_server: bool | None,
        clock: Clock,
        trust_ms: int,
    ) -> None:
        self._clock = clock
        self._calls = calls
        self._routes = routes
        self._sessions = sessions
        self._group = group
        self.client_id = client_id
        """The member whose share it is."""
        self._strategy = strategy
        self._model = model
        self._ask_server = ask_server
        """None: while the group has a strategy."""
        self._decided = DecidedShares(trust_ms=trust_ms)
        self._whole_brokers: set[str] = set()
        """Topics for which the server assigns whole brokers, as was logged."""
        self._nowhere: dict[str, list[MessageQueue]] = {}
        self._how: dict[str, str] = {}
        """By topic: a text for the log on the last division."""
        self._why: dict[str, str] = {}
        """By topic that could not be divided: the reason that was logged."""
        self._unknown_ms: dict[str, int] = {}
        """By topic: since when no broker has reported the members."""
        self.undecided = False
        """True once the server had no decision yet; the caller resets it, and queries again soon."""
        self.chosen: dict[str, list[MessageQueue]] | None = None
        """By topic: the queues that the user chose; None: queues are divided."""

    @property
    def asks(self) -> bool:
        """True if the server decides (SR-1), False if members do (SR-2)."""
        return bool(self._sessions.strategy()) if self._ask_server is None else self._ask_server

    def generation(self, topic: str) -> Generation:
        """Returns the generation of the topic's decision, for fencing; NO_GENERATION while members decide."""
        return self._decided.generation(topic)

    def log_share(self, topic: str, assigned: Sequence[MessageQueue]) -> None:
        """Logs a changed share: the rule of the division, the number of members, and the queues (RB-14)."""
        named = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in assigned[:SHARE_NAMED_MAX])
        log.info(
            "group %s: %d queues of topic %s assigned to this member: %s%s (%s, client %s)",
            self._group,
            len(assigned),
            topic,
            named or "none",
            ", ..." * (len(assigned) > SHARE_NAMED_MAX),
            self._how.get(topic, ""),
            self.client_id,
        )

    def log_overlap(self, queue: MessageQueue, ms: int) -> None:
        """Logs that another member has held a queue of this share for a long time (AL-14)."""
        log.warning(
            "group %s: queue %s is assigned to this member (%s, client %s), but another member has held it for %d s",
            self._group,
            queue,
            self._how.get(queue.topic, ""),
            self.client_id,
            ms // 1_000,
        )

    @property
    def who(self) -> str:
        """Client and strategy, as a text for the log."""
        return f"client {self.client_id}, strategy {self._strategy.name}"

    def all_decided(self, topics: Iterable[str]) -> bool:
        """True if the server has pushed a decision for each topic; then changes of members need no query."""
        return self._decided.complete(topics)

    def decided(self, topic: str) -> list[MessageQueue]:
        """Returns the share of the topic's newest decision; empty also if none is known."""
        return self._decided.queues(topic)

    def heard_since(self, ms: int) -> bool:
        """True if a decision was pushed since then, monotonic ms."""
        return self._decided.heard_since(ms)

    def take(self, change: AssignmentChanged[tuple[MessageQueue, ...]]) -> bool:
        """Takes a pushed decision. False: the next round must query it."""
        if not self.asks or self.chosen is not None:
            self._decided.suspect(change.topic)
            return False
        return self._decided.push(change, self._clock.monotonic_ms())

    def suspect(self) -> None:
        """Makes the next round query every topic."""
        self._decided.suspect()

    async def assigned(self, topic: str) -> list[MessageQueue] | None:
        """Returns the share; None: unknown. Raises errors of server and strategy; then nothing changes (RB-12)."""
        if self.chosen is not None:
            self._how[topic] = "chosen by its user"
            return sorted(self.chosen.get(topic, ()))
        if self._model is MessageModel.BROADCASTING:
            queues = list((await self._routes.get(topic)).readable)
            if not queues:
                self._undivided(topic, NO_QUEUE)
                return None
            self._why.pop(topic, None)
            self._how[topic] = f"all {len(queues)} queues, BROADCASTING"
            return queues  # RB-17
        if self.asks:
            return await self._by_server(topic)
        self._decided.forget(topic)
        return await self._computed(topic)

    async def _by_server(self, topic: str) -> list[MessageQueue] | None:
        name = self._strategy.name if self._ask_server is not None else self._sessions.strategy()
        self._how[topic] = f"decided by the server, strategy {name}"
        share = self._decided.use(topic, self._clock.monotonic_ms())
        if share is not None:
            return share
        if topic.startswith(RETRY_PREFIX):
            await self._routes.get(topic)  # raises, mostly without a call, until the topic exists
        assignment = await self._calls.query_assignment(self._group, topic, name, self._model)
        share = self._decided.answered(topic, assignment, self._clock.monotonic_ms())
        if share is None:
            self.undecided |= not assignment.known
            return None
        # Queue id -1 means all queues of a broker, for members that receive (wire contract 6.2). Members that own
        # queues divide them.
        if any(queue.queue_id < 0 for queue in share):
            if topic not in self._whole_brokers:
                self._whole_brokers.add(topic)
                log.info(
                    "group %s: the server assigns brokers of topic %s, not queues; members divide them by %s",
                    self._group,
                    topic,
                    self._strategy.name,
                )
            self._decided.forget(topic)
            return await self._computed(topic)
        return share

    def _undivided(self, topic: str, why: str) -> None:
        if why in (NO_QUEUE, NO_MEMBERS) and topic.startswith(RETRY_PREFIX):  # RB-9: normal
            return
        if why == NO_MEMBERS:  # normal for a moment after a start, or when a topic was just created
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._unknown_ms.setdefault(topic, now_ms) < UNKNOWN_MS:
                return
        if self._why.get(topic) != why:  # one line for each cause, not for each round
            self._why[topic] = why
            log.warning("group %s: no assignment for topic %s now: %s", self._group, topic, why)

    async def _computed(self, topic: str) -> list[MessageQueue] | None:
        queues = sorted((await self._routes.get(topic)).readable)
        members = self._sessions.members()
        if not queues or members is None:  # RB-9, RB-10
            self._undivided(topic, NO_MEMBERS if queues else NO_QUEUE)
            return None
        self._unknown_ms.pop(topic, None)
        # A member that reported its topics without this one would not read its share (RG-8).
        ids = sorted(m.client_id for m in members if m.protocol != "v2" and (not m.topics or topic in m.topics))
        missing = absence(self._group, self.client_id, ids)
        if missing:
            self._undivided(topic, missing)
        else:
            self._why.pop(topic, None)
        self._how[topic] = f"{len(queues)} queues among {len(ids)} members, strategy {self._strategy.name}"
        result: Iterable[MessageQueue] | None
        try:
            result = self._strategy.allocate(self._group, self.client_id, queues, ids)
        except BadRequest as error:  # RB-12: the text must name the strategy
            name = repr(self._strategy.name)
            raise error if name in str(error) else BadRequest(f"allocate strategy {name}: {error}") from error
        mine = list(result or ())  # RB-13: a user's strategy may return None for no queues
        self._tell_of_nowhere(topic, [queue for queue in mine if queue.topic == topic and queue not in set(queues)])
        return mine

    def _tell_of_nowhere(self, topic: str, nowhere: list[MessageQueue]) -> None:
        """Warns of queues in a configured list that do not exist; nothing else detects them (AL-14)."""
        if nowhere and nowhere != self._nowhere.get(topic):
            named = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in nowhere[:NAMED_MAX])
            more = f" and {len(nowhere) - NAMED_MAX} more" if len(nowhere) > NAMED_MAX else ""
            log.warning(
                "group %s, topic %s: %s names queues that do not exist, so they are not read: %s%s",
                self._group,
                topic,
                self._strategy.name,
                named,
                more,
                extra={"group": self._group, "topic": topic, "queues": len(nowhere)},
            )
        self._nowhere[topic] = nowhere
