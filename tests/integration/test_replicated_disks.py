"""Disks of copies that are full, broken or slow: a group of real processes on file systems that really are.

Small volumes are tmpfs; a disk that fails is ext4 on a loop device whose backing volume is full, so the kernel answers a
sync with EIO. Both need root, and are skipped without; what a limit of the system can do (RLIMIT_FSIZE) needs none.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.replicated_group import events, figure, group, in_sync, leader_of, readiness
from evenq_proofs.waiting import until
from evenq_proofs.whole_runs import skip_or_fail

import evenq
from evenq.cli.__main__ import main
from evenq.errors import Error
from evenq.testing import LocalCluster
from evenq.testing.node import Node

pytestmark = [pytest.mark.timeout(BUILD_SECONDS + 300), pytest.mark.slow]

MIB = 1 << 20
TOPIC, NAME = "flights", "broker-a"
LONG_S = 60.0
BODY = b"x" * 4_000
TO_THE_LAST_BYTE = {
    "STORE__SEGMENT_BYTES": str(MIB), "STORE__DISK_USED_MAX_RATIO": "1", "STORE__DISK_FREE_MIN_BYTES": "0",
}  # fmt: skip


def run_or_skip(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip_or_fail(f"no file system can be mounted here ({done.stderr.strip()}): run as root")


@contextmanager
def mounted(folder: Path, *options: str | Path) -> Iterator[Path]:
    """A file system at `folder` as long as the context lasts."""
    folder.mkdir(parents=True)
    run_or_skip("mount", *options, folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


def small_volume(folder: Path, size_mib: int = 24) -> ExitStack:
    """A tmpfs; its end is the stack's."""
    stack = ExitStack()
    stack.enter_context(mounted(folder, "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs"))
    return stack


@contextmanager
def two_small_disks(folder: Path, **settings: str) -> Iterator[LocalCluster]:
    """Three copies, of which the first two have disks of their own; a leader keeps 4 MiB of its disk free."""
    with ExitStack() as stack:
        for number in (0, 1):
            stack.enter_context(small_volume(folder / f"{NAME}-{number}"))
        reserve = {"STORE__DISK_FREE_MIN_BYTES": str(4 * MIB)}
        yield stack.enter_context(group(folder, **{**TO_THE_LAST_BYTE, **reserve, **settings}))


def fill(folder: Path, *, but_bytes: int = 0) -> Path:
    """A file that takes all there is, but for some bytes."""
    ballast = folder / "ballast"
    usage = os.statvfs(folder)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize - but_bytes)
    return ballast


def copy_of(cluster: LocalCluster, number: int) -> Node:
    return next(node for node in cluster.brokers if node.name == f"{NAME}-{number}")


def send(cluster: LocalCluster, count: int, *, begin: int = 0) -> list[str]:
    """Messages that were acknowledged: all of them."""
    options = evenq.ProducerOptions(send_timeout_ms=int(LONG_S * 1_000))
    names = [f"{number}|" for number in range(begin, begin + count)]
    with evenq.Producer(endpoint=cluster.endpoints, options=options) as producer:
        for name in names:
            producer.send(evenq.Message(topic=TOPIC, body=name.encode() + BODY))
    return names


def received(cluster: LocalCluster, count: int) -> list[str]:
    """The names of all messages."""
    names: list[str] = []
    with evenq.SimpleConsumer(
        group="readers", subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, start_from="FIRST"
    ) as consumer:
        end = time.monotonic() + LONG_S
        while len(set(names)) < count and time.monotonic() < end:
            for message in consumer.receive(64, invisible_ms=60_000, wait_ms=1_000):
                names.append(message.body.decode().partition("|")[0] + "|")
                consumer.ack(message)
    return names


def test_a_copy_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """D9, R7, R8, decision 85: without a follower that has no room writes go on. A leader refuses messages and leads on,
    and an operator moves the lead where leaders do not by themselves.
    """
    with two_small_disks(tmp_path, REPLICATION__RELIEF_MS="0") as cluster:
        leader, follower = copy_of(cluster, 0), copy_of(cluster, 1)
        sent = send(cluster, 20)
        in_sync(cluster, 3)
        assert leader_of(cluster) is leader, "the lowest id founds"

        ballast = fill(tmp_path / follower.name)
        sent += send(cluster, 100, begin=20)
        until(lambda: figure(leader, "evenq_broker_replicas_in_sync") == 2)
        until(lambda: figure(follower, "evenq_store_disk_free_bytes") == 0)
        assert "no space left on the broker's disk" in readiness(follower)
        time.sleep(2)  # some tries more, each of which was a line once
        sent += send(cluster, 20, begin=120)
        (line,) = events(follower, "are not copied")
        assert "free space" in line
        assert "in sync again when it has everything" in line
        ballast.unlink()
        in_sync(cluster, 3)
        assert len(events(follower, "are copied again")) == 1
        until(lambda: readiness(follower) == "ready\n")

        ballast = fill(tmp_path / leader.name, but_bytes=2 * MIB)
        until(lambda: "move-leader" in readiness(leader), lambda: readiness(leader))
        (line,) = events(leader, "move-leader")
        assert f"`evenq broker move-leader {NAME}`" in line
        with (
            evenq.Producer(endpoint=leader.address, options=evenq.ProducerOptions(max_attempts=1)) as producer,
            pytest.raises(Error, match="free space or lower disk_free_min_bytes"),
        ):
            producer.send(evenq.Message(topic=TOPIC, body=BODY))
        assert set(received(cluster, len(sent))) == set(sent), "reads and acknowledgements go on"
        move = ["broker", "move-leader", NAME, "--to", "1", "--endpoint", cluster.endpoints]
        assert main(move) == 0, capsys.readouterr()
        sent += send(cluster, 20, begin=140)
        assert leader_of(cluster) is follower, "it has everything again"
        ballast.unlink()
        in_sync(cluster, 3)


def test_a_leader_whose_disk_is_full_lets_a_copy_with_room_lead_if_enough_copies_have_room(tmp_path: Path) -> None:
    """R22, decision 86. With too few it leads on: copies without room would soon be out of sync, and then not even
    acknowledgements were taken.
    """
    with two_small_disks(tmp_path, REPLICATION__RELIEF_MS="1000") as cluster:
        leader, follower = copy_of(cluster, 0), copy_of(cluster, 1)
        sent = send(cluster, 20)
        in_sync(cluster, 3)
        assert leader_of(cluster) is leader, "the lowest id founds"

        ballast = fill(tmp_path / follower.name, but_bytes=6 * MIB)
        until(lambda: 0 < figure(follower, "evenq_store_disk_free_bytes") < 8 * MIB)
        time.sleep(2)  # it says so to its leader once a second
        filled = fill(tmp_path / leader.name, but_bytes=2 * MIB)
        until(lambda: "move-leader" in readiness(leader), lambda: readiness(leader))
        assert set(received(cluster, len(sent))) == set(sent)
        time.sleep(3)
        assert events(leader, "is nominated to lead") == [], "one copy that has room, and two are needed"

        ballast.unlink()
        until(lambda: events(leader, "is nominated to lead"), leader.log_text)
        until(lambda: figure(leader, "evenq_broker_replica_role", 'role="fetching"') == 1, leader.log_text)
        sent += send(cluster, 20, begin=20)
        in_sync(cluster, 3)
        (line,) = events(leader, "is nominated to lead")
        assert line.startswith(f"replica {NAME}: this leader's disk has no space for messages, copy ")
        time.sleep(3)
        assert not any(events(node, "is nominated to lead") for node in cluster.brokers if node is not leader), (
            "no round"
        )
        assert set(received(cluster, 20)) >= set(sent[20:])
        filled.unlink()


@contextmanager
def failing_disk(folder: Path) -> Iterator[Path]:
    """A disk of 96 MiB, of which every write fails (EIO) once the volume that it yields is full."""
    with mounted(folder.with_name("backing"), "-t", "tmpfs", "-o", "size=24m", "tmpfs") as backing:
        image = backing / "image"
        run_or_skip("truncate", "-s", "96M", image)
        run_or_skip("mkfs.ext4", "-q", "-F", "-m", "0", image)
        with mounted(folder, "-o", "loop", image):
            yield backing


@pytest.mark.spec("HA-2", "HA-6")
@pytest.mark.parametrize("how", ["a sync fails", "a write fails"])
def test_a_leader_whose_disk_fails_ends_and_another_copy_leads(tmp_path: Path, how: str) -> None:
    """D9: it acknowledges nothing more, and nothing that was acknowledged is lost."""
    with ExitStack() as stack:
        backing = stack.enter_context(failing_disk(tmp_path / f"{NAME}-0")) if how == "a sync fails" else None
        cluster = stack.enter_context(group(tmp_path, **TO_THE_LAST_BYTE))
        sent = send(cluster, 20)
        in_sync(cluster, 3)
        leader = leader_of(cluster)
        assert leader is copy_of(cluster, 0), "its disk is the one that fails"
        if backing is not None:
            fill(backing)
        else:
            assert leader.pid is not None
            size = max(path.stat().st_size for path in (tmp_path / leader.name / "commitlog").iterdir())
            resource.prlimit(leader.pid, resource.RLIMIT_FSIZE, (size + 2_000, size + 2_000))
        sent += send(cluster, 100, begin=20)
        until(lambda: not leader.alive, leader.log_text)
        assert leader.exit_code == 1
        last = leader.log_text().splitlines()[-1]
        assert last.startswith("evenq-broker: copy 0 of broker-a ends: ")
        assert ("Input/output error" if how == "a sync fails" else "File too large") in last
        assert "start this copy on another one with an empty folder" in last
        assert "Traceback" not in leader.log_text()
        assert leader_of(cluster) is not leader
        assert set(received(cluster, len(sent))) == set(sent)
        if backing is None:
            leader.restart()
            in_sync(cluster, 3)
        else:
            leader.start()
            until(lambda: not leader.alive, leader.log_text)
            last = leader.log_text().splitlines()[-1]
            assert "cannot be used (Read-only file system)" in last, "what the kernel made of the file system"
            assert "start this copy on another one with an empty folder" in last


def test_a_follower_whose_disk_is_slower_than_the_limit_holds_up_writes_no_longer_than_that(tmp_path: Path) -> None:
    """R7: each of its syncs takes two seconds, `lag_ms` is one: it is out of the set for most of the time."""
    with group(tmp_path) as cluster:
        send(cluster, 20)
        in_sync(cluster, 3)
        slow = next(node for node in cluster.brokers if node is not leader_of(cluster))
        slow.stop()
        slow.environment["EVENQ_FAILPOINT"] = "log.before_sync:1+:sleep=2000"
        slow.start()
        until(lambda: events(slow, "fetching, was truncating", since=0))
        begun = time.monotonic()
        sent = send(cluster, 200, begin=20)
        assert time.monotonic() - begun < LONG_S, "200 of its syncs would take 400 s"
        assert set(received(cluster, 220)) >= set(sent)
