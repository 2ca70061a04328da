"""The official Python SDK (`rocketmq-python-client`), unmodified, each client in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenq.testing import LocalCluster

PEER = Path(__file__).with_name("python_sdk_peer.py")
pytestmark = pytest.mark.timeout(180)


class Peer:
    """One client process and what it said."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.said: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._log = (folder / f"peer-{arguments[0]}-{id(self)}.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self._changed:
                    self.said.append(json.loads(line))
                    self._changed.notify_all()

    def wait(self, ready: Callable[[list[dict[str, Any]]], bool], *, seconds: float = 60) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: ready(self.said), seconds), (
                f"only {self.said[-5:]}; see {self._log.name}"
            )

    def wait_done(self, *, seconds: float = 60) -> None:
        self.wait(lambda said: any("done" in s for s in said), seconds=seconds)

    def numbers(self, key: str = "got") -> list[int]:
        with self._changed:
            return [s[key] for s in self.said if key in s]

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("stop\n")
        self.process.stdin.flush()
        self.wait_done()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {
        "AUTO_CREATE_TOPICS": "true",
        "AUTO_CREATE_GROUPS": "true",
        "DEFAULT_QUEUES": "4",
        "DEFAULT_START_FROM": "FIRST",
    }
    with LocalCluster(brokers=2, folder=tmp_path_factory.mktemp("cluster"), broker_settings=settings) as running:
        yield running


@pytest.fixture
def peer(tmp_path: Path, cluster: LocalCluster) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(what: str, *arguments: object) -> Peer:
        peers.append(Peer(tmp_path, what, cluster.endpoint, *map(str, arguments)))
        return peers[-1]

    yield start
    for one in peers:
        one.end()


def test_a_producer_sends_and_a_simple_consumer_takes_what_its_tag_asks_for(peer: Callable[..., Peer]) -> None:
    producer = peer("produce", "compat-simple", 0, 60)
    producer.wait_done()
    receipts = [s["id"] for s in producer.said if "id" in s]
    assert len(receipts) == 60
    assert len(set(receipts)) == 60

    consumer = peer("simple", "compat-simple", "compat-even", "even", 30)
    consumer.wait_done()
    assert sorted(consumer.numbers()) == list(range(0, 60, 2))
    assert {s["tag"] for s in consumer.said if "got" in s} == {"even"}
    assert all(
        s["body"] == f"body-{s['got']}" and s["keys"] == [f"key-{s['got']}"] for s in consumer.said if "got" in s
    )
    assert all(s["attempt"] == 1 for s in consumer.said if "got" in s)


def test_a_simple_consumer_gets_a_message_again_after_its_changed_invisible_time(peer: Callable[..., Peer]) -> None:
    peer("produce", "compat-nack", 1, 1).wait_done()
    consumer = peer("nack", "compat-nack", "compat-nack-group")
    consumer.wait_done()
    first, second = (s for s in consumer.said if "got" in s)
    assert (first["got"], first["attempt"]) == (1, 1)
    assert (second["got"], second["attempt"]) == (1, 2)
    assert 0.9 <= second["after_s"] <= 6, "polls of the other broker may come between, a second each"


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(
    cluster: LocalCluster, peer: Callable[..., Peer]
) -> None:
    command = ["topic", "create", "compat-delay", "--type", "DELAY", "--endpoint", cluster.endpoint]
    subprocess.run([sys.executable, "-m", "evenq.cli", *command], check=True, capture_output=True)
    client = peer("delay", "compat-delay", "compat-delay-group")
    client.wait_done()
    assert client.numbers("recalled") == [True]
    assert sorted(client.numbers()) == [0, 2]
    assert client.numbers("left") == [0]
    late = [s["after_due_s"] for s in client.said if "got" in s]
    assert all(0 <= seconds < 30 for seconds in late), late


def test_push_consumers_share_a_topic_two_members_then_three(peer: Callable[..., Peer]) -> None:
    members = [peer("push", "compat-push", "compat-push-group") for _ in range(2)]
    for member in members:
        member.wait(lambda said: any("ready" in s for s in said))
    peer("produce", "compat-push", 0, 300).wait_done()
    wait_for_all(members, set(range(300)))

    members.append(peer("push", "compat-push", "compat-push-group"))
    members[2].wait(lambda said: any("ready" in s for s in said))
    members[2].wait(lambda _: True)
    for batch in range(1, 6):  # the newcomer's first assignment scan comes within seconds of its start
        peer("produce", "compat-push", batch * 300, 300).wait_done()
        wait_for_all(members, set(range((batch + 1) * 300)))
        if members[2].numbers():
            break
    assert members[2].numbers(), "the third member never got anything"
    times = Counter(number for member in members for number in member.numbers())
    assert set(times.values()) == {1}, "nothing is delivered twice while nobody fails"
    for member in members:
        member.stop()
    # an idle push consumer waits for its open poll before it says good-bye (wire contract 10), at most 15 s + its own margin
    assert all(s["shutdown_s"] < 25 for member in members for s in member.said if "done" in s)


def test_a_failed_message_comes_again_with_its_attempt_counted(peer: Callable[..., Peer]) -> None:
    consumer = peer("push", "compat-retry", "compat-retry-group", "fail-first")
    consumer.wait(lambda said: any("ready" in s for s in said))
    peer("produce", "compat-retry", 7, 1).wait_done()
    consumer.wait(lambda said: any(s.get("got") == 7 for s in said))
    assert [s["attempt"] for s in consumer.said if s.get("failed") == 7] == [1]
    assert [s["attempt"] for s in consumer.said if s.get("got") == 7] == [2]
    consumer.stop()


def wait_for_all(members: list[Peer], wanted: set[int], *, seconds: float = 60) -> None:
    waited = threading.Event()
    for _ in range(int(seconds * 20)):
        if {number for member in members for number in member.numbers()} >= wanted:
            return
        waited.wait(0.05)
    got = {number for member in members for number in member.numbers()}
    raise AssertionError(f"{len(wanted - got)} of {len(wanted)} never came, for example {sorted(wanted - got)[:5]}")
