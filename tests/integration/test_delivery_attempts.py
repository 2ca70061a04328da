"""A message that kills the process of its consumer, with real processes and kill -9 of consumers and brokers: it is
delivered as often as its group allows and then dead, and it takes no other message along.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evenq
from evenq.testing.local_cluster import LocalCluster

CONSUMER = """
import asyncio, os, signal, sys
import evenq, evenq.aio

face, endpoint, topic, group, ordered, path = sys.argv[1:]
kept = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(messages):
    for message in messages:
        os.write(kept, b"%s %d\\n" % (message.body, message.delivery_attempt))
        if message.body == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)

async def anote(messages):
    note(messages)

options = dict(
    group=group, subscriptions={topic: "*"}, endpoint=endpoint, start_from="FIRST", ordered=ordered == "yes",
    options=evenq.PushOptions(commit_interval_ms=200, suspend_ms=100),
)

async def run():
    async with evenq.aio.PushConsumer(listener=anote, **options):
        await asyncio.Event().wait()

if face == "async":
    asyncio.run(run())
with evenq.PushConsumer(listener=note, **options):
    signal.pause()
"""


class Consumers:
    """Processes one after another; what their listeners got is in a file."""

    def __init__(self, *given: str, path: Path) -> None:
        self.told, self.path = given, path
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", CONSUMER, *self.told, str(self.path)])

    def died(self, *, seconds: float) -> bool:
        """False if the message did not kill it in that time."""
        assert self.process is not None
        try:
            return self.process.wait(seconds) == -9
        except subprocess.TimeoutExpired:
            return False

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, 9)
            self.process.wait(60)

    def seen(self) -> list[tuple[str, int]]:
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return [(body, int(number)) for body, number in (line.split() for line in lines)]


@pytest.mark.parametrize(
    ("face", "ordered"),
    [
        ("sync", "no"),
        *(pytest.param(*kind, marks=pytest.mark.slow) for kind in (("sync", "yes"), ("async", "no"), ("async", "yes"))),
    ],
)
@pytest.mark.slow
def test_a_message_that_kills_its_process_ends_as_a_dead_letter_and_no_other_does(
    tmp_path: Path, face: str, ordered: str
) -> None:
    """RD-3, OC-16: three processes die, the broker is killed between two of them, the fourth one goes on."""
    with LocalCluster(brokers=1) as cluster, evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("t", queues=1)
        admin.create_group("g", max_attempts=3, ordered=ordered == "yes")
        bodies = [f"m{number}" for number in range(20)]
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            for body in [*bodies[:7], "poison", *bodies[7:]]:
                producer.send(evenq.Message(topic="t", body=body.encode()))
        consumers = Consumers(face, cluster.endpoint, "t", "g", ordered, path=tmp_path / "seen")
        try:
            for life in range(3):
                consumers.start()
                assert consumers.died(seconds=60), f"life {life}: {consumers.seen()}"
                if life == 1:
                    cluster.brokers[0].kill()
                    cluster.brokers[0].restart()
            consumers.start()
            deadline = time.monotonic() + 60
            while {body for body, _ in consumers.seen()} != {*bodies, "poison"} or not dead(cluster.endpoint):
                assert time.monotonic() < deadline, consumers.seen()
                time.sleep(0.1)
            assert not consumers.died(seconds=3), "it came once more"
        finally:
            consumers.end()
        assert [number for body, number in consumers.seen() if body == "poison"] == [1, 2, 3]
        assert dead(cluster.endpoint) == [b"poison"]


def dead(endpoint: str) -> list[bytes]:
    """Bodies of the group's dead letters."""
    with evenq.PullConsumer(group="look", subscriptions={}, endpoint=endpoint) as reader:
        try:
            queues = reader.queues_of("%DLQ%g")
        except evenq.Error:
            return []
        reader.assign(queues)
        for queue in queues:
            reader.seek_to_begin(queue)
        return [message.body for message in reader.poll(100, wait_ms=5_000)]
