"""A flipped bit in a full log file of a real broker: what readers receive, what is counted, and how copies help."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import figure, group, in_sync, leader_of
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error, InternalError
from evenq.testing import LocalCluster

pytestmark = pytest.mark.timeout(300)

TOPIC, COUNT = "orders", 4_000
SEGMENT_BYTES = 1 << 20
SMALL_FILES = {"STORE__SEGMENT_BYTES": str(SEGMENT_BYTES), "DEFAULT_START_FROM": "FIRST"}
DAMAGED = "evenq_store_damaged_reads_total"
REPAIRED = "evenq_broker_replica_records_repaired_total"


def fill(endpoint: str) -> None:
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic(TOPIC, queues=1)
    with evenq.Producer(endpoint=endpoint) as producer:
        producer.send_batch([evenq.Message(topic=TOPIC, body=b"%06d" % n + b"." * 1_000) for n in range(COUNT)])


def flip(folder: Path, start: int = SEGMENT_BYTES, place: int = SEGMENT_BYTES // 2) -> None:
    """In one of its log files, the second unless told, which is full."""
    path = folder / "commitlog" / f"{start:020d}"
    with path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def full_files(folder: Path) -> dict[str, bytes]:
    """The log without its last file."""
    paths = sorted((folder / "commitlog").iterdir())
    return {path.name: path.read_bytes() for path in paths[:-1]}


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_with_copies_damage_is_repaired_while_its_readers_wait_and_told_to_none(tmp_path: Path) -> None:
    """D2: the leader serves, reads meet damage in its full files, and get what was sent; its disk has it again, too."""
    with group(tmp_path, **SMALL_FILES, STORE__CACHE_BYTES="0") as cluster:
        fill(cluster.endpoints)
        in_sync(cluster, 3)
        leader = leader_of(cluster)
        damaged, *others = sorted(cluster.brokers, key=lambda one: one is not leader)
        whole = full_files(tmp_path / others[0].name)
        assert len(whole) >= 3
        flip(tmp_path / damaged.name)
        for number, place in enumerate((0, 5, 91, 4_711, SEGMENT_BYTES - 1)):
            flip(tmp_path / damaged.name, SEGMENT_BYTES * (number % 3), place)
        flip(tmp_path / others[0].name)  # the other one is asked then
        assert read(cluster.endpoints, "readers", until_error=True) == (COUNT, "")
        assert leader_of(cluster) is damaged
        assert full_files(tmp_path / damaged.name) == whole
        same = "what was asked for, and damaged there, too"
        until(lambda: full_files(tmp_path / others[0].name) == whole, same, seconds=120)
        assert figure(damaged, REPAIRED) >= 6
        assert figure(damaged, DAMAGED) == 0
        assert "repaired from copy" in damaged.log_text()


@pytest.mark.slow  # the same with more starts
def test_a_copy_that_is_damaged_at_the_end_of_its_log_repairs_its_folder_at_the_start(tmp_path: Path) -> None:
    with group(tmp_path, **SMALL_FILES) as cluster:
        fill(cluster.endpoints)
        in_sync(cluster, 3)
        follower = next(node for node in cluster.brokers if node is not leader_of(cluster))
        follower.stop()
        folder = tmp_path / follower.name
        names = sorted(path.name for path in (folder / "commitlog").iterdir())
        flip(folder, int(names[-1]), 4_711)
        flip(folder, int(names[-2]), SEGMENT_BYTES // 3)
        follower.restart()
        in_sync(cluster, 3)
        assert "repaired from copy" in follower.log_text()
        assert read(cluster.endpoints, "readers", until_error=True) == (COUNT, "")
