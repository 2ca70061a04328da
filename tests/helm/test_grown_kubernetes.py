"""A release of one copy gets three by `helm upgrade` on a real one-node Kubernetes, while the official Python SDK and ours send; then the
first copy, which brought the data, is lost with its volume.
"""

from __future__ import annotations

import json
import time

import pytest
from evenq_helm.copies import installed_copies
from evenq_helm.kubernetes import Kubernetes, wait_until
from evenq_helm.sdk_load import SENDERS, loaded

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes, pytest.mark.timeout(1_200)]

ONE = ("broker.groups=1", "broker.spread=none", "rebalancer.enabled=false", "nameserver.replicas=1")
THREE = (*ONE, "broker.replicas=3")
FIRST = "evenq-broker-0"
ATTEMPTS_S = 8.5
"""The official SDK's send has three attempts of 3 s, so it outlasts a restart that is shorter; each call begins a little later."""


def test_one_copy_grows_to_three_under_a_sender_and_the_first_one_may_be_lost(kubernetes: Kubernetes) -> None:
    with installed_copies(kubernetes, "grown", *ONE) as copies:
        sender = copies.stream("grown", by=FIRST)
        volume = copies.claim(FIRST)
        assert "--set broker.replication.fromOneCopy=true" in copies.refused(*THREE)
        grown = (*THREE, "broker.replication.fromOneCopy=true")
        assert f"exec {FIRST} -- cat /data/store/identity" in copies.refused(*grown)
        size = json.loads(copies.exec(FIRST, "cat", "/data/store/identity"))["segment_bytes"]
        grown += (f"broker.settings.EVENQ_BROKER_STORE__SEGMENT_BYTES={size}",)
        with loaded(kubernetes, "grown", "grows", by=FIRST) as load:
            copies.helm("upgrade", *grown, jobs=True)
            load.wait_for(50)
            figures = load.end()
        for sdk, found in figures.items():
            print(f"\none copy grew to three, {sdk} SDK: {found}")
            assert (found.lost, found.repeated) == (0, 0), sdk
            if sdk == "ours" or found.gaps_s[0] < ATTEMPTS_S:
                assert found.refused == 0, sdk
            else:  # on a machine that is too busy to restart a pod in that time
                assert found.refused <= SENDERS * (found.gaps_s[0] // ATTEMPTS_S), "each sender fails once in that time"
        assert sorted(copies.ready()) == [FIRST, f"{FIRST}-1", f"{FIRST}-2"]
        wait_until(lambda: copies.record()["min_isr"] == 2, 60, "two copies are needed")
        assert copies.claim(FIRST) == volume, "copy 0 is the broker from before, with its volume"
        assert "keep broker.replication.fromOneCopy=true" in copies.refused(*THREE)
        assert "created with 3" in copies.refused(*grown, "broker.replicas=2")
        assert "needs broker.replicas 2 or 3" in copies.refused(*grown, "broker.replicas=1")
        assert "keep broker.replication.fromOneCopy=true" in copies.refused(*ONE)
        back = kubernetes.tried("helm", "-n", "grown", "rollback", "evenq", "1", "--timeout", "3m", timeout=240)
        assert back.returncode != 0
        said = copies.job_log("evenq-rollback")
        assert "Refused: the brokers of this release have several copies by now" in said, said
        assert sorted(copies.ready()) == [FIRST, f"{FIRST}-1", f"{FIRST}-2"]
        sender.wait_for(100)

        copies.lose(FIRST)
        wait_until(lambda: copies.record()["leader"] in {1, 2}, 60, "another copy leads")
        sender.wait_for(200)
        wait_until(
            lambda: len(copies.ready()) == 3 and len(copies.record()["isr"]) == 3, 120, "copy 0 is in sync again"
        )
        assert copies.claim(FIRST) not in {"", volume}
        outcome = sender.end()
        print(f"\none copy grew to three, and copy 0 was lost with its volume: {outcome}")
        assert (outcome.lost, outcome.repeated, outcome.refused) == (0, 0, 0)

        # Helm takes no upgrade after a refused rollback, before the way out that the refusal names.
        assert "another operation" in copies.refused(*grown)
        way = "kubectl -n grown delete secret -l owner=helm,name=evenq,status=pending-rollback"
        assert way in said
        kubernetes.run(*way.split())

        # Larger volumes: refused with the commands, which leave the pods as they are. The claims cannot grow here.
        larger = (*grown, "broker.storage.size=2Gi")
        said, before = copies.refused(*larger), copies.ready()
        assert "the volumes of StatefulSet evenq-broker have 1Gi" in said
        assert "patch pvc CLAIM" in said
        assert "volumes cannot shrink" in copies.refused(*grown, "broker.storage.size=512Mi")
        assert "which cannot change" in copies.refused(*grown, "broker.storage.className=other")
        ours = "app.kubernetes.io/instance=evenq,app.kubernetes.io/component=broker"
        assert f"delete statefulset -l {ours} --cascade=orphan" in said
        kubernetes.run("kubectl", "-n", "grown", "delete", "statefulset", "-l", ours, "--cascade=orphan")
        copies.helm("upgrade", *larger)
        assert copies.ready() == before, "no pod was replaced"
        back = kubernetes.tried("helm", "-n", "grown", "rollback", "evenq", "1", "--timeout", "3m", timeout=240)
        assert back.returncode != 0

        # The refused rollback is the newest revision, and it lacks all that copies have.
        kubernetes.run("helm", "-n", "grown", "uninstall", "evenq", "--wait", timeout=240)
        stays = {"secret/evenq-auth", "lease.coordination.k8s.io/evenq-broker-0"}
        stays |= {f"persistentvolumeclaim/data-{pod}" for pod in (FIRST, f"{FIRST}-1", f"{FIRST}-2")}
        deadline = time.monotonic() + 120
        while (left := kubernetes.left(namespace="grown")) != stays:
            assert time.monotonic() < deadline, f"left {left - stays}, gone {stays - left}"
