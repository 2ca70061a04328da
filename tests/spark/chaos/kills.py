"""The kinds of kills: what ends, and at which point.

Each is armed or done by `Kill.strike`, which returns when the process is gone and everything that a supervisor would
start again is on its way: a broker by its service manager, a driver by its cluster. Executors and workers come back by
Spark, queries in a driver that lives by the driver.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from tests.spark.chaos.processes import Part, Process
from tests.spark.chaos.world import JOBS, World, until

HIT_S = 180.0
"""A machine that starts JVMs all the time may need that long for one batch."""
POINTS = {
    Part.DRIVER: [
        *(f"{job}.{log}.{when}" for log in ("offsets", "commits") for job in JOBS for when in ("before", "after")),
        "table._spark_metadata.before", "table._spark_metadata.after",
        "source.latest.after", "source.read.middle", "sink.stage.before", "sink.decide.before", "sink.decide.after",
    ],
    Part.EXECUTOR: ["source.read.middle", "sink.stage.after", "sink.task.after"],
    Part.RUNNER: ["source.latest.before", "source.latest.after", "source.plan.before", "source.plan.after"],
    Part.WORKER: [
        "source.read.middle", "source.read.after", "sink.begin.after", "sink.stage.before", "sink.stage.after",
        "sink.task.after",
    ],
    Part.PLANNER: ["sink.decide.before", "sink.decide.after"],
}  # fmt: skip
"""At a point of Spark's logs the JVM ends itself. Elsewhere the Python process that passes does, or who is named here."""
BROKER_POINTS = ["staged", "deciding", "decided", "publishing", "published", "rolled"]


@dataclass(frozen=True, slots=True)
class Kill:
    """One kind: what ends, where. An empty point: at any moment."""

    what: str
    point: str = ""

    def __str__(self) -> str:
        return f"{self.what} at {self.point}" if self.point else f"{self.what} at any moment"

    def strike(self, world: World, rng: random.Random) -> float:
        """Returns when it struck, by the monotonic clock. Raises AssertionError if it did not."""
        hits = world.hits(self.point) if self.point else 0
        struck = self._struck(world, rng)
        assert not self.point or world.hits(self.point) > hits, f"{self}: nobody was struck"
        return struck

    def _struck(self, world: World, rng: random.Random) -> float:
        if self.what == "broker":
            return self._broker(world, rng)
        if self.what == Part.DRIVER:
            return self._driver(world, rng)
        if self.point and self.what != Part.EXECUTOR:
            self._armed(world)
            return time.monotonic()
        until(HIT_S, lambda: self._victims(world), f"there is no {self.what}")
        victim = rng.choice(self._victims(world))
        if self.point:
            self._armed(world, victim.pid)
        else:
            with suppress(ProcessLookupError):  # it may have ended at this very moment
                os.kill(victim.pid, signal.SIGKILL)
        return time.monotonic()

    def _victims(self, world: World) -> list[Process]:
        return world.driver.parts(Part(self.what))

    def _armed(self, world: World, *victims: int) -> None:
        world.arm(self.point, *victims)
        until(HIT_S, lambda: not world.armed(self.point), f"nobody passes {self.point}")

    def _driver(self, world: World, rng: random.Random) -> float:
        driver = world.driver
        jvm = driver.jvm
        if self.point.partition(".")[0] in {"source", "sink"}:
            self._armed(world, jvm)
        elif self.point:
            self._armed(world)
        else:
            time.sleep(rng.random())  # any moment
            os.kill(jvm, signal.SIGKILL)
        until(HIT_S, lambda: not driver.parts(Part.DRIVER), "the JVM does not end")
        struck = time.monotonic()
        driver.end()
        world.start()
        return struck

    def _broker(self, world: World, rng: random.Random) -> float:
        nodes = world.cluster.brokers
        if self.point:
            self._armed(world)
            until(HIT_S, lambda: any(not node.alive for node in nodes), "no broker ends")
        else:
            time.sleep(rng.random())
            rng.choice(nodes).kill()
        struck = time.monotonic()
        for node in nodes:
            if not node.alive:
                node.restart()
        return struck


KINDS: list[Kill] = [
    Kill("driver", "copy.commits.before"),
    Kill("worker", "sink.stage.after"),
    Kill("broker", "broker.staging.decided"),
    Kill("executor"),
    Kill("runner"),
    Kill("planner", "sink.decide.after"),
    Kill("driver", "rows.offsets.after"),
    Kill("worker"),
    Kill("broker"),
    Kill("daemon"),
    Kill("driver"),
]
"""All kinds, the most telling first: a run of few rounds takes the first ones."""
KINDS += [
    kill
    for part, points in POINTS.items()
    for point in points
    if (kill := Kill(str(part), point)) not in KINDS
] + [
    kill for name in BROKER_POINTS if (kill := Kill("broker", f"broker.staging.{name}")) not in KINDS
]  # fmt: skip
