"""One group of three copies on a real one-node Kubernetes: its leader's pod and volume are deleted, then all its pods are replaced,
while a producer sends. `test_kubernetes.py` says how the cluster and its pods come about.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from evenq_helm.kubernetes import CHART, Kubernetes, values, wait_until
from evenq_helm.stream import Stream, make_producer

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(2_400)]

SPACE = "copies"
WISH = ("broker.groups=1", "broker.replicas=3", "broker.spread=none", "rebalancer.enabled=false")
FAILOVER_S = 20.0
"""Longest pause of a sender while the leader is killed: `suspect_ms` is 6 s, and the machine may be busy."""
HAND_OVER_S = 10.0
"""Longest pause while a pod is replaced, on a machine however busy: 0.5 s on one with ten busy processes, 2.2 s while images are
built beside it."""


@pytest.fixture(scope="module")
def copies(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    kubernetes.run("kubectl", "create", "namespace", SPACE)
    try:
        wish = ("--wait", "--timeout", "3m", *values(*WISH))
        kubernetes.run("helm", "-n", SPACE, "install", "evenq", str(CHART), *wish, timeout=240)
        make_producer(kubernetes, SPACE)
        yield kubernetes
    finally:
        kubernetes.run("helm", "-n", SPACE, "uninstall", "evenq", check=False)
        kubernetes.run("kubectl", "-n", SPACE, "delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        kubernetes.run("kubectl", "delete", "namespace", SPACE, "--timeout=60s", check=False)


def record(kubernetes: Kubernetes) -> dict[str, Any]:
    """The group record, as its Lease has it."""
    lease = json.loads(kubernetes.run("kubectl", "-n", SPACE, "get", "lease", "evenq-broker-0", "-o", "json"))
    return dict(json.loads(lease["metadata"]["annotations"]["evenq.io/group-record"]))


def ready(kubernetes: Kubernetes) -> dict[str, str]:
    """Copies that are ready: pod -> its identity."""
    pods = kubernetes.listed("pods", SPACE, "-l", "app.kubernetes.io/component=broker")
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    }


def claim(kubernetes: Kubernetes, pod: str) -> str:
    """Identity of the pod's volume claim; empty while there is none."""
    claims = kubernetes.listed("pvc", SPACE)
    return next((one["metadata"]["uid"] for one in claims if one["metadata"]["name"] == f"data-{pod}"), "")


def stream(kubernetes: Kubernetes, topic: str) -> Stream:
    kubernetes.run("kubectl", "-n", SPACE, "exec", "evenq-broker-0-0", "--", "evenq", "topic", "create", topic)
    made = Stream(kubernetes, SPACE, topic)
    made.start()
    made.wait_for(100)
    return made


def test_a_group_of_three_copies_is_ready_passes_its_test_and_stays_as_it_was_founded(copies: Kubernetes) -> None:
    assert len(ready(copies)) == 3, "ready means in sync"
    assert len(record(copies)["isr"]) == 3
    assert "Succeeded" in copies.run("helm", "-n", SPACE, "test", "evenq", "--timeout", "3m", timeout=240)
    for change, words in (
        ("broker.replicas=2", "founded with 3"),
        ("broker.replicas=1", "founded with 3"),
        ("broker.replication.minInSync=1", "founded with 2"),
    ):
        refused = copies.tried("helm", "-n", SPACE, "upgrade", "evenq", str(CHART), *values(*WISH, change))
        assert refused.returncode != 0, change
        assert words in refused.stderr


def test_the_leaders_pod_and_its_volume_are_deleted_and_everything_acknowledged_is_there(copies: Kubernetes) -> None:
    sender = stream(copies, "wiped")
    before = record(copies)
    leader = f"evenq-broker-0-{before['leader']}"
    volume = claim(copies, leader)
    copies.run("kubectl", "-n", SPACE, "delete", "pvc", f"data-{leader}", "--wait=false")
    copies.tool("crash", leader, "-n", SPACE)  # a deletion alone, even by force, leaves it two seconds to hand over
    copies.run("kubectl", "-n", SPACE, "delete", "pod", leader, "--force", "--grace-period=0", "--wait=false")
    wait_until(lambda: record(copies)["leader"] not in {before["leader"], -1}, 60, "another copy leads")
    sender.wait_for(200)
    wait_until(lambda: claim(copies, leader) not in {"", volume}, 60, "it has another volume")
    wait_until(lambda: len(ready(copies)) == 3 and len(record(copies)["isr"]) == 3, 120, "the new copy is in sync")
    sender.wait_for(100)
    outcome = sender.end()
    print(f"\nleader's pod and volume deleted: {outcome}")
    assert (outcome.lost, outcome.repeated) == (0, 0)
    assert outcome.gaps_s[0] < FAILOVER_S


def test_a_rolling_upgrade_hands_over_and_repeats_nothing(copies: Kubernetes) -> None:
    sender = stream(copies, "rolled")
    before = ready(copies)
    verify = ("evenq", "verify", "--seconds", "30", "--kinds", "normal,fifo", "--rate", "20", "--json")
    endpoint = ("--endpoint", f"evenq.{SPACE}.svc.cluster.local:8081")
    verifier = copies.start("kubectl", "-n", SPACE, "exec", "producer", "--", *verify, *endpoint)
    wish = ("--wait", "--timeout", "5m", *values(*WISH, "podAnnotations.round=second"))
    copies.run("helm", "-n", SPACE, "upgrade", "evenq", str(CHART), *wish, timeout=330)
    wait_until(lambda: len(ready(copies)) == 3, 60, "all copies are in sync")
    assert not set(before.values()) & set(ready(copies).values()), "every copy is another pod"
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
