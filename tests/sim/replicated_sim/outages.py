"""The record's place is away for everybody, or everybody is paused, while nothing else is wrong; then it is over.

What is judged: while the leader lives and reaches its followers, no other copy is elected within `suspect_ms` after the
return, in which the leader can renew the record (decision 84). If it was killed meanwhile, another copy is elected soon
after the return. If a follower was killed and starts again while the record is away, sends are acknowledged again before
the return (decision 92).
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import TYPE_CHECKING

from evenq.testing.history import Op
from replicated_sim.disks import Keep
from replicated_sim.scenario import RESTARTED

if TYPE_CHECKING:
    from replicated_sim.world import Copy, GroupWorld

LEADER_KILLED = "record, leader killed"
SUSPECT_MS = 1_500
"""Setting `suspect_ms` of the copies."""
CLOCKS = 0.99
"""A clock that is wrong runs up to 1 in 500 too fast."""
WHOLE_MS = 60_000
SETTLED_MS = 2_000
"""Every copy has heard of the leader, and read the record."""
ELECTED_MS = 5_000
"""After the return; a read that began before may take a second until it fails."""
ANSWERED_MS = 4_000
"""From the start of a follower on: its first read of the record takes a second until it fails, and then it may have to
write its log's end anew and wait for a link.
"""


async def play_outage(world: GroupWorld) -> None:
    """What the plan says, and the judgement."""
    outage = world.plan.outage
    leader = None if outage is None else await _settled(world)
    if outage is None or leader is None:
        return  # if it is not whole the play says so later
    epoch = leader.epoch
    world.note(f"outage: {outage}; {world.state()}")
    world.recorder.fault("outage")
    is_killed = outage.what == LEADER_KILLED
    with leader.held() if is_killed else nullcontext():
        await _away(world, leader, outage.what, outage.lasts_ms)
        back_ms = world.loop.now_ms
        world.note(f"the outage is over; {world.state()}")
        if is_killed:
            await _followed(world, epoch, back_ms)
            await world.start(leader)
        else:
            await world.clock.sleep_ms(SUSPECT_MS)
            _judge(world, epoch, back_ms)
    world.recorder.heal("outage")


async def _settled(world: GroupWorld) -> Copy | None:
    """Who leads, once the group has been whole for a while; None: it was not."""
    until_ms, whole_ms = world.loop.now_ms + WHOLE_MS, world.loop.now_ms
    while world.loop.now_ms < until_ms:
        if not world.is_whole():
            whole_ms = world.loop.now_ms
        if world.loop.now_ms - whole_ms >= SETTLED_MS:
            return world.leader
        await world.clock.sleep_ms(20)
    return None


async def _away(world: GroupWorld, leader: Copy, what: str, lasts_ms: int) -> None:
    """Until the return."""
    rng = random.Random(f"outage {world.plan.seed}")
    followers = [copy for copy in world.copies if copy is not leader]
    world.place.away = what != "all paused"
    match what:
        case "record":
            await world.clock.sleep_ms(lasts_ms)
        case _ if what == LEADER_KILLED:
            after_ms = rng.randrange(lasts_ms)
            await world.clock.sleep_ms(after_ms)
            world.kill(leader, Keep.ALL)
            await world.clock.sleep_ms(lasts_ms - after_ms)
        case "record, follower paused":
            await _paused(world, [rng.choice(followers)], lasts_ms)
        case what if what == RESTARTED:
            until_ms = world.loop.now_ms + lasts_ms
            await _restarted(world, rng.choice(followers), rng.choice((10, 300, 1_500)))
            await world.clock.sleep_ms(max(0.0, until_ms - world.loop.now_ms))
        case "all paused":
            await _paused(world, list(world.copies), lasts_ms)
        case _:
            raise ValueError(f"no outage {what!r}")
    world.place.away = False


async def _restarted(world: GroupWorld, copy: Copy, after_ms: int) -> None:
    """It cannot read whom to follow, and every commit waits for it, since the in-sync set cannot change."""
    with copy.held():
        world.kill(copy, Keep.ALL)
        await world.clock.sleep_ms(after_ms)
        await world.start(copy)
    begun_ms, seen = world.loop.now_ms, len(world.recorder.events)
    while not _is_answered(world, seen):
        if world.loop.now_ms > begun_ms + ANSWERED_MS:
            world.problems.append(
                f"no send was acknowledged within {ANSWERED_MS} ms after {copy.name} had started again while the record was "
                f"away ({world.state()})"
            )
            return
        await world.clock.sleep_ms(20)
    world.note(f"acknowledged {world.loop.now_ms - begun_ms:.0f} ms after {copy.name} had started again")


def _is_answered(world: GroupWorld, since: int) -> bool:
    """A send that began behind so many events of the history was acknowledged."""
    events = world.recorder.events[since:]
    sends = {event.id for event in events if event.kind == "invoke" and event.op == Op.SEND}
    return any(event.kind == "ok" and event.id in sends for event in events)


async def _paused(world: GroupWorld, copies: list[Copy], lasts_ms: int) -> None:
    processes = [copy.process for copy in copies if copy.process is not None]
    for process in processes:
        process.pause()
    await world.clock.sleep_ms(lasts_ms)
    world.place.away = False
    for process in processes:
        process.resume()


def _judge(world: GroupWorld, epoch: int, back_ms: float) -> None:
    for elected, number, at_ms in world.place.elections:
        if elected > epoch and at_ms < back_ms + SUSPECT_MS * CLOCKS:
            world.problems.append(
                f"b{number} was elected {at_ms - back_ms:.0f} ms after {world.plan.outage} was over, although the leader "
                "lived and was heard of"
            )


async def _followed(world: GroupWorld, epoch: int, back_ms: float) -> None:
    while (record := world.place.record) is not None and record.epoch <= epoch:
        if world.loop.now_ms > back_ms + ELECTED_MS:
            world.problems.append(
                f"no other copy elected {ELECTED_MS} ms after {world.plan.outage} was over ({world.state()})"
            )
            return
        await world.clock.sleep_ms(20)
