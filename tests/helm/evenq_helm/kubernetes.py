"""The one-node cluster of the tests, a release of the chart on it, and its objects."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evenq.runtime.clock import SystemClock

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "helm" / "evenq"
IMAGES = ("nameserver", "broker", "rebalancer", "console", "tables", "demo")
REGISTRY, TAG = "localhost/evenq", "test"
NODE = "10.10.0.1"  # the node's own address, where node ports are
DEMO_USER = {"allow": [{"resource": "topic:*", "actions": ["*"]}, {"resource": "group:*", "actions": ["*"]},
                       {"resource": "cluster", "actions": ["describe"]}]}  # fmt: skip


class Kubernetes:
    """The test cluster's own kubectl and helm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = f'eval "$({folder}/env)"; printf "%s\\n%s" "$KUBECONFIG" "$PATH"'
        shown = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, timeout=60).stdout
        config, path = shown.split("\n")
        self.environment = {**os.environ, "KUBECONFIG": config, "PATH": path}

    def tool(self, name: str, *arguments: str, timeout: float = 1_500) -> str:
        done = subprocess.run(
            [self.folder / name, *arguments], capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        return done.stdout

    def run(self, *command: str, timeout: float = 120, check: bool = True) -> str:
        done = self.tried(*command, timeout=timeout)
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stdout[-3_000:]}{done.stderr[-3_000:]}"
        return done.stdout

    def tried(self, *command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run it, whatever its exit code is."""
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=self.environment, check=False, cwd=ROOT
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Only stdout is read: a log line of stderr in the middle of a JSON line would spoil it."""
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )

    def apply(self, *objects: dict[str, Any]) -> None:
        """Make API objects."""
        text = "\n---\n".join(json.dumps(one) for one in objects)
        done = subprocess.run(
            ["kubectl", "apply", "-f", "-"],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def created(self, path: str, body: dict[str, Any]) -> str:
        """Post an object to a path of the API; what the server says if it refuses, else nothing."""
        done = subprocess.run(
            ["kubectl", "create", "--raw", path, "-f", "-"],
            input=json.dumps(body), capture_output=True, text=True, timeout=60, env=self.environment, check=False,
        )  # fmt: skip
        return done.stderr if done.returncode else ""

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """kube-apiserver answers nobody while the block runs: it is stopped, and goes on at the end."""
        signal = 'for stat in /proc/[0-9]*/comm; do if [ "$(cat $stat)" = kube-apiserver ]; then kill -$0 $(echo $stat | cut -d/ -f3); fi; done'
        self.tool("node-exec", "sh", "-c", signal, "STOP")
        try:
            yield
        finally:
            self.tool("node-exec", "sh", "-c", signal, "CONT")
            wait_until(lambda: not self.tried("kubectl", "get", "--raw", "/readyz").returncode, 60, "the API answers")

    def listed(self, kind: str, namespace: str = "default", *more: str) -> list[dict[str, Any]]:
        """All objects of a kind in a namespace."""
        shown = self.run("kubectl", "-n", namespace, "get", kind, "-o", "json", *more)
        return list(json.loads(shown)["items"])

    def left(self, release: str = "evenq", namespace: str = "default") -> set[str]:
        """Kind and name of all objects that carry the release's label, but for events. Objects of the whole cluster have
        the namespace in front of their name: other tests have a release of this name in another namespace.
        """
        ours = ("-l", f"app.kubernetes.io/instance={release}", "-o", "name")
        kinds = self.run("kubectl", "api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
        wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
        clustered = self.run("kubectl", "get", "clusterroles,clusterrolebindings", *ours)
        found = self.run("kubectl", "-n", namespace, "get", wanted, *ours, timeout=240)
        return {
            *found.split(),
            *(one for one in clustered.split() if one.partition("/")[2].startswith(f"{namespace}-")),
        }

    def secret(self, name: str, namespace: str = "default") -> dict[str, str]:
        """A Secret's values by key."""
        data = json.loads(self.run("kubectl", "-n", namespace, "get", "secret", name, "-o", "json"))["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    @contextmanager
    def forwarded(self, target: str, port: int, namespace: str = "default") -> Iterator[int]:
        """`kubectl port-forward` while the block runs; the local port."""
        with self.start("kubectl", "-n", namespace, "port-forward", target, f":{port}") as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("Forwarding from 127.0.0.1:"), line
                yield int(line.split(" -> ")[0].rsplit(":", 1)[1])
            finally:
                process.terminate()

    def evenq(self, *command: str, namespace: str = "default", broker: int = 0) -> tuple[str, ...]:
        """The command line in a broker's pod, where it finds access point and keys by itself."""
        return ("kubectl", "-n", namespace, "exec", f"evenq-broker-{broker}", "--", "evenq", *command)


def values(*more: str) -> list[str]:
    """Arguments of helm: our images, small volumes, several releases on one node, and a user for the demo's pods."""
    sets = [f"image.registry={REGISTRY}", f"image.tag={TAG}", "broker.storage.size=1Gi"]
    sets += ["broker.resources.requests.cpu=50m", *more]
    # Volumes of the test cluster are folders of the machine's disk, whose room is not ours to judge.
    free = ["DISK_USED_MAX_RATIO=0.99", "DISK_FREE_MIN_BYTES=67108864"]
    return [
        *(part for value in sets for part in ("--set-string" if ".settings." in value else "--set", value)),
        *(part for value in free for part in ("--set-string", f"broker.settings.EVENQ_BROKER_STORE__{value}")),
        "--set-json",
        f"auth.users.demo={json.dumps(DEMO_USER)}",
    ]


@contextmanager
def installed(kubernetes: Kubernetes, *more: str) -> Iterator[None]:
    """A release `evenq` in the default namespace, with all that it leaves removed at the end."""
    kubernetes.run("helm", "install", "evenq", str(CHART), "--wait", "--timeout", "3m", *values(*more), timeout=240)
    try:
        yield
    finally:
        kubernetes.run("helm", "uninstall", "evenq", "--wait", check=False)
        kubernetes.run("kubectl", "delete", "pods", "--all", "--force", "--ignore-not-found", check=False)
        kubernetes.run("kubectl", "delete", "pvc", "--all", check=False)
        kubernetes.run("kubectl", "delete", "secret", "evenq-auth", "--ignore-not-found", check=False)


def wait_until(ready: Callable[[], object], seconds: float, what: str) -> None:
    """Ask every quarter of a second."""
    clock, waited = SystemClock(), threading.Event()
    deadline_ms = clock.monotonic_ms() + seconds * 1_000
    while not ready():
        assert clock.monotonic_ms() < deadline_ms, f"not in {seconds:.0f} s: {what}"
        waited.wait(0.25)
