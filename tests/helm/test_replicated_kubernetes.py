"""One group of three copies on a real one-node Kubernetes: its leader's pod and volume are deleted, then all its pods are replaced,
while a producer sends and clients outside come in through any copy. `test_kubernetes.py` says how the cluster and its pods come about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from evenq_helm.copies import Copies, installed_copies
from evenq_helm.kubernetes import NODE, Kubernetes, wait_until
from evenq_helm.outside import Outside

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(2_400)]

SPACE = "copies"
OUTSIDE = f"{NODE}:30071"
WISH = ("broker.groups=1", "broker.replicas=3", "broker.spread=none", "rebalancer.enabled=false")
WISH += ("external.enabled=true", f"external.host={NODE}", "external.ports={30071}")
FAILOVER_S = 20.0
"""Longest pause of a sender while the leader is killed: `suspect_ms` is 6 s, and the machine may be busy."""
HAND_OVER_S = 10.0
"""Longest pause while a pod is replaced, on a machine however busy: 0.5 s on one with ten busy processes, 2.2 s while images are
built beside it."""


@pytest.fixture(scope="module")
def copies(kubernetes: Kubernetes) -> Iterator[Copies]:
    with installed_copies(kubernetes, SPACE, *WISH) as copies:
        yield copies


@pytest.fixture(scope="module")
def outside(copies: Copies) -> Outside:
    keys = copies.kubernetes.secret("evenq-user-demo", SPACE)
    return Outside(copies.kubernetes, keys["access_key"], keys["secret_key"])


def test_a_group_of_three_copies_is_ready_passes_its_test_and_stays_as_it_was_founded(copies: Copies) -> None:
    assert len(copies.ready()) == 3, "ready means in sync"
    assert len(copies.record()["isr"]) == 3
    shown = copies.kubernetes.run("helm", "-n", SPACE, "test", "evenq", "--timeout", "3m", timeout=240)
    assert "Succeeded" in shown
    for change, words in (
        ("broker.replicas=2", "founded with 3"),
        ("broker.replicas=1", "founded with 3"),
        ("broker.replication.minInSync=1", "founded with 2"),
        ("broker.replication.fromOneCopy=true", "fromOneCopy"),
    ):
        assert words in copies.refused(*WISH, change)


def test_the_leaders_pod_and_its_volume_are_deleted_and_everything_acknowledged_is_there(
    copies: Copies, outside: Outside
) -> None:
    """Also for clients outside, who come in through any copy, before and after."""
    sender = copies.stream("wiped")
    outside.send_and_read("outside-before", OUTSIDE)
    assert outside.told("outside-before", OUTSIDE) == [OUTSIDE]
    before = copies.record()
    leader = f"evenq-broker-0-{before['leader']}"
    volume = copies.claim(leader)
    copies.lose(leader)
    wait_until(lambda: copies.record()["leader"] not in {before["leader"], -1}, 60, "another copy leads")
    outside.send_and_read("outside-after", OUTSIDE)
    sender.wait_for(200)
    wait_until(lambda: copies.claim(leader) not in {"", volume}, 60, "it has another volume")
    wait_until(lambda: len(copies.ready()) == 3 and len(copies.record()["isr"]) == 3, 120, "the new copy is in sync")
    sender.wait_for(100)
    outcome = sender.end()
    print(f"\nleader's pod and volume deleted: {outcome}")
    assert (outcome.lost, outcome.repeated) == (0, 0)
    assert outcome.gaps_s[0] < FAILOVER_S


def test_a_rolling_upgrade_hands_over_and_repeats_nothing(copies: Copies) -> None:
    sender = copies.stream("rolled")
    before = copies.ready()
    verify = ("evenq", "verify", "--seconds", "30", "--kinds", "normal,fifo", "--rate", "20", "--json")
    endpoint = ("--endpoint", f"evenq.{SPACE}.svc.cluster.local:8081")
    verifier = copies.kubernetes.start("kubectl", "-n", SPACE, "exec", "producer", "--", *verify, *endpoint)
    copies.helm("upgrade", *WISH, "podAnnotations.round=second")
    wait_until(lambda: len(copies.ready()) == 3, 60, "all copies are in sync")
    assert not set(before.values()) & set(copies.ready().values()), "every copy is another pod"
    sender.wait_for(100)
    outcome = sender.end()
    print(f"\nall copies replaced: {outcome}")
    assert (outcome.lost, outcome.repeated) == (0, 0)
    assert outcome.gaps_s[0] < HAND_OVER_S
    shown, _ = verifier.communicate(timeout=120)
    assert verifier.returncode == 0, shown
    kinds = {row["kind"]: row for row in json.loads(shown)["kinds"]}
    assert {row["lost"] for row in kinds.values()} == {0}
    assert min(row["received"] for row in kinds.values()) > 0
    print("consumers:", {kind: (row["received"], row["repeated"]) for kind, row in kinds.items()})
