"""One group of three copies on a real one-node Kubernetes, under the official Python SDK and ours at once: its leader's pod and volume are
deleted, all its pods are replaced, pods are evicted, the API server is away, the release is removed and installed again over its volumes.
`test_kubernetes.py` says how the cluster and its pods come about.

Short form: some seconds of each. `make kubernetes-replicated` is the long one: 500 messages/s of each SDK, several lost leaders, a minute
without API server, and ten quiet minutes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest
from evenq_helm.copies import Copies, installed_copies
from evenq_helm.kubernetes import NODE, Kubernetes, wait_until
from evenq_helm.outside import Outside
from evenq_helm.sdk_load import Figures, loaded

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(2_400)]

SPACE = "copies"
OUTSIDE = f"{NODE}:30071"
WISH = ("broker.groups=1", "broker.replicas=3", "broker.spread=none", "rebalancer.enabled=false")
WISH += ("external.enabled=true", f"external.host={NODE}", "external.ports={30071}")
LOSSES = int(os.environ.get("EVENQ_TEST_LOSSES", "1"))
"""How many leaders are lost with their volumes, one after the other."""
API_AWAY_S = float(os.environ.get("EVENQ_TEST_API_AWAY_SECONDS", "12"))
SUSPECT_S = 6
"""Setting `suspect_ms`: how long a leader has to renew its record when the API server is back (decision 84)."""
QUIET_S = float(os.environ.get("EVENQ_TEST_QUIET_SECONDS", "5"))
FAILOVER_S = float(os.environ.get("EVENQ_TEST_FAILOVER_SECONDS", "30"))
"""Longest pause of either SDK while the leader is lost, on a machine however busy; on a calm one about 4 s: `suspect_ms` is 6 s at most."""
HAND_OVER_S = float(os.environ.get("EVENQ_TEST_HAND_OVER_SECONDS", "10"))
"""Longest pause while a pod is replaced, likewise."""
ALL_AWAY_S = float(os.environ.get("EVENQ_TEST_ALL_AWAY_SECONDS", "30"))
"""Longest pause of senders while all pods are replaced at once, likewise: most of it is the start of two pods."""
READS_S = 2
"""How much longer consumers may pause than senders: until they have received from the new leader."""


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
        ("broker.replicas=2", "created with 3"),
        ("broker.replicas=1", "created with 3"),
        ("broker.replication.minInSync=1", "created with 2"),
        ("broker.replication.fromOneCopy=true", "fromOneCopy"),
    ):
        assert words in copies.refused(*WISH, change)


def judge(what: str, figures: dict[str, Figures], gap_s: float) -> None:
    """Nothing was lost, nothing that was acknowledged came again, no pause of senders was longer than `gap_s`, and none of
    consumers much longer.
    """
    for sdk, found in figures.items():
        print(f"\n{what}, {sdk} SDK: {found}")
    for sdk, found in figures.items():
        assert (found.lost, found.repeated) == (0, 0), sdk
        assert found.gaps_s[0] < gap_s, sdk
        assert found.reading_gaps_s[0] < gap_s + READS_S, sdk


def test_the_leaders_pod_and_its_volume_are_deleted_and_everything_acknowledged_is_there(
    copies: Copies, outside: Outside
) -> None:
    """HA-6: nothing is lost or repeated, and both SDKs go on by themselves. Also for clients outside, who come in through any
    copy, before and after.
    """
    outside.send_and_read("outside-before", OUTSIDE)
    assert outside.told("outside-before", OUTSIDE) == [OUTSIDE]
    with loaded(copies.kubernetes, SPACE, "wiped") as load:
        for _ in range(LOSSES):
            before, leader = copies.record(), copies.leader()
            volume = copies.claim(leader)
            copies.lose(leader)
            wait_until(
                lambda was=before: copies.record()["leader"] not in {was["leader"], -1}, 60, "another copy leads"
            )  # type: ignore[misc]
            load.wait_for(50)
            wait_until(lambda pod=leader, was=volume: copies.claim(pod) not in {"", was}, 60, "it has another volume")  # type: ignore[misc]
            wait_until(copies.serving, 120, "the new copy is in sync")
            load.wait_for(50)
        figures = load.end()
    judge("leader's pod and volume deleted", figures, FAILOVER_S)
    outside.send_and_read("outside-after", OUTSIDE)


def test_all_pods_are_deleted_at_once_and_clients_wait_at_the_first_one_that_is_back(copies: Copies) -> None:
    with loaded(copies.kubernetes, SPACE, "away") as load:
        before = copies.ready()
        ours = ("-l", "app.kubernetes.io/component=broker")
        copies.kubernetes.run("kubectl", "-n", SPACE, "delete", "pods", *ours, "--wait=false")
        wait_until(lambda: not set(before.values()) & set(copies.ready().values()), 60, "every copy is another pod")
        wait_until(copies.serving, 120, "all copies are in sync")
        load.wait_for(50)
        figures = load.end()
    judge("all pods deleted at once", figures, ALL_AWAY_S)


@pytest.mark.slow
def test_a_rolling_upgrade_hands_over_and_repeats_nothing(copies: Copies) -> None:
    before = copies.ready()
    verify = ("evenq", "verify", "--seconds", "30", "--kinds", "normal,fifo", "--rate", "20", "--json")
    endpoint = ("--endpoint", f"evenq.{SPACE}.svc.cluster.local:8081")
    with loaded(copies.kubernetes, SPACE, "rolled") as load:
        verifier = copies.kubernetes.start("kubectl", "-n", SPACE, "exec", "producer", "--", *verify, *endpoint)
        copies.helm("upgrade", *WISH, "podAnnotations.round=second")
        wait_until(copies.serving, 60, "all copies are in sync")
        assert not set(before.values()) & set(copies.ready().values()), "every copy is another pod"
        load.wait_for(100)
        figures = load.end()
    judge("all copies replaced", figures, HAND_OVER_S)
    shown, _ = verifier.communicate(timeout=120)
    assert verifier.returncode == 0, shown
    kinds = {row["kind"]: row for row in json.loads(shown)["kinds"]}
    assert {row["lost"] for row in kinds.values()} == {0}
    assert min(row["received"] for row in kinds.values()) > 0
    print("consumers:", {kind: (row["received"], row["repeated"]) for kind, row in kinds.items()})


@pytest.mark.slow
def test_a_drain_takes_the_next_copy_only_when_the_one_before_is_in_sync_again(copies: Copies) -> None:
    first = copies.leader()
    second = next(pod for pod in sorted(copies.ready()) if pod != first)
    number = first.rpartition("-")[2]
    assert copies.evict(first) == ""
    assert "disruption budget" in copies.evict(second), "two copies would be away"
    wait_until(lambda: not copies.evict(second), 120, "the first one is back, so the second may go")
    assert number in copies.record()["isr"], "it was let go before the first one was in sync"
    wait_until(copies.serving, 120, "both are back")


@pytest.mark.usefixtures("alone")
@pytest.mark.slow
def test_the_leader_goes_on_while_the_api_server_is_away_and_is_followed_once_it_is_back(copies: Copies) -> None:
    kubernetes, before, leader = copies.kubernetes, copies.record(), copies.leader()
    reachable = "evenq_broker_replica_record_reachable"
    assert copies.metric(leader, reachable) == 1
    with loaded(kubernetes, SPACE, "api") as load:
        with kubernetes.without_api_server():
            end = time.monotonic() + API_AWAY_S
            while time.monotonic() < end:
                load.wait_for(20)
        pods = sorted(copies.ready())
        wait_until(lambda: all(copies.metric(pod, reachable) == 1 for pod in pods), 60, "it is reached again")
        end = time.monotonic() + SUSPECT_S
        while time.monotonic() < end:
            load.wait_for(20)
        after = copies.record()
        assert (after["epoch"], after["leader"]) == (before["epoch"], before["leader"]), "nobody was elected"
        for pod in copies.ready():
            mine = [line["event"] for line in copies.logs() if line["pod"] == pod]
            said = [text for text in mine if "group record" in text]
            print(f"{pod}: {said}")
            begun = sum("no other copy can be elected meanwhile" in text for text in said)
            assert begun == sum("is reached again" in text for text in said) >= 1, said
            assert len(said) == 2 * begun, "one line at its begin, and one at its end"
        kubernetes.tool("crash", leader, "-n", SPACE)
        # Another copy, or the same one: its container may be back before the others have waited for its sign of life.
        wait_until(lambda: copies.record()["epoch"] > before["epoch"], 60, "a copy leads anew")
        wait_until(copies.serving, 120, "all copies are in sync")
        load.wait_for(50)
        figures = load.end()
    judge(f"API server away for {API_AWAY_S:.0f} s, then the leader killed", figures, FAILOVER_S)


@pytest.mark.slow
def test_a_group_that_nothing_happens_to_stays_as_it_is(copies: Copies) -> None:
    """For ten minutes by `make kubernetes-replicated`."""
    epoch, restarts, logged = copies.record()["epoch"], copies.restarts(), len(copies.logs())
    memory: list[dict[str, int]] = []
    with loaded(copies.kubernetes, SPACE, "quiet") as load:
        end = time.monotonic() + QUIET_S
        while time.monotonic() < end:
            load.wait_for(50)
            memory.append({pod: copies.memory_mib(pod) for pod in sorted(copies.ready())})
        figures = load.end()
    assert copies.restarts() == restarts
    assert copies.record()["epoch"] == epoch, "the leader changed"
    lines = [line["event"] for line in copies.logs()[logged:]]
    print(
        f"\n{QUIET_S:.0f} s: {len(lines)} lines logged, resident MiB at the begin {memory[0]}, at the end {memory[-1]}"
    )
    judge("nothing happened", figures, HAND_OVER_S)


@pytest.mark.slow
def test_a_release_that_was_removed_comes_back_with_its_volumes_and_its_record(copies: Copies) -> None:
    before = copies.record()
    made = ("evenq", "topic", "create", "kept")
    copies.exec("evenq-broker-0-0", *made)
    copies.exec("evenq-broker-0-0", "evenq", "produce", "kept", "--body", "number {n}", "--count", "200")
    copies.kubernetes.run("helm", "-n", SPACE, "uninstall", "evenq", "--wait", timeout=120)
    assert copies.record()["version"] >= before["version"], "the record stays with the volumes"
    copies.helm("install", *WISH)
    wait_until(copies.serving, 120, "all copies are in sync")
    assert copies.record()["epoch"] > before["epoch"]
    read = ("consume", "kept", "--group", "desk", "--from", "first", "--max", "200", "--idle", "20", "--json")
    lines = copies.exec("evenq-broker-0-0", "evenq", *read).splitlines()
    bodies = [json.loads(line)["body"] for line in lines if line.startswith("{")]
    assert sorted(bodies) == sorted(f"number {n}" for n in range(1, 201))
