"""One world of a replicated group: three real brokers, a nameserver, clients at each of them, and faults by plan.

Real: `ReplicatedApp` with its core, driver, links, log, replay, and the `BrokerApp` of each term; the store, its files
and their recovery; every byte between them. Given by the world: time, network, disks, threads, the record's place.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from evenq_broker.app import BrokerApp
from evenq_broker.core.replication.record import Pair
from evenq_broker.core.replication.rules import InvariantBroken, Role
from evenq_broker.loops.replication.record_repair import RecordRepair
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.replica.composition import CopyParts
from evenq_broker.replica.copy_log import ReplicaMachine
from evenq_broker.replica.replicated_app import ReplicatedApp
from evenq_broker.settings import BrokerSettings, ReplicationSettings, StoreSettings
from evenq_nameserver.app import Nameserver
from evenq_nameserver.settings import NameserverSettings
from evenq_proofs.group_faults.clients import Acknowledged
from evenq_proofs.kill_loop.clients import BROKER, GROUPS, QUEUES, TOPIC
from evenq_proofs.sim import PROCESS, ProcessClock, ProcessNet, SimNet, SimProcess, ended
from evenq_proofs.sim.threads import ThreadedLoop, thread_stand_ins
from evenq_sim.edges import edges_of, replaced

from evenq.errors import Error, StoreCorrupted
from evenq.model import MessageType
from evenq.testing.history import HistoryAction, Op
from replicated_sim.clients import MemoryRecorder, SimClients, drain
from replicated_sim.disks import Flip, Keep, SimDisk
from replicated_sim.faults import GroupFaults
from replicated_sim.judging import GroupOutcome, judged, late_again
from replicated_sim.outages import SUSPECT_MS
from replicated_sim.plants import planted
from replicated_sim.record_place import GroupPlace, SimCoordinator
from replicated_sim.repeating import LANES, ORDERED_GROUP
from replicated_sim.scenario import SLOW_MS, GroupPlan, group_plan
from replicated_sim.stops import stop_all
from replicated_sim.transacting import INPUTS, OUTPUTS, TRANSACT_GROUP, TRANSACT_QUEUES
from replicated_sim.versions import before

COPIES = range(3)
BOUND_MS = 60_000
"""After the last fault the group is whole, and everything is read, within this."""
STOP_MS = 10_000
"""A broker that drains for 3 s at most has ended after this time, however slow its disk is."""
RESTART_MS = 1_000
REFUSALS_MAX = 3
STARTS_MAX = 100
PLAY_S = 300
"""All of a play takes a minute or two of the group's time."""
_NOBODY = contextvars.Context()
"""Of tasks of the world that are begun by a callback of a process."""


class Copy:
    """One broker's place, over all its starts."""

    def __init__(self, number: int, clock: ProcessClock) -> None:
        self.number, self.clock = number, clock
        self.name = f"b{number}"
        self.disk = SimDisk()
        self.boots = 1
        self.starts = 0
        self.process: SimProcess | None = None
        self.app: ReplicatedApp | None = None
        self._holders = 0
        self.flips: list[Flip] = []
        """Where its disk was damaged; repaired from another copy, or, if it does not start three times, replaced."""
        self.refusals = 0
        """Starts that its damage hindered."""
        self.record_cut = False

    @property
    def busy(self) -> bool:
        """A step is at work on it, or its power comes back: nobody else starts it meanwhile."""
        return self._holders > 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be at work on it. Counted: its power may go in the middle of a step and come back behind the step's end."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    @property
    def flipped(self) -> str:
        """Damage of its disk that is there still; empty: none."""
        self.flips = [flip for flip in self.flips if self.disk.shows(flip)]
        return ", ".join(map(str, self.flips))

    def get_empty_disk(self) -> None:
        """An operator gives it one."""
        self.disk, self.flips, self.refusals = SimDisk(), [], 0

    @property
    def alive(self) -> bool:
        """A process runs, or is paused."""
        return self.process is not None and self.process.alive

    @property
    def parts(self) -> CopyParts | None:
        """Of its newest start, also after its end; None: they were not built yet."""
        return None if self.app is None else self.app._parts

    @property
    def term(self) -> BrokerApp | None:
        """The broker of its present term; None: it does not lead."""
        return None if self.parts is None else self.parts.term.app

    @property
    def pair(self) -> Pair | None:
        """What it stands for in the record; None: nothing, or not now."""
        return None if self.parts is None or not self.alive else Pair(self.number, self.parts.identity.store_id)

    @property
    def role(self) -> Role | None:
        """Of its replica; None without one."""
        return self.parts.driver.replica.role if self.parts is not None and self.alive else None

    @property
    def epoch(self) -> int:
        """Of its replica; -1 without one."""
        return self.parts.driver.replica.max_epoch if self.parts is not None and self.alive else -1


class GroupWorld:
    """The group and what is done to it."""

    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        self.rng = random.Random(f"group world {plan.seed}")
        self._device = random.Random(f"device {plan.seed}")
        self.loop = ThreadedLoop(self._busy_ms)
        self.clock = ProcessClock(self.loop)
        self.recorder = MemoryRecorder(self.clock)
        self.net = SimNet(self.loop, random.Random(f"net {plan.seed}"), seen=lambda *_: None)
        self.place = GroupPlace(self.loop, random.Random(f"place {plan.seed}"))
        self.copies = [Copy(number, self._new_clock()) for number in COPIES]
        self.problems: list[str] = []
        self.notes: list[str] = []
        """What was done and what came of it, for people."""
        self.store_ids = 0
        self.clients: SimClients | None = None
        """Once the group is whole for the first time."""
        self.acknowledged: list[Acknowledged] = []
        self.drained = False
        """Everything was received, pulled and scanned, and all brokers were stopped in order."""
        self.unequal: list[str] = []
        """How logs differ although they should not."""
        self._tasks: list[asyncio.Task[Any]] = []

    def _busy_ms(self) -> float:
        """Of one job of the process that runs now."""
        process, slow = PROCESS.get(), self.plan.slow_disk
        is_slow = process is not None and slow is not None and process.host == f"b{slow}"
        return self._device.uniform(*(SLOW_MS if is_slow else self.plan.device_ms))

    def _new_clock(self) -> ProcessClock:
        rate, skew_ms = 1.0, 0
        if self.plan.clocks_off:
            rate, skew_ms = 1 + self.rng.uniform(-0.002, 0.002), self.rng.randint(-3_600_000, 3_600_000)
        return ProcessClock(self.loop, skew_ms=skew_ms, rate=rate, since_ms=self.rng.randint(0, 1_000_000))

    def note(self, text: str) -> None:
        """A line for the story."""
        self.notes.append(f"{self.loop.now_ms:11.3f} ms  {text}")

    # ------------------------------------------------------------------------------------------------ the play

    def play(self) -> GroupOutcome:
        """From the start to the verdict."""
        asyncio.set_event_loop(None)
        try:
            self.loop.run_until_complete(self._play_in_time())
        finally:
            self.loop.finish()
        return judged(self)

    async def _play_in_time(self) -> None:
        # Whatever waits for ever, in the programs or here, is a finding and no hang of the tests.
        try:
            async with asyncio.timeout(PLAY_S):
                await self._play()
        except TimeoutError:
            self.problems.append(f"not at its end after {PLAY_S} s of the group ({self.state()})")

    async def _play(self) -> None:
        nameserver = SimProcess("ns1", self.loop)
        settings = NameserverSettings(
            host="ns1", port=9876, heartbeat_interval_ms=1_000, expiry_ms=4_000, register_from="*"
        )
        clock = ProcessClock(self.loop)
        app = Nameserver(settings, clock=clock, rng=random.Random("ns1"), edges=edges_of(nameserver, self.net, clock))
        await asyncio.wait([nameserver.spawn(app.start(), name="start ns1")])
        await asyncio.gather(*(self.start(copy) for copy in self.copies))
        if not await self.whole(within_ms=30_000):
            self.problems.append(f"not begun: the new group is not whole within 30 s ({self.state()})")
            return
        leader = self.leader
        assert leader is not None
        assert leader.process is not None
        term = leader.term
        assert term is not None
        making = leader.process.spawn(
            term.broker.catalog.create_topic(TOPIC, queues=QUEUES, message_type=MessageType.MIXED), name="topic"
        )
        await making
        read = dict.fromkeys(GROUPS, TOPIC)
        if self.plan.repeats:
            await leader.process.spawn(_lanes(term.broker.catalog), name="topic of message groups")
            read[ORDERED_GROUP] = LANES
        if self.plan.transacts:
            await leader.process.spawn(_transactions(term.broker.catalog), name="topics of transactions")
        for group, topic in read.items():
            order = "queue" if group == "pull" else "none"
            number = self.recorder.invoke(
                Op.ADMIN, action=HistoryAction.SUBSCRIBE, group=group, topic=topic, order=order
            )
            self.recorder.ok(number)
        addresses = [f"{copy.name}:8081" for copy in self.copies]
        clients = self.clients = SimClients(
            self.loop,
            self.net,
            addresses,
            self.recorder,
            self.plan.seed,
            delays=not self.plan.clocks_off,
            repeats=self.plan.repeats,
            transacts=self.plan.transacts,
        )
        clients.start()
        faults = GroupFaults(self)
        await faults.play()
        clients.check()
        await self._settle(clients)

    async def _settle(self, clients: SimClients) -> None:
        whole = await self.whole(within_ms=BOUND_MS)
        await self.clock.sleep_ms(1_000)
        await clients.stop()
        self.acknowledged = clients.answers.acknowledged
        if not whole:
            self.problems.append(f"not whole {BOUND_MS} ms after the last fault ({self.state()})")
            return
        await self.clock.sleep_ms(6_000)  # delays and invisible times end
        await self._drain(clients)
        await self._mend()
        await stop_all(self)

    async def _drain(self, clients: SimClients) -> None:
        until_ms = self.loop.now_ms + BOUND_MS
        last = "no copy leads"
        while True:
            leader = self.leader
            try:
                if leader is not None:
                    await drain(f"{leader.name}:8081", self.net, self.loop, self.recorder)
                    await clients.drain()
                    if clients.transacted is not None:
                        self.problems += clients.transacted.problems()
                    self.drained = True
                    return
            except Error as error:
                last = f"{type(error).__name__}: {error}"
            if self.loop.now_ms > until_ms:
                self.problems.append(f"not drained within {BOUND_MS} ms: {last} ({self.state()})")
                return
            await self.clock.sleep_ms(300)

    async def _mend(self) -> None:
        """Whoever reads where a disk was damaged has it repaired; so it is here, for what nobody read (T4)."""
        until_ms = self.loop.now_ms + BOUND_MS
        while damaged := [copy for copy in self.copies if copy.flipped]:
            for copy in damaged:
                for flip in copy.flips:
                    await self.read_at(copy, flip)
            if self.loop.now_ms > until_ms:
                said = ", ".join(f"{copy.name}: {copy.flipped}" for copy in damaged)
                self.problems.append(f"not repaired within {BOUND_MS} ms: {said} ({self.state()})")
                return
            await self.clock.sleep_ms(1_000)

    async def read_at(self, copy: Copy, flip: Flip) -> None:
        """Somebody reads there, and meets the damage."""
        if copy.parts is not None and copy.process is not None and copy.alive:
            error = StoreCorrupted("somebody reads there", log_offset=flip.log_offset)
            await ended(copy.process.spawn(_mended(copy.parts.log.repair, error), name="read of damage"), self.clock)

    # ------------------------------------------------------------------------------------------------ looks

    @property
    def leader(self) -> Copy | None:
        """Who serves; in doubt the one of the record."""
        ready = [copy for copy in self.copies if copy.role is Role.READY]
        record = self.place.record
        named = [copy for copy in ready if record is not None and copy.number == record.leader]
        return (named or ready or [None])[0]

    def is_whole(self) -> bool:
        """One serves, all are in sync. Looks at deadlines besides, since it is asked ten times a second."""
        self.problems += [] if self.problems else late_again(self)
        record, leader = self.place.record, self.leader
        if record is None or leader is None or leader.parts is None or leader.term is None:
            return False
        pairs = {copy.pair for copy in self.copies}
        return not leader.parts.readiness.why_not() and set(record.isr) == pairs and leader.number == record.leader

    async def whole(self, *, within_ms: float) -> bool:
        """Wait for it; False: not within this."""
        until_ms = self.loop.now_ms + within_ms
        while not self.is_whole():
            if self.loop.now_ms > until_ms:
                return False
            await self.clock.sleep_ms(100)
        return True

    def state(self) -> str:
        """For people."""
        record = self.place.record
        said = "no record"
        if record is not None:
            said = f"epoch {record.epoch}, leader {record.leader}, in sync {[pair.broker_id for pair in record.isr]}"
        return f"{said}; " + ", ".join(f"{copy.name} {copy.role or 'is down'}" for copy in self.copies)

    # ------------------------------------------------------------------------------------------------ processes

    async def start(self, copy: Copy) -> None:
        """Start its broker; one that cannot is tried again, as a supervisor does."""
        while True:
            copy.starts += 1
            process = copy.process = SimProcess(f"{copy.name}#{copy.starts}", self.loop, host=copy.name)
            copy.disk.on_dead = partial(self._power_gone, copy, process)
            copy.app = None
            task = process.spawn(self._run(copy, process), name=f"run {process.name}")
            while copy.alive and not task.done() and not self._is_up(copy):
                await self.clock.sleep_ms(5)
            if not task.done():
                self._tasks.append(self.loop.create_task(self._watch(copy, process, task), name="watch"))
                return
            error = self._ended(copy, process, task)
            self._kill(process)
            if error is None or self.problems:  # it was killed, and something starts it; or there is a finding
                return
            if copy.starts > STARTS_MAX:
                self.problems.append(
                    f"{copy.name} could not start {copy.starts} times: {type(error).__name__}: {error}"
                )
                return
            copy.disk = copy.disk.crash(Keep.ALL, self.rng)
            await self.clock.sleep_ms(RESTART_MS)

    async def _run(self, copy: Copy, process: SimProcess) -> None:
        app = copy.app = ReplicatedApp(
            self._settings(copy),
            clock=copy.clock,
            rng=random.Random(f"{self.plan.seed} {process.name}"),
            net=ProcessNet(self.net, process),
            edges=edges_of(process, self.net, copy.clock),
            machine=ReplicaMachine(
                disk=copy.disk,
                coordinator=SimCoordinator(self.place, process, copy.clock, lambda: copy.record_cut),
                boot_id=f"boot {copy.name} {copy.boots}",
                new_store_id=self._new_store_id,
            ),
        )
        await app.start()
        try:
            await app.wait()
        finally:
            if process.alive:
                await app.close()

    def _is_up(self, copy: Copy) -> bool:
        return copy.app is not None and copy.app._page is not None

    async def _watch(self, copy: Copy, process: SimProcess, task: asyncio.Task[None]) -> None:
        """A broker that ends by itself is started again."""
        await asyncio.wait([task])
        if copy.process is not process or not process.alive or copy.busy:
            return
        self._ended(copy, process, task)
        self._kill(process)
        copy.disk = copy.disk.crash(Keep.ALL, self.rng)
        await self.clock.sleep_ms(RESTART_MS)
        if copy.process is process and not copy.busy and not self.problems:
            await self.start(copy)

    def _ended(self, copy: Copy, process: SimProcess, task: asyncio.Task[None]) -> BaseException | None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return None
        self.note(f"{process.name} ended: {type(error).__name__}: {error}")
        # Where the repair went on after the wait for it, it may have ended since, and nothing shows any more.
        if isinstance(error, StoreCorrupted) and (copy.flipped or "repair from another copy continues" in str(error)):
            copy.refusals += 1
            if copy.refusals == REFUSALS_MAX:
                self.note(f"{copy.name} gets an empty disk")
                copy.get_empty_disk()
        elif copy.disk.dead:
            pass
        elif isinstance(error, InvariantBroken | StoreCorrupted) or not isinstance(error, Error):
            self.problems.append(f"{process.name} ended: {type(error).__name__}: {error}")
        return error

    def _new_store_id(self) -> str:
        self.store_ids += 1
        return f"{self.store_ids:032x}"

    def _kill(self, process: SimProcess) -> None:
        process.kill()
        self.net.died(process)

    def kill(self, copy: Copy, keep: Keep) -> None:
        """End it, and let its disk keep so much. Other than ALL is a loss of power."""
        if copy.process is not None and copy.process.alive:
            self._kill(copy.process)
        copy.disk = copy.disk.crash(keep, self.rng)
        copy.boots += keep is not Keep.ALL
        copy.app = None

    def _power_gone(self, copy: Copy, process: SimProcess) -> None:
        """An armed crash came about: within a callback of that process."""
        if copy.process is not process:
            return
        self.note(f"{process.name} lost power in the middle of a write")
        process.kill()
        self.loop.create_task(self._back(copy, process), name="power back", context=_NOBODY.copy())

    async def _back(self, copy: Copy, process: SimProcess) -> None:
        self.net.died(process)
        with copy.held():
            await self.clock.sleep_ms(self.rng.choice((10, 50, 500, 2_500)))
            if copy.process is process:
                self.kill(copy, self.rng.choice((Keep.NONE, Keep.SOME)))
                await self.start(copy)

    async def stop(self, copy: Copy) -> None:
        """As SIGTERM does; one that has not ended after STOP_MS is a finding, and killed."""
        process, app = copy.process, copy.app
        if process is None or app is None or not process.alive:
            return
        closing = process.spawn(app.close(), name=f"close {process.name}")
        await ended(closing, self.clock, within_ms=STOP_MS)
        if not closing.done() and process.running:
            self.problems.append(f"{process.name} has not ended {STOP_MS} ms after it was told to ({self.state()})")
        if closing.done() and not closing.cancelled() and (error := closing.exception()) is not None:
            self.note(f"{process.name} could not close: {error!r}")
        self._kill(process)

    def _settings(self, copy: Copy) -> BrokerSettings:
        plan = self.plan
        return BrokerSettings(
            broker_name=BROKER,
            host=copy.name,
            advertise=f"{copy.name}:8081",
            nameservers="ns1:9876",
            store=StoreSettings(
                path=Path("/simulated") / copy.name, segment_bytes=plan.segment_bytes, message_index=False,
                snapshot_log_bytes=plan.snapshot_log_bytes, disk_free_min_bytes=0, disk_used_max_ratio=1,
            ),
            replication=ReplicationSettings(
                members=",".join(f"{number}=b{number}:8083" for number in COPIES), broker_id=copy.number,
                mode=plan.mode, record="file:nowhere", renew_ms=300, suspect_ms=SUSPECT_MS, lag_ms=1_000,
            ),
            register_interval_ms=1_000,
            peer_timeout_ms=1_000,
            drain_ms=3_000,
            trace_bytes=0,
            default_group_max_attempts=1_000,
            default_start_from="FIRST",
        )  # fmt: skip


async def _lanes(catalog: Catalog) -> None:
    await catalog.create_topic(LANES, queues=2, message_type=MessageType.FIFO)
    await catalog.create_group(ORDERED_GROUP, ordered=True)


async def _transactions(catalog: Catalog) -> None:
    for topic in (INPUTS, OUTPUTS):
        await catalog.create_topic(topic, queues=TRANSACT_QUEUES)
    await catalog.create_group(TRANSACT_GROUP)


async def _mended(repair: RecordRepair, error: StoreCorrupted) -> None:
    with suppress(Error):
        await repair.repair(error, repair.version)


@contextmanager
def _quiet(*, verbose: bool) -> Iterator[None]:
    level, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.NOTSET if verbose else logging.CRITICAL)
    gc.disable()  # a collection would end forgotten generators at another moment each time
    try:
        yield
    finally:
        logging.disable(level)
        if collects:
            gc.enable()


def run_group(seed: int, *, plant: str = "", verbose: bool = False) -> GroupOutcome:
    """Play one seed."""
    return run_plan(group_plan(seed), plant=plant, verbose=verbose)


def run_plan(plan: GroupPlan, *, plant: str = "", verbose: bool = False) -> GroupOutcome:
    """Play a plan."""
    world = GroupWorld(plan)
    with _quiet(verbose=verbose), replaced([*thread_stand_ins(), *before(plan), *planted(plant)]):
        return world.play()
