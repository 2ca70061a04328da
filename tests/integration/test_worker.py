"""`consumer.run()` as the whole of a program: what a container's SIGTERM and a terminal's Ctrl-C do to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import evenq
from evenq.testing import LocalCluster

SYNC = """
import sys, time
import evenq

def listen(messages):
    print("got", len(messages), flush=True)
    time.sleep(0.5)
    print("done", flush=True)

evenq.PushConsumer(
    group=sys.argv[2], endpoint=sys.argv[1], listener=listen, subscriptions={"work": "*"}, start_from="FIRST"
).run()
print("closed", flush=True)
"""
ASYNC = """
import asyncio, sys
import evenq.aio

async def listen(messages):
    print("got", len(messages), flush=True)
    await asyncio.sleep(0.5)
    print("done", flush=True)

async def main():
    await evenq.aio.PushConsumer(
        group=sys.argv[2], endpoint=sys.argv[1], listener=listen, subscriptions={"work": "*"}, start_from="FIRST"
    ).run()
    print("closed", flush=True)

asyncio.run(main())
"""
LITE = """
import sys, time
import evenq

def listen(message):
    print("got 1", flush=True)
    time.sleep(0.5)
    print("done", flush=True)

evenq.LitePushConsumer(
    group=sys.argv[2], topic="lite-work", lite_topics=["a"], endpoint=sys.argv[1], listener=listen
).run()
print("closed", flush=True)
"""


@pytest.fixture(scope="module")
def filled(shared_cluster: LocalCluster) -> LocalCluster:
    with evenq.Admin(endpoint=shared_cluster.endpoint) as admin:
        admin.create_topic("lite-work", message_type="LITE")
    with evenq.Producer(endpoint=shared_cluster.endpoint) as producer:
        producer.send(evenq.Message(topic="work", body=b"x"))
        producer.send(evenq.Message(topic="lite-work", body=b"x", lite_topic="a"))
    return shared_cluster


pytestmark = pytest.mark.cluster()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", [SYNC, ASYNC, LITE], ids=["sync", "asyncio", "lite"])
def test_a_signal_lets_the_running_call_end_and_commits_it(
    filled: LocalCluster, tmp_path: Path, program: str, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    group = f"workers-{request.node.callspec.id}"
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(program))
    worker = subprocess.Popen([sys.executable, str(script), filled.endpoint, group], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "got 1\n"
        worker.send_signal(number)
        said, _ = worker.communicate(timeout=60)
    finally:
        worker.kill()
    assert (said.split(), worker.returncode) == (["done", "closed"], 0)
    if program is not LITE:
        with evenq.Admin(endpoint=filled.endpoint) as admin:
            assert sum(queue.lag for queue in admin.describe_group(group).queues) == 0
