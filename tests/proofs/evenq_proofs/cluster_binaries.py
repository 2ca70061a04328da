"""Programs that the test cluster builds (etcd, kube-apiserver), for tests that start them alone, by path on loopback.

Looked for on PATH and in the cluster's cache (K8S_CACHE). Where everything must run (`EVENQ_TEST_ALL`) they are built
if the cluster's scripts are there (K8S_TOOLS), which takes minutes once, and a test that lacks one fails; elsewhere it
is skipped. `Program` is one such process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from evenq_proofs.waiting import until

ROOT = Path(__file__).resolve().parents[3]
BUILD_SECONDS = 1_800


def program_path(name: str) -> str:
    """Where it is. Skips the test, or fails it, if it is nowhere."""
    cache = Path(os.environ.get("K8S_CACHE", Path.home() / ".cache" / "k8s-test"))
    tools = Path(os.environ.get("K8S_TOOLS", ROOT.parent / "shared" / "k8s")).resolve()
    must = bool(os.environ.get("EVENQ_TEST_ALL"))
    # The version that the test cluster is made of first: Debian's etcd, for example, is older than the API server needs.
    found = shutil.which(name, path=str(cache / "bin")) or shutil.which(name)
    if found is None and must and (tools / "install").is_file():
        cache.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["flock", f"{cache}.lock", tools / "install"], check=True, timeout=BUILD_SECONDS)
        found = shutil.which(name, path=str(cache / "bin"))
    if found is None:
        why = f"no {name} in {cache}/bin or on PATH; the test cluster (K8S_TOOLS) builds it in the first"
        if must:
            pytest.fail(f"{why}; a whole run must have it")
        pytest.skip(why)
    return found


class Program:
    """One process; started by `start`, and again after `kill`."""

    def __init__(self, command: Sequence[str], *, log_path: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command = [*command]
        self.log_path = log_path
        self._environment = {"PATH": os.environ.get("PATH", ""), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; does not wait until it answers."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def running(self) -> bool:
        """True until it ends."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """The end of what it wrote."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")[-3_000:]

    def pause(self) -> None:
        """It keeps its connections and answers nothing; returns when all its threads stand."""
        self._signal(signal.SIGSTOP)
        until(self._stands, "the program stops")

    def resume(self) -> None:
        """After `pause`."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9. Idempotent."""
        if self.running and self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(20)

    def _stands(self) -> bool:
        assert self._process is not None
        stats = [path.read_text() for path in Path(f"/proc/{self._process.pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
