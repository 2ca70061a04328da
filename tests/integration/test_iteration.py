"""Loops over messages, codecs, and requests with their answers, between processes and over a restart of the broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster

pytestmark = pytest.mark.integration

LOOP = """
import sys
import evenq

with evenq.SimpleConsumer(
    group="workers", endpoint=sys.argv[1], subscriptions={sys.argv[2]: "*"}, start_from="FIRST"
) as consumer:
    for message in consumer.messages(invisible_ms=2_000):
        print(message.body.decode(), flush=True)
        sys.stdin.readline()
"""
ANSWERS = """
import sys
import evenq

with evenq.Producer(endpoint=sys.argv[1], encoder=evenq.JsonCodec()) as producer:
    evenq.PushConsumer(
        group="answers",
        endpoint=sys.argv[1],
        listener=producer.answer_with(lambda request: {"length": len(request.body)}),
        subscriptions={sys.argv[2]: "*"},
        start_from="FIRST",
    ).run()
print("closed")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(folder=tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(program: str, topic: str) -> subprocess.Popen[str]:
        path = tmp_path / f"program_{len(started)}.py"
        path.write_text(program)
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(path), cluster.endpoint, topic],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_message_of_a_killed_process_is_the_next_ones_and_acknowledged_ones_are_not(
    cluster: LocalCluster, start: Callable[[str, str], subprocess.Popen[str]]
) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for number in range(5):
            producer.send("loops", b"%d" % number)
    process = start(LOOP, "loops")
    assert process.stdout is not None
    assert process.stdin is not None
    finished = {process.stdout.readline().strip()}
    process.stdin.write("\n")
    process.stdin.flush()
    killed_in = process.stdout.readline().strip()
    process.kill()
    process.wait(60)
    with evenq.SimpleConsumer(group="workers", endpoint=cluster.endpoint, subscriptions={"loops": "*"}) as consumer:
        left = {message.body.decode(): message.delivery_attempt for message in consumer.messages(idle_ms=10_000)}
    assert left.keys() | finished == set("01234")
    assert not left.keys() & finished
    assert left[killed_in] == 2


def test_a_loop_outlasts_a_restart_of_the_broker(cluster: LocalCluster) -> None:
    with evenq.Producer(endpoint=cluster.endpoint, options=evenq.ProducerOptions(max_attempts=100)) as producer:
        producer.send("restarts", b"before")
        seen: list[bytes] = []
        with evenq.SimpleConsumer(
            group="g", endpoint=cluster.endpoint, subscriptions={"restarts": "*"}, start_from="FIRST"
        ) as consumer:
            messages = consumer.messages()
            thread = threading.Thread(target=lambda: seen.extend(message.body for message in messages))
            thread.start()
            until(lambda: seen == [b"before"])
            cluster.brokers[0].restart()
            producer.send("restarts", b"after")
            until(lambda: seen == [b"before", b"after"])
            messages.stop()
            thread.join(60)
            assert not thread.is_alive()
            assert list(consumer.messages(idle_ms=1_000)) == [], "the acknowledgements were lost"


def test_one_process_asks_and_another_one_answers_until_sigterm(
    cluster: LocalCluster, start: Callable[[str, str], subprocess.Popen[str]]
) -> None:
    process = start(ANSWERS, "questions")
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for body in (b"one", b"twelve"):
            reply = producer.request("questions", body, timeout_ms=60_000)
            assert reply.body == b'{"length":%d}' % len(body)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "closed\n")
