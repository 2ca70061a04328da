"""Bad disks, folders and offsets against a real broker: one sentence with the fix and a sensible exit code, nothing lost.

The first half fills a small disk under a broker that serves on. The second starts brokers on folders that they must
refuse, and asks for offsets that are not there, on both wires. test_bad_input.py has the other kinds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.v2_requests import ack_request, receive_request, v2_message
from evenq_proofs.whole_runs import skip_or_fail

from evenq.errors import ConnectionFailed, RequestTimeout
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, data_pb2

V2, DATA, ADMIN = "/apache.rocketmq.v2.MessagingService/", "/evenq.v1.Data/", "/evenq.v1.Admin/"
OK, TOO_MANY, ILLEGAL_OFFSET = 20000, definition_pb2.TOO_MANY_REQUESTS, definition_pb2.ILLEGAL_OFFSET
MIB = 1 << 20
DEADLINE_S = 60
RESUME_MS_MAX = 30_000
BLOCK = b"x" * 30_000


class Wires:
    """Both wires of one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.net = GrpcNet()

    async def call(self, method: str, request: Any, response: Any) -> Any:
        headers = {"x-mq-client-id": "stranger", "x-mq-language": "JAVA"}
        data = request.SerializeToString()
        return response.FromString(
            await self.net.unary(self.address, method, data, timeout_ms=60_000, metadata=headers)
        )

    async def stream(self, method: str, request: Any, response: Any) -> list[Any]:
        headers = {"x-mq-client-id": "stranger"}
        data = request.SerializeToString()
        frames = self.net.stream(self.address, method, data, timeout_ms=60_000, metadata=headers)
        return [response.FromString(frame) async for frame in frames]

    async def create(self, topic: str, group: str) -> None:
        request = admin_pb2.CreateTopicRequest(topic=topic, queues=1)
        assert (await self.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse)).status.code == OK
        made = admin_pb2.CreateGroupRequest(group=group, start_from="FIRST")
        assert (await self.call(ADMIN + "CreateGroup", made, admin_pb2.CreateGroupResponse)).status.code == OK

    async def send(self, body: bytes) -> Any:
        """SendMessage's status."""
        request = service_pb2.SendMessageRequest(messages=[message(body)])
        return (await self.call(V2 + "SendMessage", request, service_pb2.SendMessageResponse)).status

    async def publish(self, body: bytes) -> Any:
        """Publish's status."""
        request = data_pb2.PublishRequest(messages=[message(body)])
        request.queue.topic, request.queue.queue_id = "t", -1
        return (await self.call(DATA + "Publish", request, data_pb2.PublishResponse)).status

    async def pull(self, offset: int) -> Any:
        request = data_pb2.PullRequest(offset=offset, batch_max=1_000, committed=-1)
        request.queue.topic = "t"
        return await self.call(DATA + "Pull", request, data_pb2.PullResponse)

    async def bodies(self) -> list[bytes]:
        found: list[bytes] = []
        while True:
            page = await self.pull(len(found))
            found += [one.body for one in page.messages]
            if page.status.code != OK or page.next_offset >= page.max_offset:
                return found

    async def receive(self, count: int) -> list[Any]:
        request = receive_request("g", "t", queue=-1, poll_ms=0, invisible_ms=60_000, tags="*", batch_size=count)
        frames = await self.stream(V2 + "ReceiveMessage", request, service_pb2.ReceiveMessageResponse)
        return [frame.message for frame in frames if frame.HasField("message")]

    async def ack(self, messages: list[Any]) -> list[int]:
        request = ack_request("g", "t")
        for one in messages:
            request.entries.add(message_id="id", receipt_handle=one.system_properties.receipt_handle)
        answer = await self.call(V2 + "AckMessage", request, service_pb2.AckMessageResponse)
        return [entry.status.code for entry in answer.entries]


def message(body: bytes) -> definition_pb2.Message:
    return v2_message("t", f"01{os.urandom(16).hex().upper()}", body, message_type=definition_pb2.NORMAL)


def play(address: str, story: Callable[[Wires], Coroutine[Any, Any, Any]]) -> Any:
    async def body() -> Any:
        wires = Wires(address)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await story(wires)
        finally:
            await wires.net.close()

    return asyncio.run(body())


def alone(folder: Path, **settings: str) -> LocalCluster:
    return LocalCluster(
        nameservers=0, rebalancer=False, folder=folder, broker_settings={"STORE__DISK_FREE_MIN_BYTES": "0", **settings}
    )


def mount(folder: Path, *options: str) -> None:
    """A tmpfs; skips the test where nothing can be mounted, or fails it in CI."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        skip_or_fail(f"nothing can be mounted here: {done.stderr.strip()}")


def umount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


# ------------------------------------------------------------------------------------------------ a full disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB with 8 MiB of ballast on it."""
    disk = tmp_path / "disk"
    mount(disk, "-o", "size=24m")
    try:
        (disk / "ballast").write_bytes(b"\0" * (8 * MIB))
        yield disk
    finally:
        umount(disk)


@pytest.mark.parametrize("flush", ["async", pytest.param("sync", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "free_min_bytes", [0, pytest.param(4 * MIB, marks=pytest.mark.slow)], ids=["to the last byte", "to the reserve"]
)
@pytest.mark.slow
def test_a_full_disk_stops_sends_only_and_they_resume_within_5_s_of_space(
    small: Path, flush: str, free_min_bytes: int
) -> None:
    settings = {
        "STORE__PATH": str(small / "data"), "STORE__SEGMENT_BYTES": str(MIB), "STORE__FLUSH": flush,
        "STORE__CACHE_BYTES": "0", "STORE__DISK_USED_MAX_RATIO": "1", "STORE__DISK_FREE_MIN_BYTES": str(free_min_bytes),
    }  # fmt: skip
    clock = SystemClock()
    done: set[int] = set()

    async def fill(wires: Wires) -> list[bytes]:
        await wires.create("t", "g")
        sent: list[bytes] = []
        while True:
            body = b"%d|" % len(sent) + BLOCK
            status = await (wires.send if len(sent) % 2 else wires.publish)(body)
            if status.code != OK:
                break
            sent.append(body)
        for refusal in (status, await wires.send(BLOCK), await wires.publish(BLOCK)):
            assert refusal.code == TOO_MANY, refusal
            assert re.search(r"disk.*free space", refusal.message), refusal.message
            assert str(small) not in refusal.message
        for _ in range(3):  # receives and acks go on, into the reserve where there is one
            got = await wires.receive(8)
            assert len(got) == 8
            if free_min_bytes:
                assert await wires.ack(got) == [OK] * 8
                done.update(one.system_properties.queue_offset for one in got)
        assert await wires.bodies() == sent
        return sent

    async def resumed_after_ms(wires: Wires) -> int:
        begun_ms = clock.monotonic_ms()
        async with asyncio.timeout(60):
            while (await wires.send(b"resumed")).code != OK:
                await clock.sleep_ms(20)
        return clock.monotonic_ms() - begun_ms

    with alone(small.parent / "cluster", **settings) as cluster:
        node = cluster.brokers[0]
        sent = play(cluster.endpoint, fill)
        assert len(sent) > 100
        (small / "ballast").unlink()
        assert play(cluster.endpoint, resumed_after_ms) <= RESUME_MS_MAX
        node.kill()
        node.restart()
        assert play(cluster.endpoint, Wires.bodies) == [*sent, b"resumed"]
        again = {one.system_properties.queue_offset for one in play(cluster.endpoint, lambda wires: wires.receive(32))}
        assert not again & done, "acks survived"
        assert "Traceback" not in node.log_text()


@pytest.mark.slow
def test_a_broker_starts_on_a_full_disk_serves_reads_and_takes_sends_when_there_is_space(small: Path) -> None:
    settings = {
        "STORE__PATH": str(small / "data"), "STORE__SEGMENT_BYTES": str(MIB), "STORE__DISK_USED_MAX_RATIO": "1",
        "STORE__DISK_FREE_MIN_BYTES": str(MIB),
    }  # fmt: skip

    async def begin(wires: Wires) -> None:
        await wires.create("t", "g")
        assert (await wires.send(b"first")).code == OK

    async def refused_then_taken(wires: Wires) -> None:
        assert await wires.bodies() == [b"first"]
        assert (await wires.send(b"second")).code == TOO_MANY
        (small / "ballast").unlink()
        async with asyncio.timeout(60):
            while (await wires.send(b"second")).code != OK:
                await SystemClock().sleep_ms(20)

    with alone(small.parent / "cluster", **settings) as cluster:
        node = cluster.brokers[0]
        play(cluster.endpoint, begin)
        node.kill()
        usage = os.statvfs(small)
        with (small / "ballast").open("ab") as file:
            file.write(b"\0" * (usage.f_bavail * usage.f_frsize - 512 * 1024))
        starts = node.log_text().count("broker serves")
        node.start()
        for _ in range(40):  # it never gets ready, so its log tells that it is there
            with pytest.raises(RequestTimeout, match="not ready"):
                node.wait_ready(timeout_ms=500)
            if node.log_text().count("broker serves") > starts:
                break
        play(cluster.endpoint, refused_then_taken)
        node.wait_ready(timeout_ms=60_000)
        assert "Traceback" not in node.log_text()


# ------------------------------------------------------------------------------------------------ folders


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a broker that was stopped in order, with a message in it."""
    folder = tmp_path_factory.mktemp("stopped")
    with alone(folder) as cluster:

        async def story(wires: Wires) -> None:
            await wires.create("t", "g")
            assert (await wires.send(b"kept")).code == OK

        play(cluster.endpoint, story)
    return folder / "broker-a"


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def refusal_of(folder: Path, *flags: str, before: tuple[str, ...] = ()) -> str:
    """Start a broker that must end by itself with 1; the one sentence that it says."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("EVENQ_")}
    command = [*before, sys.executable, "-m", "evenq_broker", "--port=0", "--metrics-port=-1", f"--store.path={folder}"]
    done = subprocess.run(
        [*command, *flags], env=inherited, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("evenq-broker: ")
    assert str(folder) in line
    return line


def tree(folder: Path) -> dict[str, bytes]:
    """What is in a folder, but for the file that holds its owner's pid."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"
    }  # fmt: skip


@pytest.mark.slow
def test_a_read_only_disk_is_refused_with_what_to_check(data: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    mount(disk)
    try:
        shutil.copytree(data, disk / "data")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        line = refusal_of(disk / "data")
        assert "cannot be written (Read-only file system)" in line
        assert "check its owner, mode and mount" in line
        assert "cannot be created (Read-only file system)" in refusal_of(disk / "new")
    finally:
        umount(disk)


@pytest.mark.slow
def test_a_folder_of_another_user_is_refused_with_what_to_check(data: Path) -> None:
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root may write anywhere; without its override it is a user like any other
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            skip_or_fail("setpriv (util-linux) is not there to give up root's rights")
        before = (setpriv, "--bounding-set=-dac_override,-dac_read_search")
        os.chown(data, 65_534, 65_534)
        data.chmod(0o755)
    else:
        data.chmod(0o555)
    try:
        (data / "lock").unlink(missing_ok=True) if os.geteuid() == 0 else None
        line = refusal_of(data, before=before)
        assert "cannot be written (Permission denied)" in line
        assert "check its owner, mode and mount" in line
        data.chmod(0o700 if os.geteuid() == 0 else 0o000)
        assert "Permission denied" in refusal_of(data, before=before)
        assert "cannot be created (Permission denied)" in refusal_of(data / "new", before=before)
    finally:
        data.chmod(0o755)


@pytest.mark.slow
def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    with alone(tmp_path) as cluster:
        node = cluster.brokers[0]
        line = refusal_of(tmp_path / node.name)
        assert f"is in use by process {node.pid}: stop that broker, or give this one its own" in line
        assert node.alive
        node.kill()
        node.restart()  # what is left of a killed owner locks no process out


def test_the_folder_of_another_broker_is_left_as_it_is(data: Path) -> None:
    before = tree(data)
    line = refusal_of(data, "--broker-name=broker-z")
    assert "belongs to broker 'broker-a', this one is 'broker-z': use the same name or another folder" in line
    assert tree(data) == before


def test_a_format_of_the_future_is_refused_and_left_as_it_is(data: Path) -> None:
    identity = data / "identity"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": 99}))
    before = tree(data)
    line = refusal_of(data)
    assert "has format 99; this program reads format 1: start a newer program" in line
    assert tree(data) == before


def test_an_identity_that_is_damaged_or_gone_is_refused(data: Path) -> None:
    (data / "identity").write_bytes(b"{")
    assert re.search(r"identity does not parse \(.*\): restore it from a copy", refusal_of(data))
    (data / "identity").unlink()
    assert "identity is missing beside a commit log: restore it, or start with an empty folder" in refusal_of(data)


def test_a_foreign_file_among_the_logs_is_named(data: Path) -> None:
    (data / "commitlog" / "notes.txt").write_text("hello")
    line = refusal_of(data)
    assert "commitlog/notes.txt is not a commit-log file" in line
    assert "move it elsewhere" in line


def test_a_missing_file_in_the_middle_of_the_log_is_named(data: Path) -> None:
    (first,) = (data / "commitlog").iterdir()
    size = json.loads((data / "identity").read_text())["segment_bytes"]
    (data / "commitlog" / f"{2 * size:020d}").write_bytes(first.read_bytes()[:100])
    assert f"{size:020d} is missing in the middle of the log; restore it from a copy" in refusal_of(data)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "cannot be written (Not a directory)" in refusal_of(tmp_path / "data")


# ------------------------------------------------------------------------------------------------ offsets


def test_offsets_below_the_minimum_and_above_the_maximum_are_told_the_range_on_both_wires(tmp_path: Path) -> None:
    async def story(wires: Wires) -> None:
        await wires.create("t", "g")
        for number in range(5):
            assert (await wires.send(b"%d" % number)).code == OK
        for offset in (-1, -(1 << 62), 6, 1 << 62):
            asked = service_pb2.PullMessageRequest(offset=offset, batch_size=10)
            asked.group.name, asked.message_queue.topic.name = "g", "t"
            asked.filter_expression.type, asked.filter_expression.expression = definition_pb2.TAG, "*"
            scan = data_pb2.ScanRequest(start=offset, end=1 << 62)
            scan.queue.topic = "t"
            frames = await wires.stream(V2 + "PullMessage", asked, service_pb2.PullMessageResponse)
            blocks = await wires.stream(DATA + "Scan", scan, data_pb2.ScanBlock)
            pulled = await wires.pull(offset)
            for status in (frames[-1].status if len(frames) == 1 else frames[0].status, pulled.status):
                assert status.code == ILLEGAL_OFFSET, (offset, status)
                assert f"offset {offset} is outside " in status.message
                assert " 0 to 5" in status.message
            assert (pulled.min_offset, pulled.max_offset) == (0, 5)
            assert pulled.next_offset == (0 if offset < 0 else 5)
            if offset < 0:
                assert blocks[0].status.code == ILLEGAL_OFFSET
            assert not any(block.messages for block in blocks)
            commit = data_pb2.CommitOffsetsRequest(group="g")
            result = commit.offsets.add(offset=offset)
            result.queue.topic = "t"
            answer = await wires.call(DATA + "CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
            assert answer.status.code == ILLEGAL_OFFSET
        assert (await wires.pull(5)).status.code == definition_pb2.MESSAGE_NOT_FOUND
        assert [one.body for one in (await wires.pull(4)).messages] == [b"4"]

    with alone(tmp_path) as cluster:
        play(cluster.endpoint, story)
        assert "Traceback" not in cluster.brokers[0].log_text()


def test_a_damaged_refusal_names_the_folder_that_the_cluster_reports(data: Path) -> None:
    """The same through `LocalCluster`, which shows the end of the log to the caller that waits for the broker."""
    (data / "identity").write_bytes(b"{")
    cluster = alone(data.parent / "cluster", STORE__PATH=str(data))
    with pytest.raises(ConnectionFailed, match="does not parse"):
        cluster.start()
