"""What is done to a simulated group, step by step, and undone.

What destroys data (a wiped disk, a flipped bit, a loss of power where copies count once they are written) is done only
while every pair of the in-sync set is whole and nothing was destroyed lately: what the promise allows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from evenq_proofs.sim import SimProcess, ended

from replicated_sim.disks import Flip, Keep, SimDisk
from replicated_sim.moments import MOMENTS, NOT_NOW, Moments
from replicated_sim.outages import play_outage
from replicated_sim.scenario import GroupStep

if TYPE_CHECKING:
    from replicated_sim.world import Copy, GroupWorld

SAFE_MS = 4_000
"""A write of the record may come this late, and name who is gone by then."""
HEAL_MS = 60_000
LATER_MS = 3_000
"""A leader that could not renew may lose its place that long after the fault."""


class GroupFaults:
    """Plays the steps of a plan."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self._destroyed_ms = -SAFE_MS
        self._cuts: list[list[tuple[str, str]]] = []
        self._healing: list[asyncio.Task[None]] = []
        self._moments = Moments(self)
        self._rot_rng = random.Random(f"rot {world.plan.seed}")
        self._sector_rng = random.Random(f"lost sectors {world.plan.seed}")

    async def play(self) -> None:
        """All steps, then everything is made whole."""
        world, plan, steps = self.world, self.world.plan, []
        for step in plan.steps:
            await world.clock.sleep_ms(max(0.0, step.at_ms - world.loop.now_ms))
            steps.append(world.loop.create_task(self._step(step), name=step.what))
        await asyncio.gather(*steps)
        await world.clock.sleep_ms(max(0.0, plan.heal_ms - world.loop.now_ms))
        self._join_links()
        fault = world.net.fault
        fault.loss, fault.breaks, fault.spike = 0.0, 0.0, 0.0
        world.place.stale = world.place.unclear = 0.0
        for copy in world.copies:
            copy.disk.disarm()
        world.note("everything is well again")
        await play_outage(world)

    async def _step(self, step: GroupStep) -> None:
        world = self.world
        copy = self._pick(step.target)
        name = f"{step.what} {copy.name if copy else 'nobody'}"
        world.note(f"{name} for {step.lasts_ms} ms; {world.state()}")
        if copy is None:
            return
        number = f"{step.at_ms}"
        world.recorder.fault(f"{step.what} {number}")
        try:
            await self.do(step.what, copy, step.lasts_ms)
        finally:
            world.note(f"over: {name}")
            self._healing.append(world.loop.create_task(self._heal(f"{step.what} {number}"), name="heal"))

    async def _heal(self, name: str) -> None:
        """What a step broke is whole when the group is: an election may come long after it."""
        await self.world.clock.sleep_ms(LATER_MS)
        await self.world.whole(within_ms=HEAL_MS)
        self.world.recorder.heal(name)

    def _pick(self, target: str) -> Copy | None:
        world = self.world
        leader = world.leader
        match target:
            case "leader":
                return leader
            case "follower":
                rest = [copy for copy in world.copies if copy is not leader]
                return world.rng.choice(rest)
            case _:
                return world.rng.choice(world.copies)

    async def do(self, what: str, copy: Copy, lasts_ms: int) -> None:
        """One fault, from its begin to its end."""
        match what:
            case "kill" | "power" | "wipe" | "flip" | "cut power" | "pause" | "roll" | "hand over":
                if copy.busy or not copy.alive:
                    return
                await self._to_copy(what, copy, lasts_ms)
            case "power all":
                await self._power_all(lasts_ms)
            case "rot":
                await self._rot(copy)
            case "lost sector":
                await self._lose_sector(copy, lasts_ms)
            case _ if what in MOMENTS:
                await self._moments.play(what, lasts_ms)
            case _:
                await self._to_net(what, copy, lasts_ms)

    # ------------------------------------------------------------------------------------------------ copies

    def may_destroy(self, copy: Copy) -> bool:
        """Nothing committed would be lost, whatever became of the newest write of the record."""
        world, record = self.world, self.world.place.record
        if record is None or world.loop.now_ms - self._destroyed_ms < SAFE_MS:
            return False
        pairs = {one.pair for one in world.copies if not one.flipped}
        whole = all(pair in pairs for pair in record.isr)
        if not whole or len(record.isr) < 2 or any(one.flipped for one in world.copies):
            return False
        self._destroyed_ms = world.loop.now_ms
        return bool(copy)

    async def _to_copy(self, what: str, copy: Copy, lasts_ms: int) -> None:
        world, process = self.world, copy.process
        assert process is not None
        assert copy.app is not None
        loses = what in ("wipe", "flip") or (what in ("power", "cut power") and world.plan.mode == "memory")
        if loses and not self.may_destroy(copy):
            world.note(NOT_NOW)
            return
        if what == "cut power":
            copy.disk.arm(world.rng)
            await world.clock.sleep_ms(lasts_ms)
            copy.disk.disarm()
            return
        if what == "hand over":
            await self._hand_over(copy)
            return
        with copy.held():
            await self._held(what, copy, process, lasts_ms)

    async def _held(self, what: str, copy: Copy, process: SimProcess, lasts_ms: int) -> None:
        """A fault during which nobody else acts on the copy."""
        world = self.world
        match what:
            case "pause":
                process.pause()
                await world.clock.sleep_ms(lasts_ms)
                process.resume()
            case "roll":
                await world.stop(copy)
                world.kill(copy, Keep.ALL)
                await world.clock.sleep_ms(min(lasts_ms, 1_000))
                await world.start(copy)
            case _:
                world.kill(copy, Keep.ALL if what in ("kill", "wipe", "flip") else self._kept())
                if what == "wipe":
                    copy.disk = SimDisk()
                elif what == "flip":
                    self._flip(copy, copy.disk.flip(world.rng))
                await world.clock.sleep_ms(lasts_ms)
                await world.start(copy)

    def _flip(self, copy: Copy, flip: Flip | None) -> None:
        self.world.note(f"flipped at {copy.name}: {flip or 'nothing is old enough'}")
        copy.flips += [] if flip is None else [flip]

    async def _rot(self, copy: Copy) -> None:
        """Bits turn under running brokers: of one copy, or at the same place of the one that it asks first, too."""
        rng, parts = self._rot_rng, copy.parts
        # One that starts just now has no links yet, over which it would ask for a repair.
        if parts is None or not copy.alive or not self.may_destroy(copy):
            self.world.note(NOT_NOW)
            return
        other = self.world.copies[parts.log.others()[0]]
        flip = copy.disk.flip(rng, before=copy.disk.vouched_end())
        self._flip(copy, flip)
        record = self.world.place.record
        all_in_sync = record is not None and len(record.isr) == len(self.world.copies)
        if flip is not None and all_in_sync and flip.log_offset < other.disk.vouched_end() and rng.random() < 0.7:
            self._flip(other, other.disk.flip_at(flip.name, flip.place, rng.randrange(8)))
        if flip is not None and rng.random() < 0.7:  # soon, or when the play is over
            await asyncio.gather(*(self.world.read_at(one, flip) for one in (copy, other)))

    async def _lose_sector(self, copy: Copy, lasts_ms: int) -> None:
        """A disk cannot read a place of the log any more, perhaps a second one neither: readers meet it, or a start."""
        rng, world, parts, process = self._sector_rng, self.world, copy.parts, copy.process
        if parts is None or process is None or copy.busy or not copy.alive or not self.may_destroy(copy):
            world.note(NOT_NOW)
            return
        other = world.copies[parts.log.others()[0]]
        lost = copy.disk.lose(rng)
        self._flip(copy, lost)
        record = world.place.record
        all_in_sync = record is not None and len(record.isr) == len(world.copies)
        if (
            lost is not None
            and all_in_sync
            and lost.log_offset + 8_192 < other.disk.vouched_end()
            and rng.random() < 0.5
        ):
            self._flip(other, other.disk.lose_at(lost.name, lost.place))
        then = rng.choice(("read", "start", "later"))
        if lost is not None and then == "read":
            await asyncio.gather(*(world.read_at(one, lost) for one in (copy, other)))
        elif lost is not None and then == "start":
            with copy.held():
                await self._held("kill", copy, process, lasts_ms)

    def _kept(self) -> Keep:
        return self.world.rng.choice((Keep.NONE, Keep.SOME))

    async def _power_all(self, lasts_ms: int) -> None:
        """All at once: what is synced is promised, what is only written is not."""
        world = self.world
        copies = [copy for copy in world.copies if not copy.busy and copy.alive]
        if world.plan.mode == "memory" or len(copies) < len(world.copies):
            world.note(NOT_NOW)
            return
        for copy in copies:
            world.kill(copy, self._kept())

        async def back(copy: Copy) -> None:
            with copy.held():
                await world.clock.sleep_ms(lasts_ms + world.rng.choice((0, 5, 900)))
                await world.start(copy)

        await asyncio.gather(*(back(copy) for copy in copies))

    async def _hand_over(self, copy: Copy) -> None:
        world, parts, process = self.world, copy.parts, copy.process
        if parts is None or process is None or not parts.driver.leads:
            return
        to = world.rng.choice([one.number for one in world.copies if one is not copy])
        await ended(process.spawn(parts.driver.hand_over(to, within_ms=2_000), name="hand over"), world.clock)

    # ------------------------------------------------------------------------------------------------ the network

    async def _to_net(self, what: str, copy: Copy, lasts_ms: int) -> None:
        world, fault = self.world, self.world.net.fault
        names = [one.name for one in world.copies]
        own, others = copy.name, [name for name in names if name != copy.name]
        clients = [*(f"c{number}" for number in range(len(names))), "puller", "ns1"]
        match what:
            case "isolate":
                await self._cut([(own, other) for other in others], lasts_ms, both=True)
            case "one way in":
                await self._cut([(other, own) for other in others], lasts_ms)
            case "one way out":
                await self._cut([(own, other) for other in others], lasts_ms)
            case "pair":
                await self._cut([(own, world.rng.choice(others))], lasts_ms, both=world.rng.random() < 0.5)
            case "clients":
                await self._cut([(client, own) for client in clients], lasts_ms, both=True)
            case "leader and record":
                copy.record_cut = True
                await self._cut([(own, other) for other in others], lasts_ms, both=True)
                copy.record_cut = False
            case "lossy":
                await self._for(lasts_ms, lambda on: setattr(fault, "loss", 0.2 if on else 0.0))
            case "slow":
                await self._for(lasts_ms, lambda on: setattr(fault, "spike", 0.2 if on else 0.0))
            case "breaking":
                await self._for(lasts_ms, lambda on: setattr(fault, "breaks", 0.03 if on else 0.0))
            case "record away":
                await self._for(lasts_ms, lambda on: setattr(world.place, "away", on))
            case "record cut":
                await self._for(lasts_ms, lambda on: setattr(copy, "record_cut", on))
            case "record stale":
                await self._for(lasts_ms, lambda on: setattr(world.place, "stale", 0.5 if on else 0.0))
            case "record unclear":
                await self._for(lasts_ms, lambda on: setattr(world.place, "unclear", 0.5 if on else 0.0))
            case "clock":
                jump_ms = world.rng.choice((-60_000, -500, 500, 60_000)) if world.plan.clocks_off else 0
                copy.clock.skew_ms += jump_ms
            case _:
                raise ValueError(f"no step {what!r}")

    async def _cut(self, pairs: list[tuple[str, str]], lasts_ms: int, *, both: bool = False) -> None:
        cut = self.cut([*pairs, *((two, one) for one, two in pairs if both)])
        await self.world.clock.sleep_ms(lasts_ms)
        self.join(cut)

    def cut(self, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Cut these links, from the first of each pair to the second, until `join` is given what this gives."""
        self._cuts.append(pairs)
        self.world.net.cut(pairs)
        return pairs

    def join(self, cut: list[tuple[str, str]]) -> None:
        """Whole again, but for what others hold cut."""
        self._cuts = [held for held in self._cuts if held is not cut]
        self._join_links()

    def _join_links(self) -> None:
        """All but those that other steps hold cut."""
        self.world.net.heal()
        for cut in self._cuts:
            self.world.net.cut(cut)

    async def _for(self, lasts_ms: int, change: Callable[[bool], None]) -> None:
        change(True)
        await self.world.clock.sleep_ms(lasts_ms)
        change(False)
