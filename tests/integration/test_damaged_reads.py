"""A flipped bit in a full log file of a real broker: what readers receive, what is counted, and how copies help."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import figure, group, in_sync, leader_of

import evenq
from evenq.errors import Error, InternalError
from evenq.testing import LocalCluster

pytestmark = pytest.mark.timeout(300)

TOPIC, COUNT = "orders", 4_000
SEGMENT_BYTES = 1 << 20
SMALL_FILES = {"STORE__SEGMENT_BYTES": str(SEGMENT_BYTES), "DEFAULT_START_FROM": "FIRST"}
DAMAGED = "evenq_store_damaged_reads_total"


def fill(endpoint: str) -> None:
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic(TOPIC, queues=1)
    with evenq.Producer(endpoint=endpoint) as producer:
        producer.send_batch([evenq.Message(topic=TOPIC, body=b"%06d" % n + b"." * 1_000) for n in range(COUNT)])


def flip(folder: Path) -> None:
    """In the second of its log files, which is full."""
    path = folder / "commitlog" / f"{SEGMENT_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(SEGMENT_BYTES // 2)
        [byte] = file.read(1)
        file.seek(SEGMENT_BYTES // 2)
        file.write(bytes([byte ^ 1]))


def read(endpoint: str, name: str, *, until_error: bool) -> tuple[int, str]:
    """How many messages a new group gets, and the first error that says 50001; until all are there or two minutes are
    over.
    """
    numbers: set[int] = set()
    end = time.monotonic() + 120
    with evenq.SimpleConsumer(group=name, subscriptions={TOPIC: "*"}, endpoint=endpoint, start_from="FIRST") as reader:
        while len(numbers) < COUNT and time.monotonic() < end:
            try:
                messages = reader.receive(32, wait_ms=1_000)
                numbers.update(int(message.body[:6]) for message in messages)
                reader.ack(*messages)
            except InternalError as error:
                if until_error:
                    return len(numbers), str(error)
                raise
            except Error:
                time.sleep(0.05)  # no copy leads for a moment
    return len(numbers), ""


def test_damage_in_a_full_file_is_told_to_its_readers_and_counted_and_nothing_else_stops(tmp_path: Path) -> None:
    with LocalCluster(rebalancer=False, folder=tmp_path, broker_settings=SMALL_FILES) as cluster:
        fill(cluster.endpoint)
        [node] = cluster.brokers
        node.stop()
        flip(tmp_path / node.name)
        node.restart()
        count, error = read(cluster.endpoint, "readers", until_error=True)
        assert 1_000 <= count < COUNT, "what lies before it came"
        assert "stored data is damaged and cannot be read" in error
        assert figure(node, DAMAGED) >= 1
        assert "holds no message" in node.log_text(), "with file and place, for operators"
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            assert producer.send(evenq.Message(topic=TOPIC, body=b"later")).offset == COUNT
        assert node.alive


@pytest.mark.slow  # three copies and two changes of the leader
def test_with_copies_another_leader_serves_what_one_copy_cannot_read(tmp_path: Path) -> None:
    with group(tmp_path, **SMALL_FILES, STORE__CACHE_BYTES="0") as cluster:
        fill(cluster.endpoints)
        in_sync(cluster, 3)
        damaged = leader_of(cluster)
        flip(tmp_path / damaged.name)
        count, error = read(cluster.endpoints, "readers", until_error=True)
        assert count < COUNT
        assert "stored data is damaged" in error
        with evenq.Admin(endpoint=cluster.endpoints) as admin:
            admin.move_leader("broker-a")
        assert leader_of(cluster) is not damaged
        assert read(cluster.endpoints, "others", until_error=False) == (COUNT, "")
