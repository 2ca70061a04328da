"""The demo's group and its producer, each in a pod that signs with the keys of the user `demo`."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenq.testing.checker import check
from evenq.testing.history import HistoryAction, Op, Recorder, merge_histories, read_history
from evenq_helm.kubernetes import REGISTRY, TAG, Kubernetes

ENDPOINT = "evenq.default.svc.cluster.local:8081"
MEMBERS = ("ada", "bea", "cem")


def make_pods(kubernetes: Kubernetes) -> None:
    """One for the producer and one for each member; they stay for all tests of a release."""
    kubernetes.apply(*(pod(name) for name in ("producer", *MEMBERS)))
    ready = ("kubectl", "wait", "--for=condition=Ready", "pod", "producer", *MEMBERS, "--timeout=120s")
    kubernetes.run(*ready, timeout=150)


def pod(name: str) -> dict[str, Any]:
    """A pod that does nothing, to run the demo's parts in; as unprivileged as the services."""
    keys = {"EVENQ_ACCESS_KEY": "access_key", "EVENQ_SECRET_KEY": "secret_key"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
            "containers": [
                {
                    "name": "demo",
                    "image": f"{REGISTRY}/demo:{TAG}",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "env": [
                        {"name": name, "valueFrom": {"secretKeyRef": {"name": "evenq-user-demo", "key": key}}}
                        for name, key in keys.items()
                    ],
                }
            ],
        },
    }


class Desk:
    """One story's members and producer."""

    def __init__(self, kubernetes: Kubernetes, *, topic: str, group: str, strategy: str, queues: int) -> None:
        """Makes topic and group. `queues` on each of two brokers."""
        self.topic, self.group, self._queues = topic, group, 2 * queues
        kubernetes.run(*kubernetes.evenq("topic", "create", topic, "--queues", str(queues)))
        kubernetes.run(*kubernetes.evenq("group", "create", group, "--strategy", strategy))
        self._kubernetes = kubernetes
        self._demo = ("python", "-m", "flight_demo")
        self._target = ("--endpoint", ENDPOINT, "--topic", topic)
        self._members: dict[str, subprocess.Popen[str]] = {}
        self._followers: list[threading.Thread] = []
        self._counts: dict[str, int] = {}

    @property
    def consumed(self) -> int:
        return sum(self._counts.values())

    def consume(self, name: str) -> None:
        folder = f"/tmp/{self.topic}"
        command = (*self._demo, "consume", *self._target, "--group", self.group, "--member", name, "--folder", folder)
        keep_pid = ("sh", "-c", f'echo $$ > /tmp/{self.topic}.pid; exec "$@"', "sh")
        member = self._members[name] = self._kubernetes.start("kubectl", "exec", name, "--", *keep_pid, *command)
        self._counts[name] = 0
        follower = threading.Thread(target=follow, args=(name, member, self._counts), daemon=True)
        self._followers.append(follower)
        follower.start()

    def publish(self, flights: int, *, rate: int = 0) -> subprocess.Popen[str]:
        history = ("--history", f"/tmp/{self.topic}.history.jsonl", "--flights", str(flights), "--rate", str(rate))
        return self._kubernetes.start(
            "kubectl", "exec", "producer", "--", *self._demo, "publish", *self._target, *history
        )

    def lag(self) -> int:
        """Messages that the group has not read; -1 while not all queues can be looked at."""
        shown = self._kubernetes.run(*self._kubernetes.evenq("group", "show", self.group, "--json"), check=False)
        output = json.loads(shown) if shown.strip() else {"queues": ()}
        ours = [queue for queue in output["queues"] if queue["topic"] == self.topic]
        lag = output.get("lag")  # none while a broker cannot be asked
        return int(lag) if lag is not None and len(ours) == self._queues else -1

    def close(self, recorder: Recorder, folder: Path) -> int:
        """End the members, fetch all histories and have them judged; how many messages came more than once."""
        for name, member in self._members.items():
            self._kubernetes.run("kubectl", "exec", name, "--", "sh", "-c", f"kill -TERM $(cat /tmp/{self.topic}.pid)")
            assert member.wait(60) == 0
        for follower in self._followers:
            follower.join(60)
        histories = [self._fetch("producer", f"/tmp/{self.topic}.history.jsonl", folder)]
        histories += [self._fetch(name, f"/tmp/{self.topic}/{name}.history.jsonl", folder) for name in self._members]
        with recorder:
            recorder.ok(
                recorder.invoke(
                    Op.ADMIN, process="test", group=self.group, topic=self.topic, action=HistoryAction.DRAIN
                )
            )
        report = check(merge_histories([read_history(path) for path in (*histories, recorder.path)]))
        assert report.ok, [a.text for a in report.anomalies]
        return int(report.repeats)

    def _fetch(self, name: str, path: str, folder: Path) -> Path:
        copy = folder / f"{name}.history.jsonl"
        copy.write_text(self._kubernetes.run("kubectl", "exec", name, "--", "cat", path))
        return copy


def follow(name: str, member: subprocess.Popen[str], counts: dict[str, int]) -> None:
    assert member.stdout is not None
    with member.stdout as output:
        for line in output:
            if line.startswith("{"):
                counts[name] = json.loads(line).get("count", counts[name])


EXPLAIN = """
import asyncio, json, os
from evenq.runtime.clock import SystemClock
from evenq.wire.credentials import Credentials
from evenq.wire.net import GrpcNet
from evenq.wire.signed_net import SignedNet, Signer
from evenq.wire.stubs.evenq.v1 import assignment_pb2 as pb

async def ask():
    net = SignedNet(GrpcNet(), Signer.of(Credentials.of_environment(os.environ), SystemClock()))
    request = pb.ExplainRequest(group="GROUP", topic="TOPIC").SerializeToString()
    answer = await net.unary("127.0.0.1:8081", "/evenq.v1.Assignment/Explain", request, timeout_ms=3000)
    rows = pb.ExplainResponse.FromString(answer).queues
    print(json.dumps([{
        "queue": f"{row.queue.broker_name}:{row.queue.queue_id:03}", "owner": row.owner, "owner_zone": row.owner_zone,
        "broker_zone": row.broker_zone, "generation": [row.generation.epoch, row.generation.counter],
    } for row in rows]))

asyncio.run(ask())
"""


def explain(kubernetes: Kubernetes, desk: Desk) -> list[dict[str, Any]]:
    """Who owns each queue, by queue; empty while it is not known."""
    script = EXPLAIN.replace("GROUP", desk.group).replace("TOPIC", desk.topic)
    shown = kubernetes.run("kubectl", "exec", "evenq-broker-0", "--", "python", "-c", script, check=False)
    rows: list[dict[str, Any]] = json.loads(shown) if shown.strip() else []
    return sorted(rows, key=lambda row: str(row["queue"]))


def sizes(rows: Sequence[dict[str, Any]]) -> list[int]:
    """How many queues each owner has, fewest first."""
    owners = [row["owner"] for row in rows if row["owner"]]
    return sorted(owners.count(owner) for owner in set(owners))
