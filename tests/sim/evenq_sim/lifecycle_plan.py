"""The plans of the seeds from `LIFECYCLES` on: topics and groups end and begin again, grow and shrink, while they are used.

The seed's remainder chooses the scene, and each scene draws from its own random numbers, so that a change of one scene
leaves the seeds of the others as they are. Nothing is lost, cut or broken in these worlds but what a step says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from evenq_sim.scenario import Plan, Step

LIFECYCLES = 2_000_000
"""From this seed on plans are those of this module."""
STAGED = 3_000_000
"""From this seed on a Spark query writes, and its checkpoint is put back."""
AWAY = 4_000_000
"""From this seed on a broker is away while a topic or group is deleted and the other brokers restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One kind of traffic, and the steps that belong to it."""

    name: str
    topic_type: str = "NORMAL"
    sends: str = "publish"
    """`publish`: blocks of our own SDK; `v2`: SendMessage of an official one; `staged`: batches of a Spark query."""
    readers: tuple[str, ...] = ("own",)
    """`own`: push consumers of our SDK; `push`: those of an official one; `lite`: consumers of lite topics."""
    ordered: bool = False
    steps: tuple[str, ...] = ()
    gaps_ms: tuple[int, ...] = (0, 300, 1_000, 2_500, 5_000)
    """Between one step and the next."""


SHARED = (
    "join", "leave", "roll member", "kill member", "roll broker", "widen topic", "widen topic", "narrow topic",
    "recreate topic", "recreate topic", "recreate group", "recreate group", "new broker", "drain broker",
)  # fmt: skip
SCENES = (
    Scene(name="shared", steps=SHARED),
    Scene(
        name="ordered", ordered=True,
        steps=("join", "join", "leave", "roll member", "roll broker", "widen topic", "recreate topic", "new broker",
               "drain broker"),
    ),
    Scene(
        name="push", sends="v2", readers=("push",), gaps_ms=(0, 100, 300, 1_000, 2_500),
        steps=("join", "leave", "leave", "kill member", "kill member", "roll broker", "roll broker", "roll broker",
               "recreate topic", "widen topic", "new broker"),
    ),
    Scene(
        name="fifo", topic_type="FIFO", sends="v2", readers=("own", "push"), ordered=True,
        steps=("join", "leave", "roll broker", "roll broker", "roll broker", "roll nameserver"),
    ),
    Scene(
        name="lite", topic_type="LITE", sends="v2", readers=("lite",),
        steps=("join", "leave", "roll broker", "roll broker", "roll member"),
    ),
    Scene(
        name="delayed", topic_type="DELAY", sends="v2", readers=("own", "push"),
        steps=(*SHARED, "roll broker", "roll broker"),
    ),
)  # fmt: skip
STAGED_SCENE = Scene(
    name="staged", sends="staged",
    steps=("put checkpoint back", "put checkpoint back", "put checkpoint back", "join", "leave", "roll broker",
           "roll broker", "kill broker", "widen topic", "new broker"),
)  # fmt: skip
AWAY_STEPS = ("delete topic-away", "recreate topic-away", "recreate topic-away", "delete group-away")
AWAY_SCENES = (
    Scene(name="away", steps=(*AWAY_STEPS, "roll broker", "widen topic", "join")),
    Scene(name="push away", sends="v2", readers=("push",), steps=(*AWAY_STEPS, "roll broker", "widen topic", "join")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecyclePlan(Plan):
    """All that such a seed decides before the start."""

    scene: Scene
    readers: str
    from_last: bool
    """The group begins with new messages; else at the first one."""
    auto_create: bool
    """A message to a deleted topic makes it again."""
    slow: frozenset[int]
    """These messages keep their listener for `slow_ms`, longer than a member's `drain_ms`."""
    slow_ms: int
    fail_every: int
    """Each so many messages, the first delivery of one fails; 0: none does."""

    def __str__(self) -> str:
        kind = f"{self.scene.name}: {self.readers} readers from the {'last' if self.from_last else 'first'} message"
        return f"{kind}, topics made by use: {self.auto_create}; {Plan.__str__(self)}"


def lifecycle_plan(seed: int) -> LifecyclePlan:
    """The plan of one seed."""
    scene = _scene(seed)
    rng = random.Random(f"lifecycle {scene.name} {seed}")
    steps: list[Step] = []
    at_ms = 4_000
    for _ in range(rng.randint(2, 5)):
        at_ms += rng.choice(scene.gaps_ms) + rng.randint(0, 300)
        steps.append(Step(at_ms, rng.choice(scene.steps), rng.choice((0, 50, 500, 2_500))))
    if scene.name == "lite" and rng.random() < 0.7:
        at_ms += rng.choice((0, 20, 300))
        steps.append(Step(at_ms, "delete topic", 0))
    asks = rng.choice((True, False, None))
    slow = frozenset(rng.sample(range(20, 160), rng.choice((2, 5))) if scene.ordered and rng.random() < 0.6 else ())
    return LifecyclePlan(
        seed=seed,
        scene=scene,
        readers=rng.choice(scene.readers),
        from_last=rng.random() < 0.6,
        auto_create=rng.random() < 0.4 and scene.name != "lite",
        slow=slow,
        slow_ms=rng.choice((4_000, 7_000)),
        fail_every=0 if scene.ordered else rng.choice((0, 3, 10)),
        graceful=not any(step.what.startswith("kill") for step in steps),
        brokers=rng.randint(1, 3) if seed < AWAY else 3,
        nameservers=1,
        rebalancers=rng.choice((0, 1)) if asks is not False else 0,
        ask_server=asks,
        strategy=rng.choice(("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")),
        queues=rng.randint(1, 3),
        members=rng.randint(1, 3),
        ordered=scene.ordered,
        work_ms=rng.choice((2, 20, 50 if scene.name == "fifo" else 150)),
        clocks_off=rng.random() < 0.2 and scene.topic_type != "DELAY",
        steps=tuple(steps),
        heal_ms=max(step.at_ms + step.lasts_ms for step in steps) + 500,
    )


def _scene(seed: int) -> Scene:
    if seed >= AWAY:
        return AWAY_SCENES[seed % len(AWAY_SCENES)]
    return SCENES[seed % len(SCENES)] if seed < STAGED else STAGED_SCENE
