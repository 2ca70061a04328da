"""All copies of a group are stopped in order at the end of a play.

In one seed of two one after the other, the leader last. In the other the leader is first, and each one that is elected
by that is stopped while it begins to lead, or soon after that; in some of these the record's place or the nameserver
cannot be reached. A stop must end at every moment of a change of roles (decision 89).
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from evenq_broker.core.replication.rules import Role

from replicated_sim.judging import unequal

if TYPE_CHECKING:
    from replicated_sim.world import Copy, GroupWorld

ELECTED = (Role.ELECTED, Role.STARTING, Role.READY)
"""What an elected copy is in turn; while it is READY its broker opens, for up to some hundred ms, and serves."""
ELECTED_MS = 1_000
"""The next one is stopped after this time, though none was elected."""
PAUSES_MS = (0, 0, 0, 1, 3, 10, 30, 100, 300)


async def stop_all(world: GroupWorld) -> None:
    """Also compares the logs."""
    rng = random.Random(f"group stops {world.plan.seed}")
    copies = sorted(world.copies, key=lambda one: one is world.leader)
    if rng.random() < 0.5:
        for copy in copies:
            await world.stop(copy)
        world.unequal = unequal(world) if world.drained else []
        return
    # Before it: who was elected and stopped at once has written a record that no other copy has, and the next leader
    # another one at its place.
    world.unequal = unequal(world) if world.drained else []
    away = rng.choice(("nothing", "nothing", "the record", "the nameserver"))
    world.note(f"all copies are stopped while {away} is away")
    world.place.away = away == "the record"
    if away == "the nameserver":
        world.net.cut([(copy.name, "ns1") for copy in copies])
    stops: list[asyncio.Task[None]] = []
    left = copies
    while left:
        role = rng.choice((*ELECTED, Role.READY))
        copy = await _elected(world, left, role) if stops else left[-1]
        left = [one for one in left if one is not copy]
        await world.clock.sleep_ms(rng.choice(PAUSES_MS))
        world.note(f"{copy.name} is stopped; {world.state()}")
        stops.append(world.loop.create_task(world.stop(copy), name=f"stop {copy.name}"))
    await asyncio.gather(*stops)


async def _elected(world: GroupWorld, left: list[Copy], role: Role) -> Copy:
    """Of these, once it has come that far, or any of them after a while."""
    until_ms = world.loop.now_ms + ELECTED_MS
    while world.loop.now_ms < until_ms:
        elected = [copy for copy in left if copy.role in ELECTED[ELECTED.index(role) :]]
        if elected:
            return elected[0]
        await world.clock.sleep_ms(1)
    return left[0]
