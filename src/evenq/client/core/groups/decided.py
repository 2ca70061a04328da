"""The server's decisions that are in force: a member's share of each topic, pushed by brokers or queried.

Decisions reach a member over several brokers: late, twice and out of order. The newest generation counts (XO-7). A
share that is older than `trust_ms`, or suspect, is queried again. Times are monotonic ms. Invariants: the generation of
a topic never goes back while the server decides; a share in use belongs to the generation that fences its commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evenq.client.core.calls import Assignment
from evenq.model import NO_GENERATION, Generation, MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.model.session_events import AssignmentChanged


@dataclass(frozen=True, slots=True)
class _Share:
    queues: list[MessageQueue]
    generation: Generation
    heard_ms: int


class DecidedShares:
    """The shares of one member."""

    def __init__(self, *, trust_ms: int) -> None:
        self._trust_ms = trust_ms
        self._shares: dict[str, _Share] = {}
        """By topic, until it is suspect."""
        self._generations: dict[str, Generation] = {}
        self._heard_ms = -(1 << 60)

    def generation(self, topic: str) -> Generation:
        """Returns the generation of the decision in use, for fencing; NO_GENERATION while members decide."""
        return self._generations.get(topic, NO_GENERATION)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the share of the newest decision; empty also if none is known."""
        share = self._shares.get(topic)
        return [] if share is None else share.queues

    def complete(self, topics: Iterable[str]) -> bool:
        """True if a decision is known for each of these topics, retry topics aside."""
        ordinary = [topic for topic in topics if not topic.startswith(RETRY_PREFIX)]
        return bool(ordinary) and all(topic in self._shares for topic in ordinary)

    def heard_since(self, ms: int) -> bool:
        """True if a decision was pushed since then."""
        return self._heard_ms >= ms

    def push(self, change: AssignmentChanged[tuple[MessageQueue, ...]], now_ms: int) -> bool:
        """Takes a pushed decision. False: it does not contain the share, so the next round must query it."""
        if change.share is None:
            self._shares.pop(change.topic, None)
            return False
        known = self._shares.get(change.topic)
        newer = known is None or change.generation > known.generation
        if newer and change.generation >= self.generation(change.topic):
            self._heard_ms = now_ms
            self._shares[change.topic] = _Share(list(change.share), change.generation, now_ms)
        return True

    def use(self, topic: str, now_ms: int) -> list[MessageQueue] | None:
        """Returns the share that a round may use without a query; None: the server must be queried."""
        share = self._shares.get(topic)
        if share is None:
            return None
        # A push may be lost with its connection; without queries the member would use an old decision for ever.
        if now_ms - share.heard_ms >= self._trust_ms:
            del self._shares[topic]
            return None
        self._generations[topic] = share.generation
        return share.queues

    def answered(self, topic: str, assignment: Assignment, now_ms: int) -> list[MessageQueue] | None:
        """Returns the share in force after the server's answer; None: nothing changes.

        A newer decision that was pushed meanwhile wins. A late answer must not win (XO-7). An answer without any
        generation is not a late one: the rebalancer is gone, and brokers compute.
        """
        pushed = self._shares.get(topic)
        if pushed is not None and pushed.generation > assignment.generation:
            self._generations[topic] = pushed.generation
            return pushed.queues
        if not assignment.known or NO_GENERATION < assignment.generation < self.generation(topic):
            return None
        self._generations[topic] = max(assignment.generation, self.generation(topic))
        queues = sorted(assignment.queues)
        if assignment.generation > NO_GENERATION:
            self._shares[topic] = _Share(queues, assignment.generation, now_ms)
        else:
            self._shares.pop(topic, None)
        return queues

    def suspect(self, topic: str | None = None) -> None:
        """Makes the next round query this topic, or all topics."""
        if topic is None:
            self._shares.clear()
        else:
            self._shares.pop(topic, None)

    def forget(self, topic: str) -> None:
        """Forgets a topic that members divide now: brokers would reject its old generation."""
        self._shares.pop(topic, None)
        self._generations.pop(topic, None)
