"""A new group that starts at LAST: what comes after its first member was there is never missed, whatever becomes of that
member. Real processes, kill -9.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import evenq
from evenq.testing.local_cluster import LocalCluster

MEMBER = """
import asyncio, sys, time
import evenq, evenq.aio

kind, endpoint, group = sys.argv[1:]
told = dict(group=group, subscriptions={"t": "*"}, endpoint=endpoint)
slow = evenq.PushOptions(commit_interval_ms=60_000)

async def nothing(messages):
    pass

async def apush():
    async with evenq.aio.PushConsumer(listener=nothing, start_from="LAST", options=slow, **told) as one:
        while len(one.queues) < 4:
            await asyncio.sleep(0.02)
        print("ready", flush=True)
        await asyncio.sleep(600)

if kind == "push":
    one = evenq.PushConsumer(listener=print, start_from="LAST", options=slow, **told).start()
elif kind == "async push":
    asyncio.run(apush())
elif kind == "simple":
    one = evenq.SimpleConsumer(**told).__enter__()
    assert not one.receive(wait_ms=200)
else:
    options = evenq.PullOptions(commit_interval_ms=60_000, auto_commit=kind == "pull")
    one = evenq.PullConsumer(start_from="LAST", options=options, **told).start()
    assert not one.poll(wait_ms=200)
while kind != "simple" and len(one.queues) < 4:
    time.sleep(0.02)
print("ready", flush=True)
time.sleep(600)
"""


pytestmark = pytest.mark.cluster(prepare=lambda admin: admin.create_topic("t", queues=4))


def publish(endpoint: str, *bodies: str) -> None:
    with evenq.Producer(endpoint=endpoint) as producer:
        for body in bodies:
            producer.send(evenq.Message(topic="t", body=body.encode()))


def rest(kind: str, endpoint: str, group: str, count: int) -> set[str]:
    """What a second member of the group gets."""
    found: set[str] = set()
    deadline = time.monotonic() + 60
    if kind == "simple":
        with evenq.SimpleConsumer(group=group, subscriptions={"t": "*"}, endpoint=endpoint) as reader:
            while len(found) < count and time.monotonic() < deadline:
                found |= {message.body.decode() for message in reader.receive(32, wait_ms=500)}
        return found
    with evenq.PullConsumer(group=group, subscriptions={"t": "*"}, endpoint=endpoint, start_from="LAST") as poller:
        while len(found) < count and time.monotonic() < deadline:
            found |= {message.body.decode() for message in poller.poll(wait_ms=500)}
    return found


KINDS = ("push", "async push", "pull", "pull that commits by hand", "simple")


@pytest.mark.parametrize(
    ("kind", "broker_dies"),
    [
        *((kind, False) for kind in KINDS),
        ("push", True),
        *(pytest.param(kind, True, marks=pytest.mark.slow) for kind in KINDS[1:]),
    ],
)
@pytest.mark.slow
def test_a_group_whose_first_member_is_killed_before_its_first_commit_misses_nothing(
    cluster: LocalCluster, kind: str, broker_dies: bool
) -> None:
    """RB-42, RB-44: LAST means from then on; and from then on is kept by the broker, over its own kill -9, too."""
    group = f"{kind} {broker_dies}".replace(" ", "-")
    publish(cluster.endpoint, "before")
    command = [sys.executable, "-c", MEMBER, kind, cluster.endpoint, group]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as member:
        try:
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n"
            if broker_dies:
                cluster.brokers[0].kill()
        finally:
            os.kill(member.pid, 9)
    if broker_dies:
        cluster.brokers[0].restart()
    bodies = {f"m{number}" for number in range(12)}
    publish(cluster.endpoint, *bodies)
    assert rest(kind, cluster.endpoint, group, len(bodies)) == bodies
