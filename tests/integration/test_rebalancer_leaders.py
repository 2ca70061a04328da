"""Two real rebalancers with a file lease: the leader is killed, paused or stopped, and no reader notices."""

from __future__ import annotations

import json

import pytest
from evenq_proofs.waiting import until

from evenq.testing import LocalCluster
from tests.integration.desk import Desk, leads

LEASE = {"LEASE_MS": "1500", "LEASE_RENEW_MS": "1000", "LEASE_RETRY_MS": "200", "WARM_UP_MS": "300", "DRAIN_MS": "0"}


def three_members(cluster: LocalCluster) -> Desk:
    desk = Desk(cluster)
    for number in range(3):
        desk.start(f"member {number}")
    return desk


@pytest.mark.slow
def test_a_killed_leader_is_followed_within_the_bound_owners_stay_and_generations_grow() -> None:
    """OC-18, XO-3: nothing moves that need not."""
    with LocalCluster(brokers=2, rebalancers=2, rebalancer_settings=LEASE) as cluster:
        until(lambda: sum(leads(node) for node in cluster.rebalancers) == 1, what="one leads")
        first, second = sorted(cluster.rebalancers, key=leads, reverse=True)
        desk = three_members(cluster)
        try:
            until(lambda: desk.sizes() == [4, 4, 4], what="12 queues among 3")
            desk.publish(range(300))
            owners, before = desk.owners(), desk.generation()
            assert before > (0, 0)
            first.kill()
            until(
                lambda: leads(second), what="the other leads"
            )  # how soon: unit/evenq_rebalancer/core/test_election.py
            until(lambda: desk.generation() > before, seconds=60, what="the new leader decided")
            assert desk.owners() == owners
            desk.publish(range(300, 600))
            until(lambda: len(desk.seen) == 600, what="all messages")
            assert max(desk.seen.values()) == 1, "nothing twice"

            desk.start("a newcomer")
            until(lambda: desk.sizes() == [3, 3, 3, 3], what="a newcomer gets its share from the new leader")
            moved = [queue for queue, owner in desk.owners().items() if owners[queue] != owner]
            assert len(moved) == 3, "the fewest moves"

            patient = {"EVENQ_REBALANCER_LEASE_MS": "240000", "EVENQ_REBALANCER_LEASE_RENEW_MS": "200000"}
            first.environment.update(patient)
            first.restart()
            owners, before = desk.owners(), desk.generation()
            second.stop()
            until(lambda: leads(first), what="who stops lets go of the lease: nobody waits four minutes for its end")
            until(lambda: desk.generation() > before, seconds=60, what="decided again")
            assert desk.owners() == owners
        finally:
            desk.close()


@pytest.mark.slow  # leases run out one after the other
def test_a_paused_leader_is_left_by_brokers_and_does_not_lead_when_it_wakes() -> None:
    with LocalCluster(brokers=1, rebalancers=2, rebalancer_settings=LEASE) as cluster:
        until(lambda: sum(leads(node) for node in cluster.rebalancers) == 1, what="one leads")
        first, second = sorted(cluster.rebalancers, key=leads, reverse=True)
        desk = three_members(cluster)
        try:
            until(lambda: desk.sizes() == [2, 2, 2], what="6 queues among 3")
            owners, before = desk.owners(), desk.generation()
            cluster.pause(first)
            until(lambda: leads(second), seconds=60, what="the other leads")
            until(lambda: desk.generation() > before, seconds=60, what="the broker found it")
            assert desk.owners() == owners
            first.resume()
            until(lambda: not leads(first), seconds=60, what="it noticed")
            assert leads(second)
            events = [json.loads(line)["event"] for line in first.log_text().splitlines() if line.startswith("{")]
            assert sum(event.startswith("rebalancer is no longer the leader") for event in events) == 1
        finally:
            desk.close()
