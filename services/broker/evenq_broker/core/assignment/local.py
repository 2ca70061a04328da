"""Local computation of assignments, used without a rebalancer and while it is away (SR-4, XO-7).

By default each member gets every broker with queue id -1, "all its queues", as RocketMQ 5 answers. This is always right
because receiving balances by competition. A group with a strategy shares the queues one by one (RB-11, RB-12).
`LastAnswers` keeps the rebalancer's last answers, so that a failure on the way to it changes no owner (XO-3).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from evenq.model import MessageQueue

ALL_QUEUES = -1
ANSWERS_MAX = 100_000

Share = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""(group, own client id, sorted queues, sorted client ids) to the own queues (AL-1)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Queues of one member, with strategy and generation of the decision."""

    queues: tuple[MessageQueue, ...]
    """Queue id -1: all queues of the broker. Empty: nothing for this member."""
    strategy: str = ""
    epoch: int = 0
    counter: int = 0
    """Generation of the rebalancer's decision; 0, 0 when computed here."""


def all_brokers(readable: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Returns every readable broker once, with id -1 (wire contract 6.2)."""
    brokers = {(queue.topic, queue.broker_name): None for queue in readable}
    return tuple(MessageQueue(topic, broker_name, ALL_QUEUES) for topic, broker_name in brokers)


def compute(
    group: str, client_id: str, readable: Sequence[MessageQueue], client_ids: Iterable[str], share: Share | None
) -> Answer:
    """Returns the member's part of the topic's readable queues; `share` None: every broker for every member.
    The requesting member counts as one of the group even before its first heartbeat.
    """
    if share is None:
        return Answer(all_brokers(readable))
    if not readable:
        return Answer(())
    members = sorted({*client_ids, client_id})
    return Answer(tuple(share(group, client_id, sorted(readable), members)))


class LastAnswers:
    """The last good answer for each (group, topic, client id); the least recently used one is dropped first."""

    def __init__(self, *, answers_max: int = ANSWERS_MAX) -> None:
        self._answers: OrderedDict[tuple[str, str, str], Answer] = OrderedDict()
        self._topics: dict[str, dict[str, dict[str, None]]] = {}
        """Group to client id to topics: where `_answers` has something."""
        self._answers_max = answers_max

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, group: str, topic: str, client_id: str, answer: Answer) -> Answer:
        """Keeps and returns the answer, or a known one of a newer generation: a late answer never wins (XO-7)."""
        key = (group, topic, client_id)
        known = self._answers.get(key)
        if known is not None and (known.epoch, known.counter) > (answer.epoch, answer.counter):
            self._answers.move_to_end(key)
            return known
        self._answers[key] = answer
        self._answers.move_to_end(key)
        self._topics.setdefault(group, {}).setdefault(client_id, {})[topic] = None
        if len(self._answers) > self._answers_max:
            self._drop(next(iter(self._answers)))
        return answer

    def last(self, group: str, topic: str, client_id: str) -> Answer | None:
        """Returns the member's last answer."""
        return self._answers.get((group, topic, client_id))

    def of_group(self, group: str) -> dict[str, list[Answer]]:
        """Returns the last answers of the group's members, by client id."""
        return {
            client_id: [self._answers[group, topic, client_id] for topic in topics]
            for client_id, topics in self._topics.get(group, {}).items()
        }

    def answers_of(self, group: str, client_id: str) -> dict[str, Answer]:
        """Returns the last answers of one member, by topic."""
        topics = self._topics.get(group, {}).get(client_id, ())
        return {topic: self._answers[group, topic, client_id] for topic in topics}

    def repeat(self, group: str, topic: str, client_id: str, alive: Callable[[str], bool]) -> Answer | None:
        """Returns the last answer without the queues of brokers that are not alive."""
        known = self._answers.get((group, topic, client_id))
        if known is None:
            return None
        queues = tuple(queue for queue in known.queues if alive(queue.broker_name))
        return Answer(queues, known.strategy, known.epoch, known.counter)

    def forget(self, client_id: str, groups: Iterable[str]) -> None:
        """Forgets the answers of a client that left these groups."""
        for group in groups:
            for topic in list(self._topics.get(group, {}).get(client_id, ())):
                self._drop((group, topic, client_id))

    def check(self) -> None:
        """Raises AssertionError if the index is wrong; tests call it after each event."""
        indexed = {
            (group, topic, client_id)
            for group, clients in self._topics.items()
            for client_id, topics in clients.items()
            for topic in topics
        }
        assert indexed == set(self._answers), indexed ^ set(self._answers)
        assert all(topics for clients in self._topics.values() for topics in clients.values())

    def _drop(self, key: tuple[str, str, str]) -> None:
        del self._answers[key]
        group, topic, client_id = key
        clients = self._topics[group]
        del clients[client_id][topic]
        if not clients[client_id]:
            del clients[client_id]
        if not clients:
            del self._topics[group]
