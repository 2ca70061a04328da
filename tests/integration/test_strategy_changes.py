"""Real processes: a group gets a strategy, and another one, while its members read."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

import evenq
from evenq.testing import LocalCluster

TOPIC, GROUP = "flights", "desk"
pytestmark = pytest.mark.integration


def eventually(condition: Callable[[], bool], *, seconds: float = 30, what: str = "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Desk:
    """Members m0, m1, m2 of one group, told nothing about who divides."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.seen: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self.members = [
            evenq.PushConsumer(
                group=GROUP,
                endpoint=cluster.endpoint,
                client_id=f"m{number}",
                listener=self._listen,
                subscriptions={TOPIC: "*"},
                start_from="FIRST",
            ).start()
            for number in range(3)
        ]

    def _listen(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        with self._lock:
            self.seen.update(message.body for message in messages)

    def shares(self) -> list[list[tuple[str, int]]]:
        return [[(queue.broker_name[-1], queue.queue_id) for queue in member.queues] for member in self.members]

    def publish(self, numbers: range) -> None:
        with evenq.Producer(endpoint=self.cluster.endpoint) as producer:
            for number in numbers:
                producer.send_async(evenq.Message(topic=TOPIC, body=b"%d" % number))
            producer.flush(30_000)


@pytest.mark.parametrize("rebalancer", [False, True], ids=["alone", "rebalancer"])
def test_a_strategy_given_later_reaches_all_members_and_nothing_comes_twice(*, rebalancer: bool) -> None:
    with LocalCluster(brokers=2, rebalancer=rebalancer) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(TOPIC, queues=3)
        desk = Desk(cluster)
        paged = [[("a", 0), ("a", 1)], [("a", 2), ("b", 0)], [("b", 1), ("b", 2)]]
        dealt = [[("a", 0), ("b", 0)], [("a", 1), ("b", 1)], [("a", 2), ("b", 2)]]
        try:
            eventually(lambda: desk.shares() == paged, what=f"AVG in each member, not {desk.shares()}")
            desk.publish(range(300))
            admin.create_group(GROUP, strategy="AVG_BY_CIRCLE")
            desk.publish(range(300, 600))
            eventually(lambda: desk.shares() == dealt, what="like cards, as the group has it now")
            admin.create_group(GROUP, strategy="AVG")
            desk.publish(range(600, 900))
            eventually(lambda: desk.shares() == paged, what="pages again")
            eventually(lambda: len(desk.seen) == 900, what="all 900 messages")
        finally:
            for member in desk.members:
                member.close()
        assert set(desk.seen.values()) == {1}
