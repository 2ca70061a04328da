"""The copies of the broker group `evenq-broker-0` of a release: who leads, who is ready, and how one is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evenq_helm.kubernetes import CHART, Kubernetes, values
from evenq_helm.stream import Stream, make_producer

METRICS = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:5557/metrics', timeout=10).read().decode())"


@dataclass(frozen=True, slots=True)
class Copies:
    """Of one release."""

    kubernetes: Kubernetes
    namespace: str

    def helm(self, action: str, *wish: str, jobs: bool = False) -> None:
        """`helm install` or `upgrade`, until all pods are ready; with `jobs` also until its Jobs have ended."""
        arguments = ("--wait", *(("--wait-for-jobs",) if jobs else ()), "--timeout", "5m", *values(*wish))
        self.kubernetes.run("helm", "-n", self.namespace, action, "evenq", str(CHART), *arguments, timeout=330)

    def refused(self, *wish: str) -> str:
        """What helm says to an upgrade that must be refused."""
        done = self.kubernetes.tried("helm", "-n", self.namespace, "upgrade", "evenq", str(CHART), *values(*wish))
        assert done.returncode != 0, wish
        return done.stderr

    def job_log(self, name: str) -> str:
        """What a Job's pod has printed."""
        return self.kubernetes.run("kubectl", "-n", self.namespace, "logs", f"job/{name}")

    def exec(self, pod: str, *command: str) -> str:
        """What a command in a pod prints."""
        return self.kubernetes.run("kubectl", "-n", self.namespace, "exec", pod, "--", *command)

    def record(self) -> dict[str, Any]:
        """The group record, as its Lease has it."""
        lease = self.kubernetes.run("kubectl", "-n", self.namespace, "get", "lease", "evenq-broker-0", "-o", "json")
        return dict(json.loads(json.loads(lease)["metadata"]["annotations"]["evenq.io/group-record"]))

    def ready(self) -> dict[str, str]:
        """Copies that are ready and stay: pod -> its identity. One that is told to go is ready for a moment more."""
        pods = self.kubernetes.listed("pods", self.namespace, "-l", "app.kubernetes.io/component=broker")
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
        }

    def claim(self, pod: str) -> str:
        """Identity of the pod's volume claim; empty while there is none."""
        claims = self.kubernetes.listed("pvc", self.namespace)
        return next((one["metadata"]["uid"] for one in claims if one["metadata"]["name"] == f"data-{pod}"), "")

    def serving(self) -> bool:
        """All three copies are ready, and in sync as the group record says."""
        return len(self.ready()) == 3 and len(self.record()["isr"]) == 3

    def leader(self) -> str:
        """The pod that leads, of a group that was installed with copies."""
        return f"evenq-broker-0-{self.record()['leader']}"

    def restarts(self) -> dict[str, int]:
        """Restarts of each broker's container."""
        pods = self.kubernetes.listed("pods", self.namespace, "-l", "app.kubernetes.io/component=broker")
        return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}

    def logs(self) -> list[dict[str, Any]]:
        """What the brokers' containers of now have logged; each line with its pod."""
        lines = []
        for pod in sorted(self.ready()):
            shown = self.kubernetes.run("kubectl", "-n", self.namespace, "logs", pod)
            lines += [{**json.loads(line), "pod": pod} for line in shown.splitlines() if line.startswith("{")]
        return lines

    def metric(self, pod: str, name: str) -> float:
        """The sum of all series of a pod's metric."""
        shown = self.exec(pod, "python", "-c", METRICS)
        rows = [line.rpartition(" ") for line in shown.splitlines() if line.startswith((name + "{", name + " "))]
        assert rows, f"{pod} has no {name}"
        return sum(float(value) for _, _, value in rows)

    def memory_mib(self, pod: str) -> int:
        """Resident memory of a pod's broker, MiB."""
        return int(self.exec(pod, "sh", "-c", "grep VmRSS /proc/1/status").split()[1]) >> 10

    def evict(self, pod: str) -> str:
        """What `kubectl drain` does to a pod; empty: it goes, else why not."""
        there = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        return self.kubernetes.created(f"{there}/eviction", body)

    def lose(self, pod: str) -> None:
        """Kill the pod's process with SIGKILL and delete the pod and its volume."""
        run, here = self.kubernetes.run, ("-n", self.namespace)
        run("kubectl", *here, "delete", "pvc", f"data-{pod}", "--wait=false")
        self.kubernetes.tool("crash", pod, *here)  # a deletion alone, even by force, leaves it two seconds to hand over
        run("kubectl", *here, "delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")

    def stream(self, topic: str, *, by: str = "evenq-broker-0-0") -> Stream:
        """A sender to a new topic, which is made by a command in the pod `by`."""
        self.exec(by, "evenq", "topic", "create", topic)
        made = Stream(self.kubernetes, self.namespace, topic)
        made.start()
        made.wait_for(100)
        return made


@contextmanager
def installed_copies(kubernetes: Kubernetes, namespace: str, *wish: str) -> Iterator[Copies]:
    """A release in a namespace of its own, with a producer's pod; removed at the end."""
    copies = Copies(kubernetes, namespace)
    kubernetes.run("kubectl", "create", "namespace", namespace)
    try:
        copies.helm("install", *wish)
        make_producer(kubernetes, namespace)
        yield copies
    finally:
        kubernetes.run("helm", "-n", namespace, "uninstall", "evenq", check=False)
        kubernetes.run(
            "kubectl", "-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0", check=False
        )
        kubernetes.run("kubectl", "delete", "namespace", namespace, "--timeout=60s", check=False)
