"""The official Python SDK and ours beside each other, on the node of the cluster: each with a producer and a consumer of a topic of its
own, while something happens to the brokers. `load_peer.py` is what each of the four processes runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from evenq_helm.kubernetes import ROOT, Kubernetes, wait_until

SDKS = ("official", "ours")
SENDERS = 8
"""Threads of each producer, as in `load_peer.py`."""
RATE = int(os.environ.get("EVENQ_TEST_LOAD_RATE", "50"))
"""Messages a second of each SDK. 500 by `make kubernetes-replicated`, on a machine that has the processors for it."""
PEER = Path(__file__).resolve().parents[1] / "load_peer.py"
ENDS_S = 1_500.0
"""Longest wait for a process to end: a consumer may be far behind after ten minutes, and ends by itself when nothing comes for 90 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of one SDK's messages."""

    acknowledged: int
    """Sends that ended well."""
    refused: int
    """Sends that ended with an error, after all tries of the SDK."""
    lost: int
    """Acknowledged to the sender, and never received."""
    repeated: int
    """Received once more after their acknowledgement was answered with OK."""
    gaps_s: tuple[float, ...]
    """The longest times between two acknowledged sends, the longest first."""
    reading_gaps_s: tuple[float, ...]
    """The same between two messages that came for the first time, up to the last acknowledged send."""
    came_again: int
    """Messages that came more than once: their acknowledgement failed, or its answer was lost, so they were due again after
    their invisible time. They are no pause: others come meanwhile (decision 91).
    """
    rate: float
    """Acknowledged sends a second, all in all."""
    errors: dict[str, int]
    """What calls of both processes ended with, and how often."""


class Loaded:
    """Four processes that run."""

    def __init__(self, kubernetes: Kubernetes, namespace: str, topic: str) -> None:
        keys = kubernetes.secret("evenq-user-demo", namespace)
        environment = {
            f"{who}_{key.upper()}": keys[key] for who in ("EVENQ", "PEER") for key in ("access_key", "secret_key")
        }
        self._environment = {**kubernetes.environment, **environment}
        self._prefix = (str(kubernetes.folder / "node-exec"), sys.executable, str(PEER))
        self._endpoint = f"evenq.{namespace}.svc.cluster.local:8081"
        self._topics = {sdk: f"{topic}-{sdk}" for sdk in SDKS}
        self._processes: dict[tuple[str, str], subprocess.Popen[str]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._results: dict[tuple[str, str], dict[str, Any]] = {}
        self._readers: list[threading.Thread] = []

    @property
    def topics(self) -> tuple[str, ...]:
        """Of all SDKs; they must be there, and their groups `readers-TOPIC`."""
        return tuple(self._topics.values())

    def start(self) -> None:
        """Begin; returns when all four have done something."""
        for sdk, topic in self._topics.items():
            self._start(sdk, "consume", topic, f"readers-{topic}")
            self._start(sdk, "produce", topic, str(RATE))
        self.wait_for(RATE)

    def wait_for(self, count: int, *, within_s: float = 90.0) -> None:
        """Until each of the four processes has done so many more."""
        goals = {key: self._counts.get(key, 0) + count for key in self._processes}
        wait_until(
            lambda: all(self._counts.get(key, 0) >= goal for key, goal in goals.items()), within_s,
            f"{count} more of each",
        )  # fmt: skip

    def end(self) -> dict[str, Figures]:
        """Stop sending, read the rest, compare; by SDK."""
        for sdk in SDKS:
            self._finish((sdk, "produce"), [])
        for sdk in SDKS:
            self._finish((sdk, "consume"), [number for number, _ in self._results[sdk, "produce"]["sent"]])
        return {sdk: figures(self._results[sdk, "produce"], self._results[sdk, "consume"]) for sdk in SDKS}

    def kill(self) -> None:
        """Whatever still runs."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait(30)
            if process.stdin is not None:
                process.stdin.close()
        for reader in self._readers:
            reader.join(10)

    def _start(self, sdk: str, job: str, topic: str, detail: str) -> None:
        command = (*self._prefix, sdk, job, self._endpoint, topic, detail)
        process = self._processes[sdk, job] = subprocess.Popen(
            command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, cwd=ROOT,
        )  # fmt: skip
        reader = threading.Thread(target=self._read, args=((sdk, job), process), daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, key: tuple[str, str], process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                said = json.loads(line)
                self._counts[key] = said.get("count", self._counts.get(key, 0))
                if "sent" in said:
                    self._results[key] = said

    def _finish(self, key: tuple[str, str], wanted: list[int]) -> None:
        process = self._processes[key]
        assert process.stdin is not None
        print(json.dumps(wanted), file=process.stdin, flush=True)
        wait_until(lambda: key in self._results, ENDS_S, f"{key} has ended")
        process.wait(30)


def figures(produced: dict[str, Any], consumed: dict[str, Any]) -> Figures:
    """Compare what a producer and a consumer of one SDK said at their ends."""
    got, acked = consumed["got"], {}
    for number, at in consumed["acked"]:
        acked.setdefault(number, at)
    times = sorted(at for _, at in produced["sent"])
    first: dict[int, float] = {}
    for number, at in got:
        first[number] = min(at, first.get(number, at))
    return Figures(
        acknowledged=len(times),
        refused=sum(produced["errors"].values()),
        lost=len({number for number, _ in produced["sent"]} - {number for number, _ in got}),
        repeated=sum(1 for number, at in got if at > acked.get(number, at)),
        gaps_s=gaps(times),
        # A pause that lasts until the last send, and maybe longer, ends with it; what comes behind it is what was left over.
        reading_gaps_s=gaps([*sorted(at for at in first.values() if at < times[-1]), times[-1]]),
        came_again=len(got) - len(first),
        rate=round(len(times) / (times[-1] - times[0]), 1),
        errors={**produced["errors"], **consumed["errors"]},
    )


def gaps(times: list[float]) -> tuple[float, ...]:
    """The longest pauses."""
    return tuple(sorted((round(b - a, 2) for a, b in pairwise(times)), reverse=True)[:4])


@contextmanager
def loaded(kubernetes: Kubernetes, namespace: str, topic: str, *, by: str = "evenq-broker-0-0") -> Iterator[Loaded]:
    """Both SDKs send and receive while the block runs. `by`: the pod whose command line makes topics and groups."""
    load = Loaded(kubernetes, namespace, topic)
    pod = ("kubectl", "-n", namespace, "exec", by, "--", "evenq")
    for name in load.topics:
        kubernetes.run(*pod, "topic", "create", name, "--queues", "4")
        kubernetes.run(*pod, "group", "create", f"readers-{name}", "--from", "FIRST")
    load.start()
    try:
        yield load
    finally:
        load.kill()
