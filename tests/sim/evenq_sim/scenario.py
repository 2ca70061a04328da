"""What a seed stands for: how large the cluster is, who divides the queues, what is done to it and when.

A plan is made before the world starts, from the seed alone. Half of the seeds change the cluster only in ways that a
user would call graceful, and there nothing may come twice; the other half is treated badly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

FOLLOWING = 1_000_000
"""From this seed on members follow their group, which has no strategy at first and gets one, and others, on the way."""

GRACEFUL = (
    "join", "join", "leave", "leave", "roll member", "roll member", "roll nameserver", "kill nameserver",
    "roll rebalancer", "kill rebalancer", "slow", "roll broker",
)  # fmt: skip
"""Nothing of this may repeat a message."""
CHAOS = (
    *GRACEFUL, "kill member", "kill member", "pause member", "pause member", "kill broker", "pause broker",
    "pause rebalancer", "cut", "cut", "cut one way", "lossy", "breaking", "clock", "lease away",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done to the world."""

    at_ms: int
    what: str
    lasts_ms: int
    """How long it stays so; of no meaning for joins, leaves and kills of members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a seed decides before the start."""

    seed: int
    graceful: bool
    brokers: int
    nameservers: int
    rebalancers: int
    ask_server: bool | None
    """True: members ask for their share; False: each divides by itself; None: as the group has it at the time."""
    strategy: str
    queues: int
    """Per broker."""
    members: int
    ordered: bool
    work_ms: int
    """Longest time a listener takes for what it is given."""
    clocks_off: bool
    """True: clocks are wrong by up to an hour and run up to 1 in 2,000 too fast or slow."""
    steps: tuple[Step, ...]
    heal_ms: int
    """When everything that can be repaired is."""

    def __str__(self) -> str:
        asked = "divides by itself"
        if self.ask_server is not False:
            asked = f"{'asks' if self.ask_server else 'follows the group'} ({self.rebalancers} rebalancers)"
        kind = "graceful" if self.graceful else "chaos"
        order = "ordered" if self.ordered else "concurrent"
        return (
            f"{kind}: {self.brokers} brokers x {self.queues} queues, {self.nameservers} nameservers, {self.members} "
            f"{order} members, {self.strategy}, each {asked}, {len(self.steps)} steps until {self.heal_ms} ms"
        )


def plan_of(seed: int) -> Plan:
    """The plan of one seed."""
    rng = random.Random(f"plan {seed}")
    graceful = rng.random() < 0.5
    ask_server = rng.random() < 0.6
    rebalancers = rng.choice((0, 1, 1, 2, 2)) if ask_server else rng.choice((0, 0, 1))
    strategies = ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]
    if ask_server and rebalancers:
        strategies += ["STICKY", "STICKY", "STICKY"]
    kinds = GRACEFUL if graceful else CHAOS
    steps: list[Step] = []
    at_ms = 2_500
    for _ in range(rng.randint(3, 8)):
        at_ms += rng.choice((0, 5, 50, 300, 1_000, 2_500)) + rng.randint(0, 300)
        steps.append(Step(at_ms, rng.choice(kinds), rng.choice((300, 1_000, 2_500, 4_500, 7_000))))
    lasts_ms = max(step.at_ms + step.lasts_ms for step in steps)
    plan = Plan(
        seed=seed,
        graceful=graceful,
        brokers=rng.randint(1, 3),
        nameservers=rng.randint(1, 2),
        rebalancers=rebalancers,
        ask_server=ask_server,
        strategy=rng.choice(strategies),
        queues=rng.randint(1, 3),
        members=rng.randint(1, 4),
        ordered=rng.random() < 0.3,
        work_ms=rng.choice((2, 20, 150, 400)),
        clocks_off=rng.random() < 0.5,
        steps=tuple(steps),
        heal_ms=lasts_ms + 200,
    )
    return plan if seed < FOLLOWING else _following(plan)


def _following(plan: Plan) -> Plan:
    rng = random.Random(f"following {plan.seed}")
    names = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY")
    last_ms = max(step.at_ms for step in plan.steps)
    times = sorted(rng.randint(2_500, last_ms + 500) for _ in range(rng.randint(1, 3)))
    steps = [*plan.steps, *(Step(at_ms, f"configure {rng.choice(names)}", 0) for at_ms in times)]
    return replace(
        plan,
        ask_server=None,
        rebalancers=rng.choice((0, 1, 2)),
        steps=tuple(sorted(steps, key=lambda step: step.at_ms)),
        heal_ms=max(plan.heal_ms, last_ms + 1_000),
    )
