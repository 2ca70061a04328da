"""Real processes: a group gets a strategy, another one, and loses it again, while its members read."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster

TOPIC, GROUP = "flights", "desk"
IDS = ("m0", "m1", "m2")


class Desk:
    """Members m0, m1, m2 of one group, with no notice about who divides."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.seen: Counter[bytes] = Counter()
        self._lock = threading.Lock()
        self.members = [
            evenq.PushConsumer(
                group=GROUP,
                endpoint=cluster.endpoint,
                client_id=own,
                listener=self._listen,
                subscriptions={TOPIC: "*"},
                start_from="FIRST",
            ).start()
            for own in IDS
        ]

    def _listen(self, messages: Sequence[evenq.ReceivedMessage]) -> None:
        with self._lock:
            self.seen.update(message.body for message in messages)

    def shares(self) -> list[list[tuple[str, int]]]:
        return [[(queue.broker_name[-1], queue.queue_id) for queue in member.queues] for member in self.members]

    @contextlib.contextmanager
    def stream(self) -> Iterator[Callable[[], int]]:
        """Publish without end; the call tells how many messages were taken so far."""
        sent, ended = [0], threading.Event()

        def work() -> None:
            with evenq.Producer(endpoint=self.cluster.endpoint) as producer:
                while not ended.wait(0.01):
                    for _ in range(10):
                        producer.send(evenq.Message(topic=TOPIC, body=b"%d" % sent[0]))
                        sent[0] += 1

        thread = threading.Thread(target=work, name="stream")
        thread.start()
        try:
            yield lambda: sent[0]
        finally:
            ended.set()
            thread.join()

    def publish(self, numbers: range) -> None:
        with evenq.Producer(endpoint=self.cluster.endpoint) as producer:
            for number in numbers:
                producer.send_async(evenq.Message(topic=TOPIC, body=b"%d" % number))
            producer.flush(30_000)


@pytest.mark.parametrize("rebalancer", [pytest.param(False, marks=pytest.mark.slow), True], ids=["alone", "rebalancer"])
@pytest.mark.slow
def test_a_strategy_given_later_reaches_all_members_and_nothing_comes_twice(*, rebalancer: bool) -> None:
    with LocalCluster(brokers=2, rebalancer=rebalancer) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(TOPIC, queues=3)
        desk = Desk(cluster)
        paged = [[("a", 0), ("a", 1)], [("a", 2), ("b", 0)], [("b", 1), ("b", 2)]]
        dealt = [[("a", 0), ("b", 0)], [("a", 1), ("b", 1)], [("a", 2), ("b", 2)]]
        try:
            until(lambda: desk.shares() == paged, what=f"AVG in each member, not {desk.shares()}")
            desk.publish(range(300))
            admin.create_group(GROUP, strategy="AVG_BY_CIRCLE")
            desk.publish(range(300, 600))
            until(lambda: desk.shares() == dealt, what="like cards, as the group has it now")
            admin.create_group(GROUP, strategy="AVG")
            desk.publish(range(600, 900))
            until(lambda: desk.shares() == paged, what="pages again")
            until(lambda: len(desk.seen) == 900, what="all 900 messages")
        finally:
            for member in desk.members:
                member.close()
        assert set(desk.seen.values()) == {1}


@pytest.mark.slow  # seven changes under load
def test_a_group_loses_its_strategy_and_gets_it_again_under_a_stream_and_nothing_is_lost_or_repeated() -> None:
    with (
        LocalCluster(brokers=2, rebalancer=True) as cluster,
        evenq.Admin(endpoint=cluster.endpoint) as admin,
        contextlib.ExitStack() as ends,
    ):
        admin.create_topic(TOPIC, queues=3)
        admin.create_group(GROUP, strategy="AVG_BY_CIRCLE")
        desk = Desk(cluster)
        for member in desk.members:
            ends.callback(member.close)
        paged = [[("a", 0), ("a", 1)], [("a", 2), ("b", 0)], [("b", 1), ("b", 2)]]
        dealt = [[("a", 0), ("b", 0)], [("a", 1), ("b", 1)], [("a", 2), ("b", 2)]]

        def decided() -> bool:
            result = admin.explain_group(GROUP)
            mine = [
                [(at.queue.broker_name[-1], at.queue.queue_id) for at in result.queues if at.owner == own]
                for own in IDS
            ]
            return result.strategy == "STICKY" and sum(map(len, mine)) == 6 and desk.shares() == mine

        def owners() -> set[str]:
            return {row.owner for row in admin.explain_group(GROUP).queues}

        with desk.stream() as sent:
            until(lambda: desk.shares() == dealt, what="like cards")
            admin.create_group(GROUP, strategy="STICKY")
            _read_on(desk, sent)
            assert desk.shares() == dealt, "STICKY moves nothing"
            for _ in range(2):
                admin.create_group(GROUP, strategy="none")
                until(lambda: desk.shares() == paged, what=f"AVG in each member, not {desk.shares()}")
                assert admin.describe_group(GROUP).summary.strategy == ""
                until(lambda: owners() == set(IDS), what="brokers name the owners by their locks")
                _read_on(desk, sent)
                admin.create_group(GROUP, strategy="STICKY")
                until(decided, what="the rebalancer decides, and members follow")
                _read_on(desk, sent)
                admin.create_group(GROUP, strategy="AVG_BY_CIRCLE")
                until(lambda: desk.shares() == dealt, what="its word counts again")
        until(lambda: len(desk.seen) == sent(), what=f"all {sent()} messages")
        assert set(desk.seen.values()) == {1}, "nothing twice"


def _read_on(desk: Desk, sent: Callable[[], int]) -> None:
    """Let the stream go on until what was sent by now, and some more, was read."""
    target = sent() + 50
    until(lambda: sent() >= target, what="the stream goes on")
    until(lambda: len(desk.seen) >= target, what="and is read")
