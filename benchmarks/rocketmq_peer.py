"""Apache RocketMQ as a peer: started, given its topics and stopped by the scripts in `peers/rocketmq` of BENCH_TOOLS.

One nameserver, one broker with its gRPC proxy in the same process, asynchronous flush, data thrown away at each start.
The scripts fetch its jars by Maven, once. It needs Java 17 and about 3 GB of memory under load.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import load
import servers

VERSION = "5.5.0"
ADDRESS = "127.0.0.1:8081"
NAMESERVER = "127.0.0.1:9876"
CACHE = Path(os.environ.get("PEER_CACHE") or Path.home() / ".cache" / "evenq-peers") / "rocketmq"
START_S = 300.0


@dataclass(frozen=True, slots=True)
class RocketMQ:
    """A running RocketMQ."""

    server: servers.Server
    """The process of broker and proxy, and the time from the first process to the last one's readiness."""
    nameserver: int
    """The nameserver's process id."""
    scripts: Path

    def make(self, topics: list[str], queues: int) -> None:
        """Topics with this number of queues, and for each a consumer group named `g-` and the topic."""
        for topic in topics:
            self._admin("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", str(queues), "-w", str(queues),
                        "-a", "+message.type=NORMAL")  # fmt: skip
            self._admin("updateSubGroup", "-c", "DefaultCluster", "-g", f"g-{topic}")

    def _admin(self, command: str, *options: str) -> None:
        done = subprocess.run(
            [str(self.scripts / "admin"), command, "-n", NAMESERVER, *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        # Its exit code is 0 also when it failed.
        if "success" not in done.stdout:
            raise SystemExit(f"RocketMQ's {command} {' '.join(options)} failed: {(done.stdout + done.stderr).strip()}")

    def memory_mb(self) -> float:
        """Resident memory of both processes."""
        return servers.memory(self.server.pid).rss + servers.memory(self.nameserver).rss


@contextmanager
def rocketmq() -> Iterator[RocketMQ]:
    """RocketMQ on its usual ports, until the block ends."""
    scripts = load.tools() / "peers" / "rocketmq"
    if not (scripts / "up").is_file():
        raise SystemExit(
            f"no scripts for RocketMQ in {scripts}: set BENCH_TOOLS to the folder that holds `peers/rocketmq`"
        )
    begun = time.perf_counter()
    try:
        # Not captured: what it starts would keep the pipe open.
        done = subprocess.run([str(scripts / "up")], stdout=subprocess.DEVNULL, check=False, timeout=START_S)
        ready_s = time.perf_counter() - begun
        if done.returncode != 0:
            raise SystemExit(f"RocketMQ did not start, see {CACHE / 'proxy.log'}; are 8081, 9876 and 10911 free?")
        pids = [int((CACHE / name).read_text()) for name in ("proxy.pid", "namesrv.pid")]
        yield RocketMQ(servers.Server(pids[0], ADDRESS, ready_s), pids[1], scripts)
    finally:
        subprocess.run([str(scripts / "down")], check=False)
