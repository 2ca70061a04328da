"""A rollout, member by member, in a group that holds the queues of who is being replaced: nothing moves between
places, nothing is delivered twice; also when the leading rebalancer is replaced meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster
from tests.integration.desk import TOPIC, Desk, leads

# A leader that stands still for longer than the renewal is overtaken, and who leaves while no copy leads is not held: a
# busy machine must not do that in the middle of a story.
LEASE = {"LEASE_MS": "5000", "LEASE_RENEW_MS": "4000", "LEASE_RETRY_MS": "200", "WARM_UP_MS": "300", "DRAIN_MS": "0"}


class Places(Desk):
    """Members by place; `web-0.2` is the second in place `web-0`."""

    def start(self, own: str, **fields: Any) -> None:
        options = evenq.PushOptions(instance=own.partition(".")[0], commit_interval_ms=200)
        super().start(own, client_id=own, options=options, **fields)

    def places(self) -> dict[str, str]:
        """Queue to the place of the member that reads it."""
        return {queue: own.partition(".")[0] for queue, own in self.owners().items()}

    def states(self) -> Counter[str]:
        return Counter(row.state for row in self.explained(TOPIC).queues)

    def held(self) -> tuple[int, list[str]]:
        """The epoch of the leader that tells of it, and the queues that wait; (0, []) while no broker tells."""
        try:
            result = self.explained(TOPIC)
        except evenq.Error:
            return 0, []
        held = [f"{row.queue.broker_name}/{row.queue.queue_id}" for row in result.queues if row.state == "HELD"]
        return result.generation.epoch, held


@pytest.mark.slow  # every member is replaced in turn
def test_a_rollout_one_by_one_moves_no_queue_between_places_and_repeats_nothing() -> None:
    with LocalCluster(brokers=2, rebalancers=1) as cluster:
        desk = Places(cluster, hold_ms=120_000)
        try:
            for number in range(3):
                desk.start(f"web-{number}.1")
            until(lambda: desk.sizes() == [4] * 3, what="12 queues among 3")
            before, total = desk.places(), 0
            for number in range(3):
                desk.publish(range(total, total + 200))
                total += 200
                desk.stop(f"web-{number}.1")
                until(lambda: desk.states() == {"OWNED": 8, "HELD": 4}, what="its queues are held")
                kept = {queue: place for queue, place in before.items() if place != f"web-{number}"}
                assert desk.places() == kept
                desk.start(f"web-{number}.2")
                until(lambda: desk.places() == before, what="the successor reads them, long before the hold ends")
            until(lambda: len(desk.seen) == total, what="all messages")
            assert max(desk.seen.values()) == 1, "nothing twice"
        finally:
            desk.close()


@pytest.mark.slow  # waits for the end of a hold
def test_a_hold_without_a_successor_ends_in_time() -> None:
    with LocalCluster(brokers=1, rebalancers=1) as cluster:
        desk = Places(cluster, hold_ms=6_000)
        try:
            for number in range(3):
                desk.start(f"web-{number}.1")
            until(lambda: desk.sizes() == [2] * 3, what="6 queues among 3")
            began = time.monotonic()
            desk.stop("web-1.1")
            until(lambda: desk.states() == {"OWNED": 4, "HELD": 2}, what="its queues are held")
            until(lambda: desk.states() == {"OWNED": 6}, what="given to the others")
            assert time.monotonic() - began > 5.9
            until(lambda: len(desk.places()) == 6, what="and read by them")
        finally:
            desk.close()


@pytest.mark.parametrize("came", ["before", pytest.param("after", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_hold_survives_the_killed_leader_and_its_successor_gets_exactly_the_held_queues(came: str) -> None:
    """XO-7, OC-18. The successor comes after the next leader began, or before."""
    with LocalCluster(brokers=2, rebalancers=2, rebalancer_settings=LEASE) as cluster:
        until(lambda: sum(leads(node) for node in cluster.rebalancers) == 1, what="one leads")
        first, second = sorted(cluster.rebalancers, key=leads, reverse=True)
        desk = Places(cluster, hold_ms=240_000)
        try:
            for number in range(3):
                desk.start(f"web-{number}.1")
            until(lambda: desk.sizes() == [4] * 3, what="12 queues among 3")
            before = desk.places()
            desk.publish(range(200))
            desk.stop("web-1.1")
            desk.stop("web-2.1")
            until(lambda: desk.states() == {"OWNED": 4, "HELD": 8}, what="their queues are held")
            kept, (epoch, held) = desk.places(), desk.held()
            until(lambda: '"held": 8' in first.log_text(), what="handed out to brokers, not only explained")
            desk.publish(range(200, 400))  # brokers have long heard of it when they have taken these
            first.kill()
            desk.publish(range(400, 600))
            if came == "before":
                desk.start("web-1.2")
            until(lambda: leads(second), what="the other leads")
            if came == "after":
                decided: list[str] = []

                def goes_on() -> bool:
                    now, decided[:] = desk.held()
                    return now > epoch

                until(goes_on, what="the new leader decided")
                assert decided == held
                assert desk.places() == kept
                desk.start("web-1.2")
            mine = {queue: place for queue, place in before.items() if place != "web-2"}
            until(lambda: desk.places() == mine, what="the successor reads its predecessor's, no others")
            assert desk.held()[0] > epoch
            assert desk.states() == {"OWNED": 8, "HELD": 4}, "the other place is still waited for"
            desk.start("web-2.2")
            until(lambda: desk.places() == before, what="the second successor reads the rest")
            until(lambda: len(desk.seen) == 600, what="all messages")
            assert max(desk.seen.values()) == 1, "nothing twice"
        finally:
            desk.close()
