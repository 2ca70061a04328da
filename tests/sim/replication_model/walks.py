"""Random walks: one seed, one walk; each draws its own rates of faults, so that some worlds are rough in one way only."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, replace

from evenq_broker.core.replication.config import Mode, Timing
from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, SetMinimum
from evenq_broker.core.replication.rules import LEADING, NOTHING, Role

from replication_model.world import MIN_ISR, Rules, Violation, World

STEPS = 400
QUICK = Timing(renew_ms=20, suspect_ms=60, backoff_ms=5, lag_ms=30, retry_ms=10, drain_ms=100)
HEAL_ROUNDS = 600
AHEAD = (0, 1, 2, 4, 100)
"""Records that a broker takes ahead of what it has written; 0: of an older version."""
LATE_READERS, NEW_STORES = 1, 2
"""Seeds modulo 8 whose rates aim at one kind of mistake: records read late by processes that restart, and disks that
are replaced while others lag.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a walk."""

    seed: int
    events: int
    epochs: int
    committed: int
    healed_rounds: int
    """0: it was not healed."""
    problem: str


class Walk:
    """One walk. Faults by chance, then (in one of four) none, and all must come back (I8)."""

    spares = 0

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rng = rng = random.Random(seed)
        self.seed = seed
        mode = Mode.REPL_MEMORY if rng.random() < 0.25 else Mode.REPL_SYNC
        takes = random.Random(-seed)
        self.ahead = tuple(AHEAD[int(takes.random() * len(AHEAD))] for _ in range(4))
        self.world = self.made(rules, mode, QUICK)
        chance = rng.random
        self.loss = chance() ** 3 * 0.4
        self.again = chance() ** 2 * 0.3
        self.reorder = chance() ** 2
        self.unknown = chance() ** 2 * 0.6
        self.late = chance() ** 2 * 0.5
        self.wipes = 1 if chance() < 0.5 else 0
        self.powers = int(chance() * 5) if mode is Mode.REPL_SYNC else int(chance() * 2)
        self.kills = int(chance() * 3)
        self.cuts = int(chance() * 3)
        self.aim = seed % 8
        if self.aim == LATE_READERS:
            self.late, self.loss, self.unknown, self.cuts, self.kills, self.wipes, self.powers = (
                0.7,
                0.0,
                0.0,
                2,
                3,
                0,
                0,
            )
        elif self.aim == NEW_STORES:
            self.loss = self.unknown = self.late = 0.0
            self.wipes, self.cuts, self.kills, self.powers = 1, 0, 0, 0
        weights = {
            self.deliver: 5.0,
            self.write: 4.0,
            self.sync: 0.3 + 2.5 * chance(),
            self.call: 0.3 + 2.5 * chance(),
            self.observe: 0.3 if self.aim == LATE_READERS else 1.0,
            self.tick: 0.6,
            self.append: 0.3 + chance(),
            self.stand: 0.06 + 0.5 * chance() ** 2,
            self.propose: 1.5 if self.aim in {LATE_READERS, NEW_STORES} else 0.1 + 0.8 * chance(),
            self.fault: 0.1 + 0.5 * chance(),
            self.restart: 0.4,
            self.links: 0.3 if self.cuts else 0.0,
            self.drain: 0.03,
        }
        self.world.batch_max = 1 + int(chance() ** 2 * 6)
        self.world.syncs_at_once = self.world.mode is Mode.REPL_SYNC and chance() < 0.5
        self.calm_start = chance() < 0.8 or self.aim in {LATE_READERS, NEW_STORES}
        self.kinds = list(weights)
        self.bounds = []
        total = 0.0
        for weight in weights.values():
            total += weight
            self.bounds.append(total)
        self.total = total

    def made(self, rules: Rules, mode: Mode, timing: Timing) -> World:
        """The world to walk in."""
        return World(rules, mode=mode, timing=timing, spares=self.spares, ahead=self.ahead)

    def begin(self) -> None:
        """A calm start: one copy leads, the others follow."""
        world, id_ = self.world, self.one()
        for node in world.brokers:
            world.observe(node)
        world.stand(id_)
        for _ in range(20):
            while world.calls:
                world.call(0, "known")
            for node in world.brokers:
                world.observe(node)
                world.write(node)
                world.sync(node)
            self.deliver_all()
        world.judge()

    def deliver_all(self) -> None:
        for _ in range(100):
            if not self.world.net:
                break
            self.world.deliver(0)

    def play(self, steps: int = STEPS) -> Outcome:
        world, problem, rounds = self.world, "", 0
        try:
            if self.calm_start:
                self.begin()
            for _ in range(steps):
                self.step()
            if self.seed % 4 == 0 and self.can_heal():
                rounds = self.heal()
        except Violation as error:
            problem = str(error)
        return Outcome(self.seed, world.events, world.record.epoch, len(world.committed), rounds, problem)

    def can_heal(self) -> bool:
        return self.world.lost_stores < MIN_ISR

    def step(self) -> None:
        self.kinds[bisect_right(self.bounds, self.rng.random() * self.total)]()
        if self.world.dirty:
            self.world.judge()

    def one(self) -> int:
        return int(self.rng.random() * len(self.world.brokers))

    def deliver(self) -> None:
        world, rng = self.world, self.rng
        if not world.net:
            return
        index = int(rng.random() * len(world.net)) if rng.random() < self.reorder else 0
        if rng.random() < self.loss:
            world.net.pop(index)
        else:
            world.deliver(index, keep=rng.random() < self.again)

    def write(self) -> None:
        busy = [node.id for node in self.world.nodes if node.queue]
        if busy:
            self.world.write(busy[int(self.rng.random() * len(busy))])

    def sync(self) -> None:
        behind = [node.id for node in self.world.nodes if node.synced < len(node.log) and node.replica is not None]
        if behind:
            id_ = behind[int(self.rng.random() * len(behind))]
            node = self.world.nodes[id_]
            part = 1 + int(self.rng.random() ** 0.5 * (len(node.log) - node.synced))
            self.world.sync(id_, min(len(node.log), node.synced + part))

    def call(self) -> None:
        world, rng = self.world, self.rng
        if world.calls:
            index = int(rng.random() * len(world.calls)) if rng.random() < self.late else 0
            answer = "known" if rng.random() >= self.unknown else "unknown" if rng.random() < 0.5 else "lost"
            world.call(index, answer)

    def observe(self) -> None:
        back = 0 if self.rng.random() >= self.late else 1 + int(self.rng.random() * 4)
        self.world.observe(self.one(), back)

    def tick(self) -> None:
        self.world.now_ms += 1 + int(self.rng.random() * 12)
        self.world.tick(self.one())

    def append(self) -> None:
        leading = [node.id for node in self.world.nodes if node.replica is not None and node.replica.role is Role.READY]
        if leading:
            self.world.append(leading[int(self.rng.random() * len(leading))])

    def stand(self) -> None:
        self.world.stand(self.one())

    def propose(self) -> None:
        for node in self.world.nodes:
            replica = node.replica
            if replica is not None and replica.role in LEADING and replica.group.cas is None:
                silent = frozenset(pair for pair in replica.record.isr if self.rng.random() < 0.4)  # type: ignore[union-attr]
                wishes = replica.copies.changes(silent)
                if wishes:
                    self.world.propose(node.id, wishes[int(self.rng.random() * len(wishes))])

    def fault(self) -> None:
        rng, world = self.rng, self.world
        id_ = self.one()
        node = world.nodes[id_]
        dice = rng.random()
        if self.aim == LATE_READERS and self.kills:
            self.kills -= 1
            world.kill(id_)
        elif dice < 0.2 and self.wipes:
            self.wipes -= 1
            world.wipe(id_)
        elif dice < 0.6 and self.powers:
            self.powers -= 1
            world.lose_power(id_, int(rng.random() * (1 + len(node.log) - node.synced)))
        elif self.kills:
            self.kills -= 1
            world.kill(id_)

    def restart(self) -> None:
        node = self.world.nodes[self.one()]
        if node.replica is None:
            self.world.start(node.id)
            if self.rng.random() < self.late:
                self.world.observe(node.id, 1 + int(self.rng.random() * 4))

    def links(self) -> None:
        world, rng = self.world, self.rng
        if world.cut:
            world.cut = set()
        elif self.cuts:
            self.cuts -= 1
            leading = [node.id for node in world.nodes if node.replica is not None and node.replica.role in LEADING]
            id_ = leading[0] if leading and rng.random() < 0.5 else self.one()
            others = [other for other in world.brokers if other != id_]
            if rng.random() < 0.5:
                others = others[:1]
            both = rng.random() < 0.6
            world.cut = {(id_, other) for other in others} | ({(other, id_) for other in others} if both else set())

    def drain(self) -> None:
        self.world.drain(self.one())

    def heal(self) -> int:
        """No more faults: a new record must be committed. Gives the rounds that it took."""
        world = self.world
        world.cut = set()
        for node in world.nodes:
            if node.replica is None:
                world.start(node.id)
            elif node.replica.role is Role.DRAINING:  # its process ends, as a drained one does
                world.kill(node.id)
                world.start(node.id)
        count, last = len(world.committed), world.numbers
        for rounds in range(1, HEAL_ROUNDS):
            world.now_ms += 3
            for id_ in world.brokers:
                if world.nodes[id_].replica is None:  # it ended because its log is of no group (R19); now it has none
                    world.start(id_)
                world.tick(id_)
                world.observe(id_)
                world.write(id_)
                world.sync(id_)
                world.append(id_)
            self.deliver_all()
            while world.calls:
                world.call(0, "known")
            world.judge()
            if any(one.number > last for one in world.committed[count:]):
                return rounds
        roles = [str(node.replica.role) for node in world.nodes if node.replica is not None]
        raise Violation(f"I8: nothing committed in {HEAL_ROUNDS} rounds without faults: {roles}, {world.record}")


class HandingOver(Walk):
    """A walk in which leaders hand over again and again, and many go on leading although their nominee may stand."""

    resumed = 0

    def append(self) -> None:
        for node in self.world.nodes:
            role = None if node.replica is None else node.replica.role
            if role is Role.DRAINING and self.rng.random() < 0.5:
                self.resumed += 1
                self.world.resume(node.id)
            elif role is Role.READY and self.rng.random() < 0.3:
                self.world.drain(node.id)
        super().append()


class FullDisks(Walk):
    """A walk in which disks fill and get room again, and leaders without room hand over to copies that have (R22)."""

    full: frozenset[int] = frozenset()
    handed = 0

    def made(self, rules: Rules, mode: Mode, timing: Timing) -> World:
        return super().made(rules, mode, replace(timing, relief_ms=timing.retry_ms))

    def append(self) -> None:
        self.look()
        taking = [node.id for node in self.world.nodes if node.id not in self.full and node.replica is not None]
        if taking:
            self.world.append(taking[int(self.rng.random() * len(taking))])

    def tick(self) -> None:
        self.look()
        super().tick()

    def look(self) -> None:
        """Disks fill, mostly those of leaders, and who is out of room hands over if the rules say so."""
        world, chance = self.world, self.rng.random
        if chance() < 0.05:
            leading = [node.id for node in world.nodes if node.replica is not None and node.replica.role in LEADING]
            self.full = frozenset(leading if chance() < 0.8 else [self.one()])
        for node in world.nodes:
            replica = node.replica
            if replica is None:
                continue
            world.run(node, replica.disk_measured(has_room=node.id not in self.full))
            if replica.role is Role.DRAINING and chance() < 0.2:
                world.resume(node.id)
            elif node.id in self.full and (to := replica.leader.relief(world.now_ms)) != NOTHING:
                self.handed += 1
                world.run(node, replica.leader.drain(world.now_ms, to=to, within_ms=QUICK.lag_ms))


class ChangingCopies(Walk):
    """A walk in which copies are added and removed again and again, and the minimum changes; a fourth broker waits."""

    spares = 1
    changes = 0

    def append(self) -> None:
        for node in self.world.nodes:
            if node.replica is not None and node.replica.role in LEADING and self.rng.random() < 0.3:
                before = len(self.world.calls)
                self.world.change_copies(node.id, self.change())
                self.changes += len(self.world.calls) > before
        super().append()

    def change(self) -> CopyChange:
        dice, id_ = self.rng.random(), self.one()
        if dice < 0.4:
            return AddCopy(id_, f"broker-{id_}:8083")
        if dice < 0.8:
            return RemoveCopy(id_)
        return SetMinimum(1 + int(self.rng.random() * 3))

    def can_heal(self) -> bool:
        """Any copy may be elected."""
        record = self.world.record
        return any(record.store_of(node.id) == node.store_id for node in self.world.nodes)


def play(seed: int, rules: Rules, steps: int = STEPS) -> Outcome:
    """One walk of one seed."""
    return Walk(seed, rules).play(steps)
