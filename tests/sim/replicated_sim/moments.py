"""Faults that need a moment: the in-sync set changes, logs are matched, a deposed leader does not know it yet.

Each waits until its moment comes, with what else it needs drawn by the seed, and then takes copies away. Most rules of
the protocol protect such a moment, and faults that come at any time hardly ever hit one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evenq_broker.core.replication.record import GroupRecord, Pair
from evenq_broker.core.replication.rules import Role

if TYPE_CHECKING:
    from replicated_sim.faults import GroupFaults
    from replicated_sim.world import Copy

MOMENTS = ("strike", "admission", "floor", "succession", "late reader", "unsynced", "retire", "woken")
NOT_NOW = "not now"
WAIT_MS = 8_000
"""For the moment; it may never come."""
QUIET_MS = 2_000
"""Polls end, and what they gave is safe."""
ANSWER_MS = 10
"""The question that waited is answered within this."""
CLIENTS = ("c0", "c1", "c2", "again", "reader")
"""All but the puller."""
AWAY_MS = (2_500, 5_000)
"""Long enough for an election."""


class Moments:
    """Plays them for `GroupFaults`."""

    def __init__(self, faults: GroupFaults) -> None:
        self._faults, self._world = faults, faults.world
        self._playing = False

    async def play(self, what: str, lasts_ms: int) -> None:
        """One of MOMENTS, unless another one is waited for: each has its own idea of who must be there."""
        leader = self._world.leader
        if self._playing or leader is None or leader.busy:
            self._world.note(NOT_NOW)
            return
        self._playing = True
        try:
            await self._play(what, leader, lasts_ms)
        finally:
            self._playing = False

    async def _play(self, what: str, leader: Copy, lasts_ms: int) -> None:
        world = self._world
        followers = [copy for copy in world.copies if copy is not leader]
        follower, other = followers if world.rng.random() < 0.5 else followers[::-1]
        match what:
            case "strike":
                await self._strike(leader, follower, lasts_ms)
            case "admission":
                await self._admission(leader, follower, other)
            case "floor":
                await self._floor(leader, follower, other)
            case "succession":
                await self._succession(leader)
            case "late reader":
                await self._late_reader(leader)
            case "unsynced":
                await self._unsynced(leader, followers)
            case "retire":
                await self._retire(leader, lasts_ms)
            case "woken":
                await self._woken(leader)
            case _:
                raise ValueError(f"no moment {what!r}")

    async def _strike(self, leader: Copy, follower: Copy, lasts_ms: int) -> None:
        """A follower goes, so that the in-sync set changes, of which its leader may not know; then the leader goes."""
        world, place = self._world, self._world.place
        before = place.sets
        place.unclear = world.rng.choice((0.0, 0.3, 0.6))
        with self._without(follower):
            wanted = before + world.rng.choice((1, 2, 2))
            cut_until_ms = world.loop.now_ms + world.rng.randint(1_200, 2_500)
            await self._until(lambda: place.sets >= wanted or world.loop.now_ms >= cut_until_ms)
        await self._until(lambda: place.sets >= wanted)
        await world.clock.sleep_ms(world.rng.choice((0, 10, 100, 800)))
        if not leader.busy and leader.alive:
            what = world.rng.choice(("kill", "power", "isolate"))
            world.note(f"{what} of {leader.name} at the change; {world.state()}")
            await self._faults.do(what, leader, max(lasts_ms, 2_500))
        place.unclear = 0.0

    async def _admission(self, leader: Copy, follower: Copy, other: Copy) -> None:
        """A follower is taken into the in-sync set again, its leader perhaps does not hear that the record says so, and
        the follower perhaps gets nothing more; then everybody else goes.
        """
        world, place = self._world, self._world.place
        with self._without(follower):
            if not await self._until(lambda: not self._is_in_sync(follower)):
                return
            await world.clock.sleep_ms(world.rng.choice((0, 300, 1_000, 2_000)))
        deaf, apart = world.rng.random() < 0.6, world.rng.random() < 0.6

        def written(record: GroupRecord, before: tuple[Pair, ...]) -> None:
            if deaf and record.leader == leader.number and _joined(record, before, follower.number):
                leader.record_cut = True

        place.on_set.append(written)
        try:
            if not await self._until(lambda: self._is_in_sync(follower)):
                return
            with self._cut([(leader.name, follower.name)] if apart else []):
                await world.clock.sleep_ms(world.rng.choice((0, 0, 2, 20, 200, 800)))
                world.note(f"{follower.name} was admitted; {world.state()}")
                await self._away([leader, other] if world.rng.random() < 0.8 else [leader])
        finally:
            place.on_set.remove(written)
            leader.record_cut = False

    async def _floor(self, leader: Copy, follower: Copy, other: Copy) -> None:
        """The in-sync set is at its minimum, so a follower that starts anew stays in it; its log is matched, and the
        leader goes.
        """
        world = self._world
        with self._without(other):
            if not await self._until(lambda: not self._is_in_sync(other)) or follower.busy or not follower.alive:
                return
            starts = follower.starts
            restart = world.loop.create_task(
                self._faults.do("kill", follower, world.rng.choice((10, 100))), name="restart"
            )
            await self._until(lambda: follower.starts > starts and follower.role is Role.FETCHING, every_ms=1)
            await world.clock.sleep_ms(world.rng.choice((0, 0, 3, 20, 100)))
            world.note(f"{follower.name} follows again; {world.state()}")
            away = world.loop.create_task(self._away([leader]), name="away")
            await world.clock.sleep_ms(world.rng.choice((0, 1_000)))
        await asyncio.gather(restart, away)

    async def _succession(self, leader: Copy) -> None:
        """The leader goes, a follower matches its log with the next one's, and that one goes, too."""
        world = self._world
        first = world.loop.create_task(self._away([leader]), name="away")

        def follows() -> list[Copy]:
            epochs = {copy.epoch for copy in world.copies if copy.role in (Role.STARTING, Role.READY)}
            return [
                copy
                for copy in world.copies
                if copy is not leader and copy.role is Role.FETCHING and copy.epoch == max(epochs, default=-1)
            ]

        was = leader.epoch
        await self._until(lambda: any(copy.epoch > was for copy in follows()), every_ms=1)
        await world.clock.sleep_ms(world.rng.choice((0, 0, 3, 20, 100)))
        following = follows()
        rest = [copy for copy in world.copies if copy not in following]
        world.note(f"the log of {[copy.name for copy in following]} was matched; {world.state()}")
        await asyncio.gather(first, self._away([copy for copy in rest if not copy.busy]))

    async def _late_reader(self, old: Copy) -> None:
        """A deposed leader goes on unknowing. A follower of its successor starts anew, reads the record as it was, and
        hears the deposed one; then the successor goes.
        """
        world, place = self._world, self._world.place
        old.record_cut = True
        try:
            with self._without(old):
                if not await self._until(lambda: self._leads(old) not in (None, old)):
                    return
                await world.clock.sleep_ms(world.rng.choice((100, 1_200, 2_500)))
            new = self._leads(old)
            if new is None or new is old or new.busy:
                return
            follower = next(copy for copy in world.copies if copy not in (old, new))
            with self._cut([(old.name, new.name)]):
                if follower.busy or not follower.alive:
                    return
                place.stale, starts = world.rng.choice((0.5, 0.9)), follower.starts
                restart = world.loop.create_task(self._faults.do("kill", follower, 10), name="restart")
                await self._until(
                    lambda: follower.starts > starts and follower.role is Role.FETCHING, every_ms=1, within_ms=3_000
                )
                await world.clock.sleep_ms(world.rng.choice((0, 0, 3, 20)))
                world.note(f"{follower.name} follows again; {world.state()}")
                place.stale = 0.0
                away = world.loop.create_task(self._away([new]), name="away")
            old.record_cut = False
            await asyncio.gather(restart, away)
        finally:
            place.stale = 0.0
            old.record_cut = False

    async def _unsynced(self, leader: Copy, followers: list[Copy]) -> None:
        """A machine loses power while a write that others have, or heard of, is not on its disk. Then only this copy
        can be elected: it is the leader, which no other can follow in time, or everybody else goes.
        """
        world = self._world
        copy = world.rng.choice((leader, followers[0]))
        if world.plan.mode == "memory" and not self._faults.may_destroy(copy):
            return
        disk, starts = copy.disk, copy.starts
        disk.arm_sync()
        for follower in followers:
            follower.record_cut = copy is leader
        try:
            if not await self._until(lambda: disk.dead, every_ms=1, within_ms=1_000):
                return
            if copy is leader:
                await self._until(lambda: leader.starts > starts and leader.role is Role.STARTING, within_ms=3_000)
            else:
                await self._away([one for one in (leader, *followers) if one is not copy and not one.busy])
        finally:
            disk.disarm()
            for follower in followers:
                follower.record_cut = False

    async def _retire(self, leader: Copy, lasts_ms: int) -> None:
        """Who is elected is stopped in order, and starts again, while it begins to lead or soon after that."""
        world, epoch = self._world, leader.epoch
        way = world.loop.create_task(
            self._faults.do(world.rng.choice(("hand over", "hand over", "roll", "kill")), leader, lasts_ms), name="way"
        )
        new = None
        if await self._until(lambda: (record := world.place.record) is not None and record.epoch > epoch, every_ms=1):
            assert world.place.record is not None
            new = world.copies[max(0, world.place.record.leader)]
            await world.clock.sleep_ms(world.rng.choice((0, 1, 3, 10, 30, 100, 300, 1_000)))
        if new is not None and new.alive and not new.busy:
            world.note(f"{new.name} is stopped; {world.state()}")
            await self._faults.do("roll", new, lasts_ms)
        await way

    async def _woken(self, old: Copy) -> None:
        """A leader does not run until a reader has progress at its successor. The reader then asks the old one, which
        goes on with that question before it knows anything. No other client reaches it: an answer that stands behind a
        record of theirs fails with it.
        """
        world, process = self._world, old.process
        assert process is not None
        assert world.clients is not None
        puller = world.clients.puller

        def goes_on() -> bool:
            new = self._leads(old)
            return new is not None and new is not old and puller.reads_at == new.number

        with old.held(), self._cut([(client, old.name) for client in CLIENTS]):
            await self._until(lambda: _has_recorded_all(old), every_ms=1, within_ms=QUIET_MS)
            process.pause()
            if await self._until(goes_on):
                await world.clock.sleep_ms(world.rng.choice((300, 1_000, 2_000)))
                puller.turns_to = old.number
                await self._until(lambda: puller.turns_to is None, within_ms=1_000)
                await world.clock.sleep_ms(world.rng.choice((10, 100)))
                world.note(f"{old.name} goes on; {world.state()}")
            process.resume()
            await world.clock.sleep_ms(ANSWER_MS)

    # ------------------------------------------------------------------------------------------------ inside

    def _leads(self, old: Copy) -> Copy | None:
        """Whom the record names, once it serves."""
        record = self._world.place.record
        if record is None or record.leader < 0:
            return None
        copy = self._world.copies[record.leader]
        return copy if copy is old or copy.role is Role.READY else None

    def _is_in_sync(self, copy: Copy) -> bool:
        record = self._world.place.record
        return record is not None and copy.pair in record.isr

    async def _until(self, comes: Callable[[], object], *, every_ms: float = 2, within_ms: float = WAIT_MS) -> bool:
        world = self._world
        until_ms = world.loop.now_ms + within_ms
        while not comes():
            if world.loop.now_ms >= until_ms:
                return False
            await world.clock.sleep_ms(every_ms)
        return True

    @contextmanager
    def _cut(self, links: list[tuple[str, str]]) -> Iterator[None]:
        """Both ways."""
        held = self._faults.cut([*links, *((two, one) for one, two in links)])
        try:
            yield
        finally:
            self._faults.join(held)

    @contextmanager
    def _without(self, copy: Copy) -> Iterator[None]:
        """It is cut off from the other copies."""
        with self._cut([(copy.name, one.name) for one in self._world.copies if one is not copy]):
            yield

    async def _away(self, copies: list[Copy]) -> None:
        """They go, each by a way of its own, and come back."""
        world = self._world
        lasts_ms = world.rng.randint(*AWAY_MS)
        ways = ("kill", "kill", "pause", "leader and record")
        await asyncio.gather(*(self._faults.do(world.rng.choice(ways), copy, lasts_ms) for copy in copies))


def _has_recorded_all(copy: Copy) -> bool:
    term = copy.term
    if term is None:
        return True
    journal = term.broker.ledger.journal
    return not journal._owed and journal.safe() is None  # `safe` would record what is owed


def _joined(record: GroupRecord, before: tuple[Pair, ...], number: int) -> bool:
    return any(pair.broker_id == number for pair in record.isr) and all(pair.broker_id != number for pair in before)
