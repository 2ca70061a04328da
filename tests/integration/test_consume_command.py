"""`evenq consume` as a process: what comes again after Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import evenq
from evenq.testing import LocalCluster

TOPIC, COUNT = "export", 2_000


def consume(cluster: LocalCluster, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "evenq.cli", "consume", TOPIC, "--group", TOPIC, "--from", "first", "--json"]
    return subprocess.Popen([*words, "--endpoint", cluster.endpoint, *more], stdout=subprocess.PIPE, text=True)


def bodies(text: str) -> list[str]:
    return [json.loads(line)["body"] for line in text.splitlines()]


@pytest.mark.slow  # what was received and not printed is hidden from others for 30 s
@pytest.mark.timeout(180)
def test_after_ctrl_c_the_rest_comes_and_what_was_printed_does_not(tmp_path: Path) -> None:
    with LocalCluster(rebalancer=False, folder=tmp_path) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic(TOPIC, queues=2)
        with evenq.Producer(endpoint=cluster.endpoint) as producer:
            producer.send_batch([evenq.Message(topic=TOPIC, body=str(number).encode()) for number in range(COUNT)])
        first = consume(cluster)
        assert first.stdout is not None
        beginning = "".join(first.stdout.readline() for _ in range(100))
        first.send_signal(signal.SIGINT)
        rest = first.stdout.read()
        assert first.wait(60) == 0
        printed = bodies(beginning + rest)
        assert len(printed) < COUNT, "it was stopped in the middle"
        second = consume(cluster)
        assert second.stdout is not None
        missing, repeated = set(map(str, range(COUNT))).difference(printed), 0
        while missing:
            [body] = bodies(second.stdout.readline())
            repeated += body not in missing
            missing.discard(body)
        second.kill()
        second.wait(60)
        second.stdout.close()
        first.stdout.close()
        assert repeated <= 1, "the one whose writing was interrupted"
