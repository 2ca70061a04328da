"""SIGKILL, again and again, of everything that a Spark job consists of, while its topic is written.

`make spark-chaos ROUNDS=50` is the long form. Two queries read one topic: one writes a table of Parquet files, one a
second topic, in transactions. Each round ends one process, at any moment or exactly at a point, and waits until both
queries have passed what was there when it was back. Each message is one row and one message, nothing else is there,
message groups keep their order, and no lag is left.
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.kills import KINDS, Kill
from tests.spark.chaos.processes import left_by
from tests.spark.chaos.world import JOBS, Ends, World, Writer, hooked, until

ROUNDS = int(os.environ.get("EVENQ_TEST_ROUNDS", "2"))
SEED = int(os.environ.get("EVENQ_TEST_SEED", "1"))
ONLY = re.compile(os.environ.get("EVENQ_TEST_ONLY", ""))
"""Kinds of kills in whose names this is found, e.g. `broker` or `driver at (copy|sink)`."""
RATE = int(os.environ.get("EVENQ_TEST_RATE", "40"))
EXECUTORS = int(os.environ.get("EVENQ_TEST_EXECUTORS", "1"))
"""JVMs beside the driver's; they have two processors together."""
RECOVERY_S = 900.0
"""What a machine may need that starts JVMs all the time and has other work."""
TRIGGERS_MAX = 2
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 + 300 * ROUNDS)]


@dataclass
class Round:
    """One kill, and what it cost."""

    kill: Kill
    recovery_s: float
    rows: int
    lost: int
    repeated: int

    def __str__(self) -> str:
        counts = f"{self.rows} rows, {self.lost} lost, {self.repeated} repeated"
        return f"kill -9, {self.kill}: {counts}, recovery {self.recovery_s:.1f} s"


@pytest.fixture
def world(tmp_path: Path, spark_environment: None) -> Iterator[World]:
    settings = {"AUTO_CREATE_TOPICS": "false", "SESSION_GRACE_MS": "1000", "STAGING__ASK_INTERVAL_MS": "300"}
    with (
        hooked(tmp_path / "hooks"),
        LocalCluster(brokers=2, rebalancer=False, folder=tmp_path / "cluster", broker_settings=settings) as cluster,
    ):
        (tmp_path / "job").mkdir()
        made = World(cluster, "chaos", tmp_path / "job", master=f"local-cluster[{EXECUTORS},{2 // EXECUTORS},600]")
        try:
            yield made
        finally:
            made.close()


def test_whatever_is_killed_each_message_is_one_row_and_one_message(world: World) -> None:
    rng = random.Random(SEED)
    chosen = [kill for kill in KINDS if ONLY.search(str(kill))]
    rounds: list[Round] = []
    try:
        with Writer(world.cluster.endpoints, world.topics.source, rate=RATE) as writer:
            _begin(world, writer)
            for number in range(ROUNDS):
                kill = _least_struck(_struck(chosen, rounds), rng)
                rounds.append(_round(world, kill, rng))
                print(f"\n{number + 1:3}. {rounds[-1]}", end="", flush=True)
        left = world.triggers_until_no_lag(seconds=RECOVERY_S)
        world.driver.rest()
        with Writer(world.cluster.endpoints, world.topics.source, rate=RATE) as more:
            until(60, lambda: more.sent >= 2 * RATE, "nothing is written")
        world.available_now()
        until(60, lambda: not left_by(world.hooks), "processes of killed drivers go on")
    finally:
        _print(rounds)
        struck = _struck(chosen, rounds)
        never = [str(kill) for kill, count in struck.items() if not count]
        print(f"{len(chosen) - len(never)} of {len(chosen)} kinds were struck; not: {', '.join(never) or 'none'}")
    assert max(struck.values()) - min(struck.values()) <= 1, struck
    assert not never or len(chosen) > ROUNDS, never
    print(f"\n{writer.sent + more.sent:,} messages; lag 0 after {left} triggers, and after availableNow")
    _all_is_there_once(world, writer.acknowledged)
    assert max(left.values()) <= TRIGGERS_MAX
    assert sum(one.lost + one.repeated for one in rounds) == 0
    assert world.backward == []


def _struck(chosen: list[Kill], rounds: list[Round]) -> dict[Kill, int]:
    """How often each kind was struck, in the order of `KINDS`."""
    counts = collections.Counter(one.kill for one in rounds)
    return {kill: counts[kill] for kill in chosen}


def _least_struck(struck: dict[Kill, int], rng: random.Random) -> Kill:
    """The first of those that were not struck yet, else any of those that were struck least."""
    fewest = min(struck.values())
    left = [kill for kill, count in struck.items() if count == fewest]
    return rng.choice(left) if fewest else left[0]


def _begin(world: World, writer: Writer) -> None:
    """The first batch, replayed: the runner dies where the query begins, and then the driver before its first entry."""
    until(60, lambda: writer.sent > RATE, "nothing is written")
    world.arm("source.initial.after")
    world.arm("rows.offsets.before")
    first = world.start()
    points = ("source.initial.after", "rows.offsets.before")
    until(RECOVERY_S, lambda: not (first.alive and any(map(world.armed, points))), "the first batch")
    assert not any(map(world.armed, points)), f"the driver ended: see {first.peer.log_path}"
    until(60, lambda: not first.jvm_lives, "the first driver does not end")
    first.end()
    world.start()
    _recovered(world, world.topics.ends())


def _round(world: World, kill: Kill, rng: random.Random) -> Round:
    before = len(world.judge.rows)
    struck = kill.strike(world, rng)
    ends = world.topics.ends()  # when all brokers are back
    _recovered(world, ends)
    took = time.monotonic() - struck
    lost, repeated = _faults(world, ends)
    return Round(kill, took, len(world.judge.rows) - before, lost, repeated)


def _recovered(world: World, ends: Ends) -> None:
    try:
        until(RECOVERY_S, lambda: world.caught_up(ends), "the queries do not go on")
    except AssertionError as error:
        said = [one for driver in world.drivers for one in driver.peer.said][-8:]
        error.add_note(f"wanted {ends}, reached {world.reached}; the drivers said {json.dumps(said, indent=1)}")
        raise


def _faults(world: World, ends: Ends) -> tuple[int, int]:
    """Lost and repeated by both queries together. What was decided may be on its way for a moment."""
    give_up = time.monotonic() + 20
    while True:
        world.judge.look()
        found = [world.judge.faults(ends, job=job) for job in JOBS]
        if not any(missing for missing, _ in found) or time.monotonic() > give_up:
            break
    for job, (missing, repeated) in zip(JOBS, found, strict=True):
        if missing or repeated:
            print(f"\n{job}: missing {sorted(missing)[:10]}, repeated {sorted(repeated.items())[:10]}", end="")
    return sum(len(missing) for missing, _ in found), sum(count - 1 for _, many in found for count in many.values())


def _all_is_there_once(world: World, acknowledged: set[int]) -> None:
    """The whole table, as Spark reads it, and the whole second topic beside the whole first one."""
    ends = world.topics.ends()
    assert _faults(world, ends) == (0, 0)
    places = {(queue.broker_name, queue.queue_id, at) for queue, high in ends.items() for at in range(high)}
    table = [tuple(json.loads(line)) for line in (world.folder / "table.jsonl").read_text().splitlines()]
    assert (len(table), set(table)) == (len(places), places)
    copies = world.judge.follower.messages.values()
    assert (len(copies), set(world.judge.copies)) == (len(places), places)
    source = world.source()
    assert len(source) == len(places)
    bodies = {f"{queue.broker_name}/{queue.queue_id}/{at}": message.body for (queue, at), message in source.items()}
    assert all(message.body == bodies[message.properties["origin"]] for message in copies)
    assert {int(body) for body in bodies.values()} >= acknowledged
    assert world.judge.out_of_order() == []


def _print(rounds: list[Round]) -> None:
    by_kind: dict[str, list[Round]] = collections.defaultdict(list)
    for one in rounds:
        by_kind[str(one.kill)].append(one)
    lines = [("killed", "kills", "rows", "lost", "repeated", "longest recovery")]
    for kind, of_kind in by_kind.items():
        longest = f"{max(one.recovery_s for one in of_kind):.1f} s"
        counts = (sum(getattr(one, name) for one in of_kind) for name in ("rows", "lost", "repeated"))
        lines.append((kind, str(len(of_kind)), *map(str, counts), longest))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    print()
    for line in lines:
        cells = (f"{cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        print("   ".join((f"{line[0]:{widths[0]}}", *cells)))
