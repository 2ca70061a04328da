"""Apache RocketMQ for comparison, controlled by the scripts in `peers/rocketmq` of BENCH_TOOLS.

One nameserver, one broker with its gRPC proxy in the same process, asynchronous flush, data deleted at each start.
The scripts fetch its jars by Maven, once. It needs Java 17 and about 3 GB of memory under load. `rocketmq_group` starts
the same with two slaves, from the same jars.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import load
import servers

VERSION = "5.5.0"
ADDRESS = "127.0.0.1:8081"
NAMESERVER = "127.0.0.1:9876"
CACHE = Path(os.environ.get("PEER_CACHE") or Path.home() / ".cache" / "evenq-peers") / "rocketmq"
START_S = 300.0
COPIES = 3
BROKER_PORTS = (10911, 10921, 10931)
"""Ports of the master and its slaves; each also uses the two adjacent ports."""
OPENS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
"""Options that RocketMQ needs with Java 17."""


@dataclass(frozen=True, slots=True)
class RocketMQ:
    server: servers.Server
    """The process of broker and proxy, and the time from the first process to the last one's readiness."""
    nameserver: int
    """The nameserver's process id."""
    scripts: Path

    def make(self, topics: list[str], queues: int) -> None:
        """Topics with this number of queues, and for each a consumer group named `g-` and the topic."""
        for topic in topics:
            self._admin(
                "updateTopic",
                "-c",
                "DefaultCluster",
                "-t",
                topic,
                "-r",
                str(queues),
                "-w",
                str(queues),
                "-a",
                "+message.type=NORMAL",
            )
            self._admin("updateSubGroup", "-c", "DefaultCluster", "-g", f"g-{topic}")

    def _admin(self, command: str, *options: str) -> None:
        done = admin(self.scripts, command, *options)
        # Its exit code is 0 also when it failed.
        if "success" not in done.stdout:
            raise SystemExit(f"RocketMQ's {command} {' '.join(options)} failed: {(done.stdout + done.stderr).strip()}")

    def memory_mb(self) -> float:
        """Resident memory of both processes."""
        return servers.memory(self.server.pid).rss + servers.memory(self.nameserver).rss


@contextmanager
def rocketmq() -> Iterator[RocketMQ]:
    """Runs RocketMQ on its default ports until the block ends."""
    scripts = _scripts()
    begun = time.perf_counter()
    try:
        # Not captured: the processes that it starts would keep the pipe open.
        done = subprocess.run([str(scripts / "up")], stdout=subprocess.DEVNULL, check=False, timeout=START_S)
        ready_s = time.perf_counter() - begun
        if done.returncode != 0:
            raise SystemExit(f"RocketMQ did not start, see {CACHE / 'proxy.log'}; are 8081, 9876 and 10911 free?")
        pids = [int((CACHE / name).read_text()) for name in ("proxy.pid", "namesrv.pid")]
        yield RocketMQ(servers.Server(pids[0], ADDRESS, ready_s), pids[1], scripts)
    finally:
        subprocess.run([str(scripts / "down")], check=False)


@contextmanager
def rocketmq_group(*, flush: str) -> Iterator[RocketMQ]:
    """Runs a master that answers once two slaves have a message (SYNC_MASTER), and its proxy, until the block ends.
    `flush`: ASYNC_FLUSH, or SYNC_FLUSH (on the master's disk). Slaves confirm written messages, synced or not.
    """
    scripts, begun = _scripts(), time.perf_counter()
    if not (CACHE / "lib").is_dir():
        fetch = ["mvn", "-q", "-B", "-f", str(scripts / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*fetch, f"-DoutputDirectory={CACHE / 'lib'}"], check=True)
    with tempfile.TemporaryDirectory(prefix="rocketmq-group-") as name, ExitStack() as stack:
        folder = Path(name)
        nameserver = stack.enter_context(
            _java(folder, "namesrv", ["org.apache.rocketmq.namesrv.NamesrvStartup"], "-Xms512m", "-Xmx1g")
        )
        _wait_for(folder / "namesrv.log", "boot success")
        for number, port in enumerate(BROKER_PORTS):
            _write_settings(folder, number, port, flush)
            settings = str(folder / f"broker-{number}.conf")
            if number:
                command = ["org.apache.rocketmq.broker.BrokerStartup", "-c", settings]
                stack.enter_context(_java(folder, f"broker-{number}", command, "-Xms1g", "-Xmx2g"))
                _wait_for(folder / f"broker-{number}.log", "boot success")
            else:
                command = ["org.apache.rocketmq.proxy.ProxyStartup", "-bc", settings, "-pm", "LOCAL"]
                master = stack.enter_context(_java(folder, "broker-0", command, "-Xms2g", "-Xmx4g"))
                _wait_for(folder / "broker-0.log", "startup successfully")
        _wait_for_slaves(scripts)
        yield RocketMQ(servers.Server(master, ADDRESS, time.perf_counter() - begun), nameserver, scripts)


def admin(scripts: Path, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs one command of RocketMQ's administration tool."""
    return subprocess.run(
        [str(scripts / "admin"), command, "-n", NAMESERVER, *options], capture_output=True, text=True, check=False
    )


def _scripts() -> Path:
    scripts = load.tools() / "peers" / "rocketmq"
    if not (scripts / "up").is_file():
        raise SystemExit(
            f"no scripts for RocketMQ in {scripts}: set BENCH_TOOLS to the folder that holds `peers/rocketmq`"
        )
    return scripts


def _write_settings(folder: Path, number: int, port: int, flush: str) -> None:
    store = folder / f"store-{number}"
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": number,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "namesrvAddr": NAMESERVER,
        "listenPort": port,
        "haListenPort": port + 1,
        "brokerRole": "SLAVE" if number else "SYNC_MASTER",
        "flushDiskType": flush,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "autoCreateTopicEnable": "true",
        "mapedFileSizeCommitLog": 1 << 28,
        "totalReplicas": COPIES,
        "inSyncReplicas": COPIES,
    }
    (folder / f"broker-{number}.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    if not number:
        (folder / "conf").mkdir(exist_ok=True)
        proxy = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "LOCAL",
            "grpcServerPort": 8081,
            "remotingListenPort": 8080,
            "namesrvAddr": NAMESERVER,
        }
        (folder / "conf" / "rmq-proxy.json").write_text(json.dumps(proxy))


@contextmanager
def _java(folder: Path, name: str, command: list[str], *heap: str) -> Iterator[int]:
    """Runs one process with its output in a file; at the end it is killed and its data is deleted."""
    with (folder / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(
            [
                "java",
                *OPENS,
                *heap,
                "-XX:MaxDirectMemorySize=4g",
                f"-Duser.home={folder}",
                "-cp",
                f"{folder / 'conf'}:{CACHE / 'lib'}/*",
                *command,
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROCKETMQ_HOME": str(folder)},
            cwd=folder,
        )
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()


def _wait_for(file: Path, line: str) -> None:
    end = time.monotonic() + START_S
    while line not in file.read_text(errors="replace"):
        if time.monotonic() > end:
            raise SystemExit(f"RocketMQ did not start:\n{file.read_text(errors='replace')[-2_000:]}")
        time.sleep(0.2)


def _wait_for_slaves(scripts: Path) -> None:
    end, done = time.monotonic() + START_S, None
    while done is None or f"#InSyncSlaveNum\t{COPIES - 1}" not in done.stdout:
        if time.monotonic() > end and done is not None:
            raise SystemExit(f"RocketMQ's slaves do not follow: {(done.stdout + done.stderr).strip()}")
        time.sleep(0.5)
        done = admin(scripts, "haStatus", "-b", f"127.0.0.1:{BROKER_PORTS[0]}")
