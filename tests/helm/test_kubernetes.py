"""The chart on a real one-node Kubernetes: installed, used from inside, a broker pod deleted while the demo's group reads.

Producer and members run in pods from the `demo` image; their histories are fetched and judged by the checker. Short form:
EVENQ_TEST_FLIGHTS=20000 (default); the full year: EVENQ_TEST_FLIGHTS=336776.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
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
            kubernetes.tool("build-image", name, ".", "-f", "docker/Dockerfile", "--target", image)
            kubernetes.tool("load-image", name)
        yield kubernetes
    finally:
        subprocess.run([folder / "down"], check=False, timeout=120, stdout=subprocess.DEVNULL)


@pytest.fixture
def release(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    values = [f"image.registry={REGISTRY}", f"image.tag={TAG}", "broker.storage.size=1Gi"]
    values += [
        "broker.settings.EVENQ_BROKER_STORE__DISK_USED_MAX_RATIO=0.99"
    ]  # the test machine's disk is not ours to judge
    settings = [part for value in values for part in ("--set-string" if "settings" in value else "--set", value)]
    kubernetes.run("helm", "install", "evenq", str(CHART), "--wait", "--timeout", "3m", *settings, timeout=240)
    yield kubernetes
    kubernetes.run("helm", "uninstall", "evenq", "--wait", check=False)


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
    demo = ("python", "-m", "evenq.cli.demo")
    target = ("--endpoint", endpoint, "--topic", TOPIC)
    members = [
        release.start(
            "kubectl", "exec", name, "--", "sh", "-c",
            'echo $$ > /tmp/pid; exec "$@"', "sh", *demo, "consume", *target, "--group", GROUP, "--member", name, "--folder", "/tmp/out",
        )
        for name in MEMBERS
    ]  # fmt: skip
    counts = dict.fromkeys(MEMBERS, 0)
    followers = [
        threading.Thread(target=follow, args=(name, member, counts), daemon=True)
        for name, member in zip(MEMBERS, members, strict=True)
    ]
    for follower in followers:
        follower.start()
    producer = release.start(
        "kubectl", "exec", "producer", "--", *demo, "publish", *target, "--history", "/tmp/producer.history.jsonl", "--flights", str(FLIGHTS)
    )  # fmt: skip

    wait_until(lambda: sum(counts.values()) > FLIGHTS // 4, 120, "a quarter is consumed")
    recorder = Recorder(
        tmp_path / "test.history.jsonl", clock=SystemClock()
    )  # pods share this kernel's monotonic clock
    recorder.fault("pod deleted", target="evenq-broker-1")
    release.run("kubectl", "delete", "pod", "evenq-broker-1", "--wait=false")
    output, _ = producer.communicate(timeout=600)
    assert f"acknowledged {FLIGHTS}" in output, output
    wait_until(lambda: lag(release, inside, endpoint) == 0, 180, "the group has read everything")
    for name, member in zip(MEMBERS, members, strict=True):
        release.run("kubectl", "exec", name, "--", "sh", "-c", "kill -TERM $(cat /tmp/pid)")
        assert member.wait(60) == 0
    for follower in followers:
        follower.join(10)
    histories = [fetch(release, "producer", "/tmp/producer.history.jsonl", tmp_path)]
    histories += [fetch(release, name, f"/tmp/out/{name}.history.jsonl", tmp_path) for name in MEMBERS]
    with recorder:
        recorder.ok(recorder.invoke(Op.ADMIN, process="test", group=GROUP, topic=TOPIC, action=Action.DRAIN))
    report = check(merge_histories([read_history(path) for path in (*histories, recorder.path)]))
    assert report.ok, [a.text for a in report.anomalies]
    print(f"\n{FLIGHTS:,} acknowledged, lost 0, repeated {report.repeats:,} around the deleted pod")


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
