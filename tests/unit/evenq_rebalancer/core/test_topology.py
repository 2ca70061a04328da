"""From pods and nodes to zones and places."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_rebalancer.core.places import MemberPlace
from evenq_rebalancer.core.topology import ZONE_LABEL, Pod, Topology, node_of, pod_of
from hypothesis import given
from hypothesis import strategies as st


def api_pod(
    name: str = "web-5d9-abc", *, owner: tuple[str, str] | None = ("ReplicaSet", "web-5d9"), **more: Any
) -> Any:
    references = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    metadata = {"uid": f"u-{name}", "name": name, "namespace": "shop", "ownerReferences": references}
    metadata["labels"] = {"pod-template-hash": "5d9"}
    if more.get("leaving"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"nodeName": "n1", "hostNetwork": more.get("host_network", False)}
    status = {
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        "phase": more.get("phase", "Running"),
    }
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_pod_of_a_rollout_has_the_place_of_its_deployment_and_of_a_stateful_set_its_own_name() -> None:
    pod = pod_of(api_pod())
    assert pod == Pod(uid="u-web-5d9-abc", addresses=("10.0.0.1", "fd00::1"), node="n1", place="shop/ReplicaSet/web")
    stateful = pod_of(api_pod("db-0", owner=("StatefulSet", "db"), leaving=True))
    assert stateful is not None
    assert (stateful.place, stateful.leaving) == ("shop/StatefulSet/db-0", True)


@pytest.mark.parametrize(
    ("result", "place"),
    [(api_pod(owner=None), ""), (api_pod(host_network=True), ""), (api_pod(owner=("Job", "x")), "shop/Job/x")],
)
def test_who_has_no_controller_or_no_address_of_its_own_has_no_place_to_refill(result, place) -> None:
    pod = pod_of(result)
    assert pod is not None
    assert pod.place == place


@pytest.mark.parametrize("result", [{}, {"metadata": 5}, {"metadata": {"uid": ["x"]}}, api_pod(phase="Failed")])
def test_what_is_no_living_pod_is_none(result) -> None:
    assert pod_of(result) is None


def test_zones_follow_the_node_of_the_pod_and_each_event_names_the_addresses_that_may_differ() -> None:
    topology = Topology()
    assert node_of({"metadata": {"name": "n1", "labels": {ZONE_LABEL: "b"}}}) == ("n1", "b")
    assert topology.pods_listed([Pod(uid="1", addresses=("x",), node="n1", place="p")], 0) == {"x"}
    assert topology.zone_of("x") == ""
    assert topology.node_seen("n1", "b") == {"x"}
    assert topology.node_seen("n1", "b") == frozenset()
    assert topology.zone_of("x") == "b"
    assert topology.zone_of("y") == ""
    assert topology.place_of("x") == MemberPlace("p", leaving=False)
    assert topology.nodes_listed({"n2": "a"}) == {"x"}
    assert topology.zone_of("x") == ""
    topology.check()


def test_a_pod_that_is_gone_is_remembered_for_a_while_as_leaving_unless_another_gets_its_address() -> None:
    topology = Topology(gone_ms=1_000)
    topology.node_seen("n1", "b")
    topology.pod_seen(Pod(uid="1", addresses=("x",), node="n1", place="p"), 0)
    assert topology.pod_gone("1", 100) == {"x"}
    assert topology.place_of("x") == MemberPlace("p", leaving=True)
    assert topology.zone_of("x") == "b"
    topology.tick(1_099)
    assert topology.place_of("x") is not None
    topology.tick(1_100)
    assert topology.place_of("x") is None
    topology.pod_seen(Pod(uid="2", addresses=("x",), place="q"), 2_000)
    topology.pod_gone("2", 2_000)
    topology.pod_seen(Pod(uid="3", addresses=("x",), place="r"), 2_100)
    topology.tick(9_000)
    assert topology.place_of("x") == MemberPlace("r", leaving=False)
    topology.check()


def test_pods_and_nodes_are_bounded() -> None:
    topology = Topology(pods_max=2, nodes_max=1)
    for number in range(5):
        topology.pod_seen(Pod(uid=str(number), addresses=(f"a{number}",)), 0)
        topology.node_seen(f"n{number}", "z")
    assert len(topology) == 2
    assert topology.left_out == 7
    topology.check()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["told", "gone", "list", "tick"]), st.integers(0, 4), st.integers(0, 3), st.booleans()
        ),
        max_size=40,
    )
)
def test_whatever_is_told_the_invariants_hold(events) -> None:
    topology = Topology(pods_max=3, gone_ms=5)
    for now_ms, (what, uid, address, leaving) in enumerate(events):
        pod = Pod(uid=str(uid), addresses=(f"a{address}",), place="p", leaving=leaving)
        match what:
            case "told":
                topology.pod_seen(pod, now_ms)
            case "gone":
                topology.pod_gone(str(uid), now_ms)
            case "list":
                topology.pods_listed([pod], now_ms)
            case _:
                topology.tick(now_ms)
        topology.check()
