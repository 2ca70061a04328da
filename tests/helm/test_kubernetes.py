"""The chart on a real one-node Kubernetes: installed, used from inside, a broker pod deleted while the demo's group reads,
the leading rebalancer's pod deleted while the group grows.

Producer and members run in pods from the `demo` image; their histories are fetched and judged by the checker. Short form:
EVENQ_TEST_FLIGHTS=20000 (default); the full year: EVENQ_TEST_FLIGHTS=336776.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evenq.runtime.clock import SystemClock
from evenq.testing.checker import check
from evenq.testing.history import Action, Op, Recorder, merge_histories, read_history

FLIGHTS = int(os.environ.get("EVENQ_TEST_FLIGHTS", "20000"))
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "evenq"
IMAGES = ("nameserver", "broker", "rebalancer", "demo")
BASE = (
    "--build-arg",
    "PYTHON_IMAGE=python:3.11-slim",
)  # the test cluster makes its own base image and asks no registry
REGISTRY, TAG = "localhost/evenq", "test"
TOPIC, GROUP = "flights", "delay-desk"
MEMBERS = ("ada", "bea", "cem")
pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(2_400)]


class Kubernetes:
    """The test cluster's own kubectl and helm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = f'eval "$({folder}/env)"; printf "%s\\n%s" "$KUBECONFIG" "$PATH"'
        shown = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, timeout=30).stdout
        config, path = shown.split("\n")
        self.environment = {**os.environ, "KUBECONFIG": config, "PATH": path}

    def tool(self, name: str, *arguments: str, timeout: float = 1_500) -> str:
        done = subprocess.run(
            [self.folder / name, *arguments], capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        return done.stdout

    def run(self, *command: str, timeout: float = 120, check: bool = True) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=self.environment, check=False, cwd=ROOT
        )
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stdout[-3_000:]}{done.stderr[-3_000:]}"
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Only stdout is read: a log line of stderr in the middle of a JSON line would spoil it."""
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )


@pytest.fixture(scope="module")
def kubernetes(cluster_tools: Path) -> Iterator[Kubernetes]:
    folder = cluster_tools
    subprocess.run([folder / "up"], check=True, timeout=1_800, stdout=subprocess.DEVNULL)
    try:
        kubernetes = Kubernetes(folder)
        for image in IMAGES:
            name = f"{REGISTRY}/{image}:{TAG}"
            kubernetes.tool("build-image", name, ".", "-f", "docker/Dockerfile", "--target", image, *BASE)
            kubernetes.tool("load-image", name)
        yield kubernetes
    finally:
        subprocess.run([folder / "down"], check=False, timeout=120, stdout=subprocess.DEVNULL)


@pytest.fixture
def release(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    with installed(kubernetes):
        yield kubernetes


@pytest.fixture
def release_of_two(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """Two rebalancers, on a node in the zone `north`."""
    kubernetes.run("kubectl", "label", "node", "--all", "--overwrite", "topology.kubernetes.io/zone=north")
    with installed(kubernetes, "rebalancer.replicas=2"):
        yield kubernetes


@contextmanager
def installed(kubernetes: Kubernetes, *more: str) -> Iterator[None]:
    values = [f"image.registry={REGISTRY}", f"image.tag={TAG}", "broker.storage.size=1Gi", *more]
    values += [
        "broker.settings.EVENQ_BROKER_STORE__DISK_USED_MAX_RATIO=0.99"
    ]  # the test machine's disk is not ours to judge
    settings = [part for value in values for part in ("--set-string" if "settings" in value else "--set", value)]
    kubernetes.run("helm", "install", "evenq", str(CHART), "--wait", "--timeout", "3m", *settings, timeout=240)
    try:
        yield
    finally:
        kubernetes.run("helm", "uninstall", "evenq", "--wait", check=False)
        kubernetes.run(
            "kubectl", "delete", "pods", *(("producer", *MEMBERS)), "--force", "--ignore-not-found", check=False
        )
        kubernetes.run("kubectl", "delete", "pvc", "--all", check=False)


def pod(name: str) -> str:
    """A pod that does nothing, to run the demo's parts in; as unprivileged as the services."""
    return json.dumps(
        {
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
                    }
                ],
            },
        }
    )


def test_a_broker_pod_is_deleted_in_the_middle_and_nothing_is_lost(release: Kubernetes, tmp_path: Path) -> None:
    endpoint = "evenq.default.svc.cluster.local:8081"
    inside = ("kubectl", "exec", "evenq-broker-0", "--", "evenq")
    release.run(*inside, "topic", "create", TOPIC, "--queues", "4", "--endpoint", endpoint)
    release.run(*inside, "group", "create", GROUP, "--strategy", "AVG", "--endpoint", endpoint)
    shown: Any = json.loads(release.run(*inside, "cluster", "show", "--json", "--endpoint", endpoint))
    assert "evenq-broker-1" in json.dumps(shown)

    for name in ("producer", *MEMBERS):
        (tmp_path / f"{name}.json").write_text(pod(name))
        release.run("kubectl", "apply", "-f", str(tmp_path / f"{name}.json"))
    release.run("kubectl", "wait", "--for=condition=Ready", "pod", "producer", *MEMBERS, "--timeout=120s", timeout=150)
    desk = Desk(release, endpoint)
    for name in MEMBERS:
        desk.consume(name)
    producer = desk.publish(FLIGHTS)

    wait_until(lambda: desk.consumed > FLIGHTS // 4, 120, "a quarter is consumed")
    recorder = Recorder(
        tmp_path / "test.history.jsonl", clock=SystemClock()
    )  # pods share this kernel's monotonic clock
    recorder.fault("pod deleted", target="evenq-broker-1")
    release.run("kubectl", "delete", "pod", "evenq-broker-1", "--wait=false")
    output, _ = producer.communicate(timeout=600)
    assert f"acknowledged {FLIGHTS}" in output, output
    wait_until(lambda: lag(release, inside, endpoint) == 0, 180, "the group has read everything")
    repeats = desk.close(recorder, tmp_path)
    print(f"\n{FLIGHTS:,} acknowledged, lost 0, repeated {repeats:,} around the deleted pod")


def test_the_leading_rebalancer_is_deleted_while_the_group_grows_and_only_the_newcomers_share_moves(
    release_of_two: Kubernetes, tmp_path: Path
) -> None:
    release = release_of_two
    endpoint = "evenq.default.svc.cluster.local:8081"
    inside = ("kubectl", "exec", "evenq-broker-0", "--", "evenq")
    release.run(*inside, "topic", "create", TOPIC, "--queues", "6", "--endpoint", endpoint)
    release.run(*inside, "group", "create", GROUP, "--strategy", "STICKY", "--endpoint", endpoint)
    for name in ("producer", *MEMBERS):
        (tmp_path / f"{name}.json").write_text(pod(name))
        release.run("kubectl", "apply", "-f", str(tmp_path / f"{name}.json"))
    release.run("kubectl", "wait", "--for=condition=Ready", "pod", "producer", *MEMBERS, "--timeout=120s", timeout=150)
    desk = Desk(release, endpoint)
    *first, last = MEMBERS
    for name in first:
        desk.consume(name)
    wait_until(lambda: sizes(explain(release)) == [6, 6], 60, "two members share 12 queues")
    before = explain(release)
    assert {(row["owner_zone"], row["broker_zone"]) for row in before} == {("north", "north")}

    producer = desk.publish(FLIGHTS)
    wait_until(lambda: desk.consumed > FLIGHTS // 10, 120, "it flows")
    recorder = Recorder(tmp_path / "test.history.jsonl", clock=SystemClock())
    leader = leading_pod(release)
    recorder.fault("leader deleted", target=leader)
    release.run("kubectl", "delete", "pod", leader, "--force", "--grace-period=0", "--wait=false")
    desk.consume(last)
    wait_until(lambda: leading_pod(release) not in {"", leader}, 30, "another rebalancer leads")
    wait_until(lambda: sizes(explain(release)) == [4, 4, 4], 60, "the newcomer has its share")
    after = explain(release)
    newcomer = ({row["owner"] for row in after} - {row["owner"] for row in before}).pop()
    moved = [row for row, old in zip(after, before, strict=True) if row["owner"] != old["owner"]]
    assert len(moved) == 4
    assert {row["owner"] for row in moved} == {newcomer}
    assert min(row["generation"] for row in moved) > max(row["generation"] for row in before)

    output, _ = producer.communicate(timeout=600)
    assert f"acknowledged {FLIGHTS}" in output, output
    wait_until(lambda: lag(release, inside, endpoint) == 0, 180, "the group has read everything")
    repeats = desk.close(recorder, tmp_path)
    assert repeats == 0, "nobody died but a rebalancer"
    print(f"\n{FLIGHTS:,} acknowledged, lost 0, repeated 0, {len(moved)} of 12 queues moved around the deleted leader")


class Desk:
    """The demo's group and its producer, each in a pod."""

    def __init__(self, release: Kubernetes, endpoint: str) -> None:
        self._release = release
        self._demo = ("python", "-m", "evenq.cli.demo")
        self._target = ("--endpoint", endpoint, "--topic", TOPIC)
        self._members: dict[str, subprocess.Popen[str]] = {}
        self._followers: list[threading.Thread] = []
        self._counts: dict[str, int] = {}

    @property
    def consumed(self) -> int:
        return sum(self._counts.values())

    def consume(self, name: str) -> None:
        command = (*self._demo, "consume", *self._target, "--group", GROUP, "--member", name, "--folder", "/tmp/out")
        keep_pid = ("sh", "-c", 'echo $$ > /tmp/pid; exec "$@"', "sh")
        member = self._members[name] = self._release.start("kubectl", "exec", name, "--", *keep_pid, *command)
        self._counts[name] = 0
        follower = threading.Thread(target=follow, args=(name, member, self._counts), daemon=True)
        self._followers.append(follower)
        follower.start()

    def publish(self, flights: int) -> subprocess.Popen[str]:
        history = ("--history", "/tmp/producer.history.jsonl", "--flights", str(flights))
        return self._release.start("kubectl", "exec", "producer", "--", *self._demo, "publish", *self._target, *history)

    def close(self, recorder: Recorder, folder: Path) -> int:
        """End the members, fetch all histories and have them judged; how many messages came more than once."""
        for name, member in self._members.items():
            self._release.run("kubectl", "exec", name, "--", "sh", "-c", "kill -TERM $(cat /tmp/pid)")
            assert member.wait(60) == 0
        for follower in self._followers:
            follower.join(10)
        histories = [fetch(self._release, "producer", "/tmp/producer.history.jsonl", folder)]
        histories += [fetch(self._release, name, f"/tmp/out/{name}.history.jsonl", folder) for name in self._members]
        with recorder:
            recorder.ok(recorder.invoke(Op.ADMIN, process="test", group=GROUP, topic=TOPIC, action=Action.DRAIN))
        report = check(merge_histories([read_history(path) for path in (*histories, recorder.path)]))
        assert report.ok, [a.text for a in report.anomalies]
        return int(report.repeats)


EXPLAIN = """
import asyncio, json
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.evenq.v1 import assignment_pb2 as pb

async def ask():
    request = pb.ExplainRequest(group="GROUP", topic="TOPIC").SerializeToString()
    answer = await GrpcNet().unary("127.0.0.1:8081", "/evenq.v1.Assignment/Explain", request, timeout_ms=3000)
    rows = pb.ExplainResponse.FromString(answer).queues
    print(json.dumps([{
        "queue": f"{row.queue.broker_name}:{row.queue.queue_id:03}", "owner": row.owner, "owner_zone": row.owner_zone,
        "broker_zone": row.broker_zone, "generation": [row.generation.epoch, row.generation.counter],
    } for row in rows]))

asyncio.run(ask())
"""


def explain(release: Kubernetes) -> list[dict[str, Any]]:
    """Who owns each queue, by queue; empty while nobody can tell."""
    script = EXPLAIN.replace("GROUP", GROUP).replace("TOPIC", TOPIC)
    shown = release.run("kubectl", "exec", "evenq-broker-0", "--", "python", "-c", script, check=False)
    rows: list[dict[str, Any]] = json.loads(shown) if shown.strip() else []
    return sorted(rows, key=lambda row: str(row["queue"]))


def sizes(rows: Sequence[dict[str, Any]]) -> list[int]:
    owners = [row["owner"] for row in rows if row["owner"]]
    return sorted(owners.count(owner) for owner in set(owners))


def leading_pod(release: Kubernetes) -> str:
    """Name of the rebalancer pod that has the lease; empty: none has."""
    path = "jsonpath={.spec.holderIdentity}"
    holder = release.run("kubectl", "get", "lease", "evenq-rebalancer", "-o", path, check=False)
    address = holder.partition(":")[0]
    rows = release.run(
        "kubectl", "get", "pods", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.podIP}\n{end}"
    )
    found = dict(row.split(" ", 1) for row in rows.splitlines())
    return next((name for name, ip in found.items() if ip == address and address), "")


def follow(name: str, member: subprocess.Popen[str], counts: dict[str, int]) -> None:
    assert member.stdout is not None
    with member.stdout as output:
        for line in output:
            if line.startswith("{"):
                counts[name] = json.loads(line).get("count", counts[name])


def lag(release: Kubernetes, inside: tuple[str, ...], endpoint: str) -> int:
    shown = release.run(*inside, "group", "show", GROUP, "--json", "--endpoint", endpoint, check=False)
    return int(json.loads(shown)["lag"]) if shown.strip() else -1


def fetch(release: Kubernetes, name: str, path: str, folder: Path) -> Path:
    copy = folder / f"{name}.history.jsonl"
    copy.write_text(release.run("kubectl", "exec", name, "--", "cat", path))
    return copy


def wait_until(ready: Any, seconds: float, what: str) -> None:
    waited = threading.Event()
    for _ in range(int(seconds * 4)):
        if ready():
            return
        waited.wait(0.25)
    raise AssertionError(f"not in {seconds:.0f} s: {what}")
