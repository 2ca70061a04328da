"""A real broker that runs out of file descriptors, or loses its data folder, under load: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.testing.node import Node

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits of a running process can be set on Linux only"),
]
CROWD = 400
SETTINGS = {
    "STORE__SEGMENT_BYTES": str(1 << 16),  # a new file many times a second
    "STORE__FLUSH_INTERVAL_MS": "50", "STORE__CACHE_BYTES": "0", "DEFAULT_START_FROM": "FIRST",
}  # fmt: skip


def alone(folder: Path) -> LocalCluster:
    return LocalCluster(nameservers=0, rebalancer=False, folder=folder, broker_settings=SETTINGS)


class Load:
    """One producer on a thread: which messages were acknowledged."""

    def __init__(self, endpoint: str) -> None:
        self.acknowledged: list[int] = []
        self.refused = 0
        self._endpoint = endpoint
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(60)

    def _send(self) -> None:
        options = evenq.ProducerOptions(max_attempts=1)
        with evenq.Producer(endpoint=self._endpoint, options=options) as producer:
            number = 0
            while not self._stop.is_set():
                try:
                    producer.send(evenq.Message(topic="t", body=b"%d|" % number + b"x" * 4_000))
                    self.acknowledged.append(number)
                except Error:
                    self.refused += 1
                    self._stop.wait(0.05)
                number += 1

    def wait_for(self, more: int, seconds: float = 60) -> None:
        wanted = len(self.acknowledged) + more
        until(lambda: len(self.acknowledged) >= wanted, seconds=seconds)


def read_back(endpoint: str) -> set[int]:
    found: set[int] = set()
    quiet = 0
    with evenq.PullConsumer(
        group=f"reader-{os.urandom(4).hex()}", endpoint=endpoint, subscriptions={"t": "*"}, start_from="FIRST"
    ) as consumer:
        while quiet < 4:
            messages = consumer.poll(1_000, wait_ms=1_000)
            quiet = 0 if messages else quiet + 1
            found.update(int(bytes(message.body).partition(b"|")[0]) for message in messages)
    return found


def open_files(node: Node) -> int:
    return len(os.listdir(f"/proc/{node.pid}/fd"))


@pytest.mark.slow  # a crowd
def test_a_crowd_of_connections_cannot_take_the_stores_descriptors(tmp_path: Path) -> None:
    with alone(tmp_path / "cluster") as cluster:
        node, load = cluster.brokers[0], Load(cluster.endpoint)
        assert node.pid is not None
        soft, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, 1 << 20), "the limit is raised as far as it goes at the start"
        with load.running():
            load.wait_for(50)
            limit = open_files(node) + 30
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (limit, hard))
            crowd = [socket.create_connection(("127.0.0.1", node.port), timeout=60) for _ in range(CROWD)]
            try:
                until(lambda: open_files(node) >= limit - 1)
                load.wait_for(600)
                for _ in range(40):  # also what is done every few seconds: checkpoints, files set aside
                    load.wait_for(20)
                    asyncio.run(SystemClock().sleep_ms(100))
                at_the_limit = open_files(node)
            finally:
                for one in crowd:
                    one.close()
            load.wait_for(100)
        assert node.alive
        print(
            f"limit {limit}, {CROWD} connections, {at_the_limit} open; acknowledged {len(load.acknowledged)}, "
            f"refused {load.refused}"
        )
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (soft, hard))
        node.kill()
        node.restart()
        assert set(load.acknowledged) <= read_back(cluster.endpoint)


@pytest.mark.parametrize(
    "what", ["moved", *(pytest.param(one, marks=pytest.mark.slow) for one in ("lock removed", "lock replaced"))]
)
@pytest.mark.slow
def test_a_broker_that_lost_its_folder_stops_within_a_second_and_nothing_acknowledged_is_lost(
    tmp_path: Path, what: str
) -> None:
    with alone(tmp_path / "cluster") as cluster:
        node, load, clock = cluster.brokers[0], Load(cluster.endpoint), SystemClock()
        folder = tmp_path / "cluster" / node.name
        aside = tmp_path / "aside"
        with load.running():
            load.wait_for(50)
            begun_ms = clock.monotonic_ms()
            if what == "moved":
                folder.rename(aside)
            else:
                (folder / "lock").unlink()
            if what == "lock replaced":
                (folder / "lock").write_text("1\n")
            until(lambda: "the store stopped" in node.log_text() or not node.alive)
            noticed_ms = clock.monotonic_ms() - begun_ms
            until(lambda: not node.alive)
        assert noticed_ms < 30_000, noticed_ms  # a second, and what a busy machine adds
        assert node.exit_code not in {None, 0}
        assert f"the data folder {folder}" in node.log_text()
        if what == "moved":
            assert not folder.exists() or not (folder / "commitlog").exists()
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        node.restart()
        assert set(load.acknowledged) <= read_back(cluster.endpoint)
