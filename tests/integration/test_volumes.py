"""Real brokers on volumes that are really small: they choose sizes that fit, refuse what cannot work, and say that they
are not ready while they refuse messages.

The volumes are tmpfs of their own, so the tests need root; elsewhere they are skipped, but not where everything must
run (`EVENQ_TEST_ALL`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.waiting import until
from evenq_proofs.whole_runs import skip_or_fail

import evenq
from evenq.errors import Error, StoreFull, TooManyRequests
from evenq.runtime.clock import SystemClock
from evenq.serving.front.health import NOT_SERVING, SERVING
from evenq.testing import LocalCluster
from evenq.testing.node import Node

MIB = 1 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a volume of this number of MiB."""
    mounted: list[Path] = []

    def mount(size_mib: int) -> Path:
        folder = tmp_path / f"volume-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            skip_or_fail(f"no volume can be mounted here ({done.stderr.strip()}): run as root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def cluster_on(volume: Path, **settings: str) -> LocalCluster:
    fields = {"STORE__PATH": str(volume / "data"), **settings}
    return LocalCluster(nameservers=0, rebalancer=False, folder=volume.parent / "cluster", broker_settings=fields)


def readiness(node: Node) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/readyz", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def health(node: Node) -> bytes:
    async def ask() -> bytes:
        async with open_net() as net:
            return await net.unary(node.address, "/grpc.health.v1.Health/Check", b"", timeout_ms=60_000)

    return asyncio.run(ask())


def test_a_volume_of_one_gibibyte_works_with_nothing_set(volume: Callable[[int], Path]) -> None:
    folder = volume(1024)
    with cluster_on(folder) as cluster:
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for number in range(50):
                producer.send(evenq.Message(topic="t", body=b"%d" % number))
        assert readiness(cluster.brokers[0]) == (200, "ready\n")
        assert health(cluster.brokers[0]) == SERVING
    assert json.loads((folder / "data" / "identity").read_text())["segment_bytes"] == 64 * MIB


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SEGMENT_BYTES": str(1 << 30)}, ["two log files of 1024 MiB", "segment_bytes to 134217728 or less"]),
        ({"DISK_FREE_MIN_BYTES": str(1 << 30)}, ["may use 0 MiB", "leave disk_free_min_bytes empty"]),
    ],
)
@pytest.mark.slow
def test_sizes_that_cannot_work_on_the_volume_are_refused_at_the_start(
    volume: Callable[[int], Path], settings: dict[str, str], says: list[str]
) -> None:
    folder = volume(1024)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EVENQ_BROKER")},
        **{f"EVENQ_BROKER_STORE__{name}": value for name, value in settings.items()},
        "EVENQ_BROKER_STORE__PATH": str(folder / "data"), "EVENQ_BROKER_PORT": "0", "EVENQ_BROKER_METRICS_PORT": "-1",
    }  # fmt: skip
    command = [sys.executable, "-m", "evenq_broker"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    for part in ["the volume has 1024 MiB", "give it a volume of at least", *says]:
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "data" / "identity").exists(), "the next start may have other sizes"


@pytest.mark.slow
def test_an_old_folder_on_a_volume_too_small_is_served_with_a_warning(volume: Callable[[int], Path]) -> None:
    folder = volume(256)
    with cluster_on(folder) as cluster, evenq.Producer(endpoint=cluster.endpoint) as producer:
        producer.send(evenq.Message(topic="t", body=b"kept"))
    with cluster_on(folder, STORE__DISK_USED_MAX_RATIO="0.1") as cluster:
        assert "its messages can be read" in cluster.brokers[0].log_text()


def test_a_broker_that_refuses_messages_is_not_ready_and_says_why(volume: Callable[[int], Path]) -> None:
    folder = volume(128)
    with cluster_on(folder) as cluster:
        node = cluster.brokers[0]
        ballast = folder / "ballast"
        ballast.write_bytes(b"\0" * (118 * MIB))
        until(lambda: readiness(node)[0] == 503)
        text = readiness(node)[1]
        assert text.startswith("not ready: it refuses messages: the broker's disk is 9"), text
        assert "free space" in text
        assert str(folder) not in text
        assert health(node) == NOT_SERVING
        options = evenq.ProducerOptions(max_attempts=1)
        with evenq.Producer(endpoint=cluster.endpoint, options=options) as producer, pytest.raises(Error):
            producer.send(evenq.Message(topic="t", body=b"refused"))
        ballast.unlink()
        until(lambda: readiness(node) == (200, "ready\n"))
        assert health(node) == SERVING
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            producer.send(evenq.Message(topic="t", body=b"taken"))


@pytest.mark.slow  # writes many times the volume
def test_a_small_volume_takes_many_times_its_size_while_old_files_go(volume: Callable[[int], Path]) -> None:
    """The size of its log files fits the volume, so there is always an old one that can go."""
    folder = volume(128)
    settings = {"STORE__RETENTION_MS": "1000", "STORE__RETENTION_HOUR": "-1"}
    sent = refused = 0
    clock = SystemClock()
    with cluster_on(folder, **settings) as cluster:
        options = evenq.ProducerOptions(max_attempts=1)
        with evenq.Producer(endpoint=cluster.endpoint, options=options) as producer:
            while sent < 400:
                try:
                    producer.send(evenq.Message(topic="t", body=b"x" * MIB))
                    sent += 1
                except (StoreFull, TooManyRequests):
                    refused += 1
                    asyncio.run(clock.sleep_ms(200))
    print(f"{sent} MiB through a volume of 128 MiB, refused and sent again {refused} times")
