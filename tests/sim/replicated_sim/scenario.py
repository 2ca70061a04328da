"""What a seed stands for: how the group is set, and what is done to it when. Made before the world starts.

Each seed draws a few kinds of faults and plays only these (a swarm): some need that others are absent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

NODES = {
    "kill": 4, "power": 4, "cut power": 4, "power all": 2, "wipe": 2, "flip": 1, "pause": 3, "roll": 2, "hand over": 2,
    "strike": 4, "admission": 4, "floor": 3, "succession": 3, "late reader": 3, "unsynced": 3,
}  # fmt: skip
NETS = {
    "isolate": 3, "one way in": 3, "one way out": 3, "pair": 3, "clients": 1, "lossy": 2, "slow": 2, "breaking": 2,
    "record away": 2, "record cut": 3, "record unclear": 3, "record stale": 1, "leader and record": 2, "clock": 1,
}  # fmt: skip
ROT = "rot"  # bits turn under a running broker, in some of the plays, beside what is drawn by weight
SECTOR = "lost sector"  # a disk cannot read a place, in some of the plays, beside what is drawn by weight
RETIRE = "retire"  # who is elected is stopped in order, in some of the plays, beside what is drawn by weight
WOKEN = "woken"  # a deposed leader that did not run meanwhile is asked, in some of the plays, beside what is drawn by weight
KINDS = (*{**NODES, **NETS}, ROT, SECTOR, RETIRE, WOKEN)
WEIGHTS = {**NODES, **NETS}
SLOW_MS = (5.0, 60.0)
CALM_MS = 30_000
OUTAGES = ("record", "record, leader killed", "record, follower paused", "all paused")
RESTARTED = "record, follower restarted"
"""One more, of seeds that would have none: so the others play what they played before."""
TRANSACTING = 10_000_000
"""From this seed on consumers transact, beside all else: `transacting`."""
TARGETS = ("leader", "leader", "follower", "any")


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One thing done to the group."""

    at_ms: int
    what: str
    target: str
    """Which copy, as it is at the moment."""
    lasts_ms: int


@dataclass(frozen=True, slots=True)
class Outage:
    """What a group that is whole again goes through at the end, and must come out of without an election."""

    what: str
    """One of `OUTAGES`, or `RESTARTED`."""
    lasts_ms: int

    def __str__(self) -> str:
        return f"{self.what} for {self.lasts_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """All that a seed decides before the start."""

    seed: int
    mode: str
    clocks_off: bool
    """Clocks are wrong by up to an hour, and run up to 1 in 500 too fast or slow."""
    device_ms: tuple[float, float]
    """Shortest and longest time of one job of a disk."""
    slow_disk: int | None
    """The copy whose disk takes SLOW_MS for each; None: all are alike."""
    segment_bytes: int
    snapshot_log_bytes: int
    steps: tuple[GroupStep, ...]
    heal_ms: int
    outage: Outage | None
    """After `heal_ms`; None: there is none."""

    @property
    def compares(self) -> bool:
        """Followers say which epochs they have, so that the last record in common is compared (decision 93)."""
        return self.seed % 5 == 3

    @property
    def repeats(self) -> bool:
        """In one seed of four, beside all else: `repeating`."""
        return random.Random(f"group repeats {self.seed}").random() < 0.25

    @property
    def transacts(self) -> bool:
        """Consumers transact, beside all else: `transacting`."""
        return self.seed >= TRANSACTING

    def __str__(self) -> str:
        steps = ", ".join(f"{step.what} {step.target} at {step.at_ms} for {step.lasts_ms}" for step in self.steps)
        clocks = "wrong" if self.clocks_off else "right"
        slow = "" if self.slow_disk is None else f" (b{self.slow_disk} {SLOW_MS[0]} to {SLOW_MS[1]})"
        return (
            f"{self.mode} mode, {clocks} clocks, disks {self.device_ms[0]} to {self.device_ms[1]} ms{slow}, log files of "
            f"{self.segment_bytes}, a snapshot each {self.snapshot_log_bytes} bytes, {len(self.steps)} steps until "
            f"{self.heal_ms} ms: {steps}; then {self.outage or 'nothing'}"
        )


def _rot(seed: int, last_ms: int) -> list[GroupStep]:
    """Bits turn on running disks in one seed of four, beside all else."""
    rng = random.Random(f"group rot {seed}")
    if rng.random() < 0.75:
        return []
    return [GroupStep(rng.randint(6_000, max(7_000, last_ms)), ROT, rng.choice(TARGETS), 0) for _ in range(3)]


def _retirements(seed: int, last_ms: int) -> list[GroupStep]:
    """In one seed of five, beside all else; by this draw in none of those that are known to find a planted fault."""
    rng = random.Random(f"group retirements, 5: {seed}")
    if rng.random() < 0.8:
        return []
    times = [rng.randint(4_000, max(5_000, last_ms)) for _ in range(2)]
    return [GroupStep(at_ms, RETIRE, "leader", rng.choice((100, 1_000))) for at_ms in times]


def _lost_sectors(seed: int, last_ms: int) -> list[GroupStep]:
    """In one seed of eight, beside all else; by this draw in none of those that are known to find a planted fault."""
    rng = random.Random(f"group lost sectors, 112: {seed}")
    if rng.random() >= 1 / 8:
        return []
    return [GroupStep(rng.randint(6_000, max(7_000, last_ms)), SECTOR, rng.choice(TARGETS), 100) for _ in range(3)]


def _woken(seed: int, last_ms: int) -> list[GroupStep]:
    """In one seed of eight, beside all else; by this draw only in those of the known ones that need it."""
    rng = random.Random(f"group woken, 43: {seed}")
    if rng.random() >= 1 / 8:
        return []
    return [GroupStep(rng.randint(4_000, max(5_000, last_ms)), WOKEN, "leader", 0) for _ in range(2)]


def _outage(seed: int) -> Outage | None:
    """In five seeds of eight."""
    rng = random.Random(f"group outage {seed}")
    if rng.random() < 0.5:
        restarts = random.Random(f"group outage restart {seed}")
        return Outage(RESTARTED, restarts.choice((7_000, 10_000))) if restarts.random() < 0.25 else None
    what = rng.choice(OUTAGES)
    # Links break after 5 s.
    return Outage(what, rng.choice((1_700, 2_500, 3_500, 8_000) if "pause" in what else (1_000, 2_500, 4_500, 7_000)))


def group_plan(seed: int) -> GroupPlan:
    """The plan of one seed."""
    rng = random.Random(f"group plan {seed}")
    names = list(WEIGHTS)
    weights = [WEIGHTS[name] for name in names]
    kinds = [rng.choices(names, weights)[0] for _ in range(rng.randint(2, 6))]
    steps: list[GroupStep] = []
    at_ms = 4_000
    for _ in range(rng.randint(10, 16)):
        at_ms += rng.choice((0, 5, 50, 300, 1_000, 2_500, 4_000)) + rng.randint(0, 300)
        lasts_ms = rng.choice((100, 300, 1_000, 2_500, 4_500))
        steps.append(GroupStep(at_ms, rng.choice(kinds), rng.choice(TARGETS), lasts_ms))
    beside = [*_rot(seed, at_ms), *_lost_sectors(seed, at_ms), *_retirements(seed, at_ms), *_woken(seed, at_ms)]
    steps = sorted([*steps, *beside], key=lambda step: step.at_ms)
    return GroupPlan(
        seed=seed,
        mode="sync" if rng.random() < 0.7 else "memory",
        clocks_off=rng.random() < 0.3,
        device_ms=rng.choice(((0.0, 0.2), (0.1, 3.0), (0.1, 30.0))),
        slow_disk=rng.choice((0, 1, 2, None, None, None)),
        segment_bytes=rng.choice((1 << 16, 1 << 18)),
        snapshot_log_bytes=rng.choice((1 << 14, 1 << 16, 1 << 24)),
        steps=tuple(steps),
        heal_ms=max(step.at_ms + step.lasts_ms for step in steps) + 500,
        outage=_outage(seed),
    )


def calm_plan(seed: int) -> GroupPlan:
    """The group of a seed, and nothing is done to it."""
    plan = replace(group_plan(seed), steps=(), heal_ms=CALM_MS, outage=None)
    return replace(plan, clocks_off=False, device_ms=(0.1, 3.0), slow_disk=None)
