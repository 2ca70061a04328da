"""Schedules of real brokers: one message for each time, while brokers and leaders are killed."""

from __future__ import annotations

import os
import signal
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import group, leader_of
from evenq_proofs.waiting import until

import evenq
from evenq.errors import Error
from evenq.runtime.failpoints import COUNTS_VARIABLE, VARIABLE, read_counts
from evenq.testing.local_cluster import LocalCluster
from evenq.testing.node import Node

pytestmark = pytest.mark.cluster(own=True, rebalancer=False)

SECOND_MS = 1_000


def times(endpoint: str) -> list[int]:
    """The times of all firings, in the order of the one queue, with the ids checked."""
    with evenq.Admin(endpoint=endpoint) as admin:
        found = admin.find_messages("t", limit=1_000).messages
    ids = [one.message_id for one in found]
    assert len(set(ids)) == len(ids), "an id is stored twice"
    return [int(one.properties["evenq-schedule-time-ms"]) for one in found]


def must_be_each_once(endpoint: str) -> None:
    """The times follow each other by a second, without one missing or twice; counts agree."""
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.pause_schedule("t", "each-second")
        schedule = admin.describe_schedule("t", "each-second")
    found = times(endpoint)
    assert {later - earlier for earlier, later in pairwise(found)} == {SECOND_MS}
    assert (len(found), found[-1], schedule.passed) == (schedule.fired, schedule.last_ms, 0)
    assert found[0] == schedule.made_ms + SECOND_MS


def prepare(endpoint: str) -> None:
    """A topic with one queue, and a schedule that makes up for all times."""
    with evenq.Admin(endpoint=endpoint) as admin:
        admin.create_topic("t", queues=1)
        message = evenq.Message(topic="t", body=b"x")
        admin.create_schedule("each-second", message, every="1s", missed="all")


def fired(endpoint: str) -> int:
    try:
        with evenq.Admin(endpoint=endpoint) as admin:
            return admin.describe_schedule("t", "each-second").fired
    except Error:
        return -1


def revive(broker: Node, done: threading.Event) -> None:
    """Starts the broker again when a failpoint killed it."""
    while not done.wait(0.05):
        if not broker.alive:
            broker.environment.pop(VARIABLE, None)
            broker.restart()


@pytest.mark.parametrize(
    "point",
    [
        "schedule.fired:3",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("schedule.firing:3", "group.written:9", "answer.before:9")
        ),
    ],
)
def test_each_time_has_one_message_wherever_the_broker_is_killed(
    cluster: LocalCluster, tmp_path: Path, point: str
) -> None:
    [broker] = cluster.brokers
    prepare(cluster.endpoint)
    counts = tmp_path / "counts"
    broker.environment |= {VARIABLE: point, COUNTS_VARIABLE: str(counts)}
    broker.restart()
    watch = threading.Thread(target=revive, args=(broker, done := threading.Event()))
    watch.start()
    try:
        until(lambda: read_counts(counts)[point.partition(":")[0]].hit == 1, what=f"{point} was passed")
        before = until(lambda: max(0, fired(cluster.endpoint)), what="it is back")
        until(lambda: fired(cluster.endpoint) >= before + 2, what="it fires again")
        pid = until(lambda: broker.pid or 0, what="the broker is back")
        os.kill(pid, signal.SIGKILL)
        until(lambda: fired(cluster.endpoint) >= before + 5, what="and again")
    finally:
        done.set()
        watch.join()
    must_be_each_once(cluster.endpoint)


def moved(endpoint: str, to: str) -> bool:
    try:
        with evenq.Admin(endpoint=endpoint) as admin:
            return admin.move_schedule("t", "each-second", to=to).broker_name == to
    except Error:
        return False


@pytest.mark.cluster(own=True, brokers=2, rebalancer=False)
@pytest.mark.parametrize(
    "point",
    [
        "schedule.taken",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("schedule.given", "schedule.fetched", "schedule.confirmed")
        ),
    ],
)
def test_each_time_has_one_message_wherever_a_move_is_killed(cluster: LocalCluster, tmp_path: Path, point: str) -> None:
    prepare(cluster.endpoint)
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        source = admin.describe_schedule("t", "each-second").broker_name
        [target] = {one.name for one in admin.list_brokers()} - {source}
    dies = cluster.brokers[sorted([source, target]).index(source if point == "schedule.given" else target)]
    counts = tmp_path / "counts"
    dies.environment |= {VARIABLE: f"{point}:1", COUNTS_VARIABLE: str(counts)}
    dies.restart()
    until(lambda: fired(cluster.endpoint) >= 2, what="it fires")
    until(lambda: moved(cluster.endpoint, target) or not dies.alive, what="the move begins")
    until(lambda: read_counts(counts)[point].hit == 1, what=f"{point} was passed")
    dies.environment.pop(VARIABLE)
    until(lambda: not dies.alive, what="it is killed")
    dies.restart()
    until(lambda: moved(cluster.endpoint, target), what="the move ends")
    before = fired(cluster.endpoint)
    until(lambda: fired(cluster.endpoint) >= before + 3, what="it fires at the other broker")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        schedule = admin.pause_schedule("t", "each-second")
    found = sorted(times(cluster.endpoint))
    assert schedule.broker_name == target
    assert {later - earlier for earlier, later in pairwise(found)} == {SECOND_MS}
    assert (len(found), found[-1], schedule.passed) == (schedule.fired, schedule.last_ms, 0)


@pytest.mark.cluster(own=True, brokers=2, rebalancer=False)
def test_a_drained_broker_hands_over_its_schedules(cluster: LocalCluster) -> None:
    prepare(cluster.endpoint)
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        source = admin.describe_schedule("t", "each-second").broker_name
        view = admin.drain_broker(source)
        assert (view.schedules, admin.describe_schedule("t", "each-second").broker_name != source) == (0, True)


@pytest.mark.slow
def test_each_time_has_one_message_while_leaders_are_killed(tmp_path: Path) -> None:
    with group(tmp_path) as cluster:
        leader_of(cluster)
        prepare(cluster.endpoints)
        for _ in range(2):
            before = until(lambda: max(0, fired(cluster.endpoints)), what="it fires")
            until(lambda before=before: fired(cluster.endpoints) >= before + 2, what="it fires again")  # type: ignore[misc]
            killed = leader_of(cluster)
            killed.kill()
            leader_of(cluster)
            killed.restart()
        before = until(lambda: max(0, fired(cluster.endpoints)), what="the next leader fires")
        until(lambda: fired(cluster.endpoints) >= before + 2, what="and continues")
        must_be_each_once(cluster.endpoints)
