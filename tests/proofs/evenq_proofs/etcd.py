"""A real etcd on loopback for tests: one member or several, each a process that can be killed, paused and started again.

Raw calls for what the project's coordinator never does: compact, delete, users.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from evenq.runtime.closing import Closing
from evenq.testing.free_ports import FreePorts
from evenq_proofs.cluster_binaries import Program, program_path
from evenq_proofs.waiting import until


class Etcd(Closing):
    """A cluster of `members`; starts at once. `arguments`: more flags of etcd for each member."""

    def __init__(self, folder: Path, *, members: int = 1, arguments: Sequence[str] = (), scheme: str = "http") -> None:
        path = program_path("etcd")
        self._ports = FreePorts()
        ports = [self._ports.take(2) for _ in range(members)]
        peers = ",".join(f"m{n}=http://127.0.0.1:{port + 1}" for n, port in enumerate(ports))
        self.urls = [f"{scheme}://127.0.0.1:{port}" for port in ports]
        """Client URLs."""
        self.members = [
            Program(
                [
                    *(path, "--name", f"m{n}", "--data-dir", str(folder / f"m{n}"), "--log-level", "warn"),
                    *("--listen-client-urls", self.urls[n], "--advertise-client-urls", self.urls[n]),
                    *("--listen-peer-urls", f"http://127.0.0.1:{port + 1}"),
                    *("--initial-advertise-peer-urls", f"http://127.0.0.1:{port + 1}", "--initial-cluster", peers),
                    *("--heartbeat-interval", "100", "--election-timeout", "1000", *arguments),
                ],
                log_path=folder / f"m{n}.log",
            )
            for n, port in enumerate(ports)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        for member in self.members:
            member.start()
        try:
            if scheme == "http":
                for n in range(members):
                    self.wait_healthy(n)
        except BaseException:
            self.close()
            raise

    @property
    def endpoints(self) -> str:
        """All client URLs with commas between."""
        return ",".join(self.urls)

    def wait_healthy(self, member: int = 0) -> None:
        """Until the member knows a leader."""
        until(lambda: self._is_healthy(member), f"etcd at {self.urls[member]}: {self.members[member].log()}")

    def gateway(self, call: str, fields: dict[str, object], *, token: str = "") -> dict[str, object]:
        """A call by etcd's JSON gateway; bytes are base64."""
        headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
        request = urllib.request.Request(f"{self.urls[0]}/v3/{call}", json.dumps(fields).encode(), headers)
        with urllib.request.urlopen(request, timeout=20) as response:
            answer: dict[str, object] = json.load(response)
            return answer

    def close(self) -> None:
        """Kill all members. Idempotent."""
        for member in self.members:
            member.kill()
        self._ports.close()

    def _is_healthy(self, member: int) -> bool:
        if not self.members[member].running:
            raise subprocess.SubprocessError(f"etcd ended: {self.members[member].log()}")
        try:
            with urllib.request.urlopen(f"{self.urls[member]}/health", timeout=2) as response:
                return bool(json.load(response).get("health") == "true")
        except OSError:
            return False
