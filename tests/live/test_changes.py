"""A group grows and shrinks, every member and every service is restarted, and a steady stream is read all the while.

Nothing is lost, nothing comes twice, order is kept, and each queue soon has a reader again. Full size is `make live`:
EVENQ_TEST_RATE messages/s, from 3 to EVENQ_TEST_MEMBERS members and down to 2, and queues without a reader for at most
EVENQ_TEST_REST_MS (p99). Here, beside all other tests, the same with less, and times are printed but judged kindly.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from evenq_live.crew import Crew, at99, spread, topic_of_crew
from evenq_live.judging import LOSSES, REPEATS, judge, longest_silence_ms
from evenq_live.process import Process
from evenq_live.sending import Stream
from evenq_proofs.waiting import until

from evenq.testing import LocalCluster
from evenq.testing.node import Node

RATE = int(os.environ.get("EVENQ_TEST_RATE", "300"))
MEMBERS = int(os.environ.get("EVENQ_TEST_MEMBERS", "4"))
REST_MS = int(os.environ.get("EVENQ_TEST_REST_MS", "20000"))
SDK_RATE = int(os.environ.get("EVENQ_TEST_SDK_RATE", "100"))
FULL = MEMBERS > 4
QUEUES, BROKERS = 8, 2
TOPIC, GROUP = "stream", "crew"
PEER = Path(__file__).resolve().parent.parent / "compat" / "python_sdk_peer.py"
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.cluster(own=True, brokers=BROKERS, rebalancers=2, prepare=topic_of_crew(QUEUES)),
]


def now_ms() -> int:
    return int(time.monotonic() * 1_000)


def restart(node: Node) -> None:
    node.stop()
    node.restart()


@pytest.mark.parametrize("ordered", [False, True], ids=["concurrent", "ordered"])
def test_members_and_services_change_and_nobody_who_reads_notices(
    cluster: LocalCluster, tmp_path: Path, ordered: bool
) -> None:
    """RB-37, OC-18, TQ-9: graceful changes lose nothing, repeat nothing and keep order."""
    crew = Crew(
        endpoint=cluster.endpoints,
        topic=TOPIC,
        group=GROUP,
        queues=QUEUES * BROKERS,
        folder=tmp_path,
        ordered=ordered,
    )
    sent = tmp_path / "sender.history.jsonl"
    silences: list[str] = []
    started_ms = now_ms()
    try:
        for _ in range(3):
            crew.join()
        crew.until_even("the first three read all queues")
        result = [f"three members read all queues after {now_ms() - started_ms} ms"]
        with Stream(cluster.endpoint, TOPIC, rate=RATE, history=sent) as stream:
            begun_ms = now_ms()
            while len(crew.members) < MEMBERS:
                crew.join()
                crew.until_even(f"{len(crew.members)} members")
            for name in list(crew.members)[: None if FULL else 1]:
                crew.leave(name)
                crew.until_even("without the member that restarts")
                crew.join()
                crew.until_even("the member is back")
            of_members = crew.rests_since(begun_ms)
            result.append(f"queues without a reader, members change: {spread(of_members)}")
            result.append(f"{MEMBERS - 3} joins, {MEMBERS if FULL else 1} restarts in {now_ms() - begun_ms} ms")
            for node in [*cluster.rebalancers, *cluster.nameservers, *cluster.brokers]:
                at_ms = now_ms()
                restart(node)
                crew.until_even(f"{node.name} is back")
                crew.until(lambda at=stream.sent + RATE: stream.sent > at, "the stream flows", seconds=60)  # type: ignore[misc]  # bound now
                result.append(f"{node.name} restarted in {now_ms() - at_ms} ms: moved queues rested {spread(crew.rests_since(at_ms))}")  # fmt: skip
                silences.append(f"{node.name}|{at_ms}|{now_ms()}")
            shrunk_ms = now_ms()
            while len(crew.members) > 2:
                crew.leave(next(iter(crew.members)))
                crew.until_even(f"{len(crew.members)} members")
            of_members += crew.rests_since(shrunk_ms)
            result.append(f"shrunk in {now_ms() - shrunk_ms} ms")
        crew.until_quiet("all messages are read")
        for name in list(crew.members):
            crew.leave(name)
    finally:
        crew.end()
    for line in silences:
        node, from_ms, to_ms = line.split("|")
        broker = node if node.startswith("broker") else ""
        silence_ms = longest_silence_ms(crew.histories, from_ms=int(from_ms), to_ms=int(to_ms), broker=broker)
        result.append(f"{node} restarted: no message of some queue for {silence_ms} ms")
    report = judge([sent, *crew.histories], folder=tmp_path, group=GROUP, topic=TOPIC, ordered=ordered)
    result.append(f"all changes of members: {spread(of_members)}")
    result.append(
        f"sent {report.sent_ok:,}, delivered {report.delivered:,}, repeats {report.repeats}, sends without an answer "
        f"{stream.unclear}"
    )
    print("\n" + "\n".join(result))
    assert sum(report.counts[kind] for kind in LOSSES) == 0, str(report)
    assert sum(report.counts[kind] for kind in REPEATS) == 0, str(report)
    assert report.ok, str(report)
    assert report.repeats == 0, str(report)
    assert at99(of_members) <= REST_MS, f"{spread(of_members)}, the limit is {REST_MS} ms"


class Sdks:
    """Push consumers of the official Python SDK, each in a process."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self.running: list[Process] = []
        self.got: Counter[int] = Counter()
        self._said: Counter[str] = Counter()
        self._endpoint, self._folder, self._count = endpoint, folder, 0

    def join(self) -> None:
        self._count += 1
        name = f"sdk{self._count:02}"
        command = [str(PEER), "push", self._endpoint, TOPIC, GROUP]
        self.running.append(Process(name, command, folder=self._folder, heard=self._hear))
        until(lambda: self._said[f"{name} ready"] > 0, f"{name} has started")

    def leave(self) -> None:
        member = self.running.pop(0)
        member.say("stop")
        until(lambda: self._said[f"{member.name} done"] > 0, f"{member.name} has left")
        member.kill()

    def kill(self) -> None:
        self.running.pop(0).kill()

    def end(self) -> None:
        for member in self.running:
            member.kill()

    def _hear(self, name: str, report: dict[str, Any]) -> None:
        if "got" in report:
            self.got[report["got"]] += 1
        for word in ("ready", "done"):
            self._said[f"{name} {word}"] += word in report


@pytest.mark.timeout(1_800)
def test_official_python_consumers_come_and_go_and_miss_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    """The protocol of the SDK is at least once: what it had in hand when it was asked to stop may come again."""
    sdks = Sdks(cluster.endpoint, tmp_path)
    try:
        for _ in range(3 if FULL else 2):
            sdks.join()
        with Stream(cluster.endpoint, TOPIC, rate=SDK_RATE, history=tmp_path / "sender.history.jsonl") as stream:
            while len(sdks.running) < (MEMBERS if FULL else 3):
                sdks.join()
            for _ in range(MEMBERS if FULL else 1):
                sdks.leave()
                sdks.join()
            for node in [*cluster.rebalancers, *cluster.nameservers, *cluster.brokers]:
                restart(node)
                goal = len(sdks.got) + SDK_RATE
                until(lambda goal=goal: len(sdks.got) > goal, f"messages come after {node.name} was restarted")  # type: ignore[misc]  # bound now
            while len(sdks.running) > 2:
                sdks.leave()
        while len(sdks.got) < stream.sent:  # two members work off what was too much for all
            goal = min(stream.sent, len(sdks.got) + SDK_RATE)
            until(lambda goal=goal: len(sdks.got) >= goal, "more messages come", seconds=90)  # type: ignore[misc]  # bound now
    finally:
        sdks.end()
    repeats = sdks.got.total() - len(sdks.got)
    print(f"\nofficial Python SDK: {stream.sent:,} sent, {len(sdks.got):,} different ones delivered, {repeats} repeats")
    assert sorted(sdks.got) == list(range(stream.sent))
