"""Programs that end without closing their clients: what they sent is stored, or its number is said, and no listener
fails because the process ends.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest

import evenq
from evenq.testing.local_cluster import LocalCluster

SENDS = """
import evenq

def work():
    producer = evenq.Producer(endpoint={endpoint!r})
    for number in range({count}):
        producer.send_async(evenq.Message(topic={topic!r}, body=b"%d" % number))

work()
"""
SENDS_AIO = """
import asyncio
import evenq.aio

async def work():
    producer = evenq.aio.Producer(endpoint={endpoint!r})
    for number in range({count}):
        await producer.send_async(evenq.Message(topic={topic!r}, body=b"%d" % number))

asyncio.run(work())
"""
LISTENS = """
import threading
import time
import evenq

begun = threading.Event()

def listen(messages):
    begun.set()
    time.sleep(0.2)

consumer = evenq.PushConsumer(
    endpoint={endpoint!r}, group="g", listener=listen, subscriptions={{{topic!r}: "*"}}, start_from="FIRST",
    consume_threads=1, options=evenq.PushOptions(consume_batch=1),
).start()
assert begun.wait(60)
"""


FORKS = """
import os, signal, warnings
warnings.simplefilter("ignore")
import evenq

def send(body):
    producer = evenq.Producer(endpoint={endpoint!r})
    producer.send_async({topic!r}, body).result(30)
    return producer

parent = send(b"parent")
if {count}:
    parent.close()
child = os.fork()
if not child:
    signal.alarm(60)
    try:
        send(b"child").close()
        os._exit(7)
    except evenq.Error as error:
        os._exit(8 if "forked" in str(error) else 9)
print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=__import__("sys").stderr)
parent.close()
"""


CLOSES_LATE = """
import atexit
import sys
import evenq

@atexit.register
def end():
    # Handlers run in the opposite order of their registration: the SDK's own one, of the first call below, ran before.
    try:
        producer.flush()
    except evenq.errors.Unsupported as error:
        print(error, file=sys.stderr)
    for client in clients:
        client.close()

given = dict(endpoint={endpoint!r})
group = dict(group="g", subscriptions={{{topic!r}: "*"}}, **given)
producer = evenq.Producer(**given)
clients = (
    evenq.PushConsumer(listener=print, **group),
    evenq.PullConsumer(**group),
    evenq.SimpleConsumer(**group),
    evenq.Admin(**given),
    producer,
)
clients[0].start()
clients[1].start()
"""


pytestmark = pytest.mark.cluster(rebalancer=False)


def ends(program: str, *, endpoint: str, topic: str, count: int = 0, within_s: int = 120) -> str:
    """What it writes to stderr; it ends with 0."""
    code = program.format(endpoint=endpoint, topic=topic, count=count)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=within_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def stored(cluster: LocalCluster, topic: str) -> int:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        return sum(queue.max_offset for queue in admin.describe_topic(topic).queues)


def create(cluster: LocalCluster, topic: str) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(topic, queues=4)


@pytest.mark.parametrize("count", [1, 501])
def test_messages_that_were_not_waited_for_are_sent_before_the_process_ends(cluster: LocalCluster, count: int) -> None:
    """With Python 3.12 gRPC's thread must run before the process ends. After one message the connection is not made yet."""
    create(cluster, f"sent-{count}")
    assert ends(SENDS, endpoint=cluster.endpoint, topic=f"sent-{count}", count=count) == ""
    assert stored(cluster, f"sent-{count}") == count


def test_messages_that_nobody_takes_are_counted_in_a_warning() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        errors = ends(SENDS, endpoint=f"127.0.0.1:{nobody.getsockname()[1]}", topic="t", count=7)
    assert "7 messages of a producer that was not closed are not acknowledged" in errors


def test_messages_of_an_event_loop_that_has_ended_are_counted_in_a_warning(cluster: LocalCluster) -> None:
    create(cluster, "ended")
    errors = ends(SENDS_AIO, endpoint=cluster.endpoint, topic="ended", count=20)
    said = re.search(r"(\d+) messages of a producer that was not closed", errors)
    assert said is not None
    assert 20 - stored(cluster, "ended") <= int(said[1]) <= 20


def test_no_listener_fails_because_the_process_ends(cluster: LocalCluster) -> None:
    create(cluster, "heard")
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        producer.send_batch(evenq.Message(topic="heard", body=b"%d" % number) for number in range(20))
    assert ends(LISTENS, endpoint=cluster.endpoint, topic="heard") == ""
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        assert not any(topic.topic.startswith("%RETRY%") for topic in admin.list_topics(include_system=True))


@pytest.mark.parametrize("closed", [False, True])
def test_a_forked_child_sends_or_is_told_why_it_cannot(cluster: LocalCluster, closed: bool) -> None:
    """With an open client of the parent gRPC crashed in the child."""
    create(cluster, "forked")
    errors = ends(FORKS, endpoint=cluster.endpoint, topic="forked", count=closed)
    assert f"ended with {7 if closed else 8}" in errors


def test_an_exit_handler_that_runs_after_the_end_of_the_loop_does_not_hang() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"127.0.0.1:{nobody.getsockname()[1]}"
        errors = ends(CLOSES_LATE, endpoint=endpoint, topic="t", within_s=20)
    assert "the event loop of the sync SDK has ended" in errors
    assert "Traceback" not in errors
