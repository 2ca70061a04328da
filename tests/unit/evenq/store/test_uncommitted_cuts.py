"""Whatever is cut off a log behind what was committed, no derived file contradicts what is left: random lives of a
leader, ended by a kill, an abandonment or a stop, cut by hand, grown by what another leader wrote (as a follower's log
is), and opened again by the next leader or with one copy.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import dataclass, field

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import PersistenceTimeout, TooManyRequests
from evenq.store import Append, FlushMode, TimerAppend
from evenq.store.io.disk import RealDisk

SEGMENT_BYTES = 4096
KEYS = (b"k0", b"k1", b"k2")


@dataclass
class Call:
    """What one append call put into the log, and where it ends there."""

    end: int
    messages: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    """Queue id, head, key."""
    states: list[bytes] = field(default_factory=list)
    timers: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


class Memory:
    """A disk whose content outlives its owner."""

    def __init__(self, _):
        self.disk = FaultDisk()

    def killed(self):
        self.disk = self.clone()  # what the old process still does, it does not do to these files

    def clone(self):
        clone = self.disk.crash(Keep.ALL, random.Random(0))
        self.disk.dead = False
        return clone

    def take_log(self, clone):
        self.disk.remove("commitlog")
        for name in clone.list("commitlog"):
            file = self.disk.open(f"commitlog/{name}", create=True)
            file.pwrite([bytes(clone.files[f"commitlog/{name}"].data)], 0)
            file.sync()
        self.disk.sync_folder("commitlog")

    @property
    def end(self):
        names = self.disk.list("commitlog")
        return int(names[-1]) + len(self.disk.files[f"commitlog/{names[-1]}"].data) if names else 0

    def cut(self, end):
        for name in self.disk.list("commitlog"):
            data = self.disk.files[f"commitlog/{name}"].data
            if int(name) >= end:
                self.disk.remove(f"commitlog/{name}")
            elif int(name) + len(data) > end:
                del data[end - int(name) :]


class Folder:
    """The same in a folder of the real file system."""

    def __init__(self, path):
        self._path, self._lives = path, 0
        self.disk = path / "0"

    def killed(self):
        """The folder as it is found; another one is cut, so that an old thread would not be seen in it."""
        self.disk = self.clone()

    def clone(self):
        self._lives += 1
        return shutil.copytree(self.disk, self._path / str(self._lives))

    def take_log(self, clone):
        shutil.rmtree(self.disk / "commitlog")
        shutil.copytree(clone / "commitlog", self.disk / "commitlog")

    @property
    def end(self):
        names = RealDisk(self.disk).list("commitlog")
        return int(names[-1]) + (self.disk / "commitlog" / names[-1]).stat().st_size if names else 0

    def cut(self, end):
        for path in sorted((self.disk / "commitlog").iterdir()):
            if int(path.name) >= end:
                path.unlink()
            elif int(path.name) + path.stat().st_size > end:
                with path.open("r+b") as file:
                    file.truncate(end - int(path.name))


class Lives:
    """One log through the lives of several leaders, beside what it must hold."""

    def __init__(self, open_store, place, seed):
        self._open = open_store
        self._place = place
        self._rng = random.Random(seed)
        self._clock = None
        self._retains = seed % 3 == 0
        self._flush = FlushMode.SYNC if seed % 2 else FlushMode.ASYNC
        self._epoch = 0
        self._number = 0
        self._asked = []
        self.calls: list[Call] = []
        self.committed = 0
        self.opened = None

    # -- a life -------------------------------------------------------------------------------------------------------

    async def begin(self, *, replicated):
        self._epoch += 1
        self.opened = await self._open(
            self._place.disk, replicated=replicated, epoch=self._epoch, clock=self._clock, flush=self._flush,
            segment_bytes=SEGMENT_BYTES, keys_of=lambda _, system: [system],
            snapshot_of=lambda: b"%d" % len(self.states(self.calls)), snapshot_interval_ms=3_000,
            checkpoint_interval_ms=700, retention_ms=30_000 if self._retains else 0, retention_hour=-1,
        )  # fmt: skip
        self._clock = self.opened.clock
        self._asked = []
        await self.judge()

    async def live(self, steps):
        for _ in range(steps):
            await self._rng.choices(
                [
                    self._append,
                    self._commit,
                    self._pass_time,
                    self._checkpoint,
                    self._snapshot,
                    self._sync,
                    self._clean,
                ],
                [8, 5, 3, 2, 2, 1, 1],
            )[0]()
            for _ in range(self._rng.choice((0, 1, 3, 20))):
                await asyncio.sleep(0)
            self.opened.store._state.check()
            assert self.opened.store.stats.log_end <= max(self.committed, self._recovered_end())

    async def end(self):
        store = self.opened.store
        how = self._rng.choice(("kill", "abandon", "close", "wait"))
        if how == "kill" and isinstance(self._place, Memory):
            self._place.killed()
        if how == "close":
            await store.close()
        elif how == "wait":
            closing = asyncio.ensure_future(store.close(close_wait_ms=50))
            await asyncio.sleep(0)
            if not closing.done():
                self._note(store.stats.written_end)
                store.commit(store.stats.written_end)
            await self._clock.during(closing)
        else:
            await store.abandon(PersistenceTimeout("deposed"))
        await asyncio.gather(*self._asked, return_exceptions=True)
        if how != "kill" or not isinstance(self._place, Memory):
            self._place.killed()
        end = self._place.end
        ends = [call.end for call in self.calls if self.committed <= call.end <= end]
        if ends and self._rng.random() < 0.8:
            end = self._rng.choice(ends)
            self._place.cut(end)
        self.calls = [call for call in self.calls if call.end <= end]
        if self._rng.random() < 0.5:
            await self._follow()

    async def _follow(self):
        """Another leader goes on from here, and its records are copied; files derived from the log stay as they are."""
        clone = self._place.clone()
        self._epoch += 1
        self.opened = await self._open(
            clone, replicated=True, epoch=self._epoch, clock=self._clock, segment_bytes=SEGMENT_BYTES
        )
        for _ in range(self._rng.randint(1, 12)):
            await self._append()
        end = self.opened.store._appender.assigned_end
        while self.opened.store.stats.written_end < end:  # noqa: ASYNC110  # counters
            await asyncio.sleep(0)
        await self.opened.store.abandon(PersistenceTimeout("deposed"))
        self._place.take_log(clone)

    def _recovered_end(self):
        return self.opened.store.stats.log_end if not self.opened.store._state.certain else 0

    def _note(self, end):
        self.committed = max(self.committed, end)

    # -- steps --------------------------------------------------------------------------------------------------------

    async def _append(self):
        rng, store = self._rng, self.opened.store
        for _ in range(rng.randint(1, 3)):
            call = Call(0)
            for _ in range(rng.randint(0, 3)):
                self._number += 1
                call.messages.append(
                    (rng.randint(0, 2), b"%d" % self._number + b"." * rng.choice((0, 90, 700)), rng.choice(KEYS))
                )
            if rng.random() < 0.3:
                self._number += 1
                call.states.append(b"s%d" % self._number)
            timers = [_timer(self._number) for _ in range(rng.choice((0, 0, 1, 2)))]
            pending = self.pending(self.calls)
            if pending and not self._retains and rng.random() < 0.3:
                call.ended.append(rng.choice(pending))
            if not call.messages and not call.states and not timers and not call.ended:
                continue
            entries = [Append(1, queue_id, 0, 0, head, key) for queue_id, head, key in call.messages]
            try:
                store.append(entries, state=b"".join(call.states), timers=timers, ended=call.ended).add_done_callback(
                    _looked_at
                )
            except TooManyRequests:
                continue
            call.end = store._appender.assigned_end
            call.timers = [one.log_offset for one in timers]
            self.calls.append(call)

    async def _commit(self):
        store = self.opened.store
        end = self._rng.randint(0, store.stats.written_end)
        if self._rng.random() < 0.5:
            end = store.stats.written_end
        self._note(end)
        store.commit(end)

    async def _pass_time(self):
        await self._clock.advance(self._rng.choice((10, 600, 4_000, 70_000 if self._retains else 1_200)))

    async def _checkpoint(self):
        await self.opened.store.checkpoint()

    async def _snapshot(self):
        payload = b"%d" % len(self.states(self.calls))
        self._asked.append(asyncio.ensure_future(self.opened.store.save_snapshot(payload)))

    async def _sync(self):
        await self.opened.store.sync_written()

    async def _clean(self):
        self._asked.append(asyncio.ensure_future(self.opened.store.clean()))

    # -- what must be there -------------------------------------------------------------------------------------------

    @staticmethod
    def states(calls):
        return [state for call in calls for state in call.states]

    @staticmethod
    def pending(calls):
        ended = {timer for call in calls for timer in call.ended}
        return [timer for call in calls for timer in call.timers if timer not in ended]

    async def judge(self):
        """What a start found is what is left of the log, all of it."""
        opened, store = self.opened, self.opened.store
        messages = [message for call in self.calls for message in call.messages]
        minima = {}
        for queue_id in range(3):
            heads = [head for queue, head, _ in messages if queue == queue_id]
            low, high = store.queue_range(1, queue_id)
            assert high == len(heads)
            assert self._retains or low == 0
            assert await opened.contents(1, queue_id) == heads[low:]
            minima[queue_id] = low
        states = self.states(self.calls)
        result = int(opened.snapshots[-1]) if opened.snapshots else 0
        assert opened.states == states[len(states) - len(opened.states) :]
        assert len(states) - len(opened.states) <= result <= len(states)
        assert store.timers.stats.pending == len(self.pending(self.calls))
        if not store._state.replicated:
            await self._judge_index(messages, minima)

    async def _judge_index(self, messages, minima):
        for key in KEYS:
            places = {0: 0, 1: 0, 2: 0}
            expected = []
            for queue_id, head, its_key in messages:
                if its_key == key and places[queue_id] >= minima[queue_id]:
                    expected.append(head)
                places[queue_id] += 1
            found = await self.opened.store.find(1, key, count_max=10_000)
            assert [message.head for message in found] == expected[::-1]


def _timer(number):
    return TimerAppend(1, 5, 0, due_ms=1 << 50, kind=1, born_ms=0, head=b"t%d" % number, system=b"")


def _looked_at(future):
    if not future.cancelled():
        future.exception()


async def _played(lives, number_of_lives, steps):
    for _ in range(number_of_lives):
        await lives.begin(replicated=True)
        await lives.live(steps)
        await lives.end()
    await lives.begin(replicated=False)
    store = lives.opened.store
    entries = [Append(1, queue_id, 0, 0, b"next", b"") for queue_id in range(3)]
    expected = [store.queue_range(1, queue_id)[1] for queue_id in range(3)]
    await store.append(entries)
    assert [entry.queue_offset for entry in entries] == expected
    await store.close()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_derived_agrees_with_any_log_that_keeps_what_was_committed(open_store, seed):
    asyncio.run(_played(Lives(open_store, Memory(None), seed), 4, 40))


@pytest.mark.parametrize("seed", range(3))
def test_so_it_does_in_real_files(open_store, tmp_path, seed):
    asyncio.run(_played(Lives(open_store, Folder(tmp_path), seed), 3, 40))
