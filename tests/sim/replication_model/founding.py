"""The founding of a group: there is no record yet, and some brokers have logs that they wrote while they were alone.

Two shapes. A new group: three empty brokers, one of which founds. From one copy: a broker that was alone founds with its
log, of which every record is committed, since its senders were answered; another one that was alone as well has to
found, too, and its log is of no group (R19): it ends, and comes back with an empty disk, as its operator is asked to do.
"""

from __future__ import annotations

from dataclasses import replace

from evenq_broker.core.replication.actions import Fence
from evenq_broker.core.replication.config import Mode, ReplicationConfig, Timing
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import LEADING

from replication_model.walks import ChangingCopies
from replication_model.world import Log, Node, Rules, World

ALONE_EPOCH = 1
"""Of all records that a broker writes without copies."""
CALM_ROUNDS = 40
UNWRITTEN = GroupRecord(version=1, epoch=0, leader=NO_LEADER, isr=(), min_isr=1, members=())
"""In place of a record, where there is none."""


class FoundingWorld(World):
    """A world that begins without a record. `alone`: broker id -> records that it wrote without copies.
    `wide`: the founder's settings name all three copies and need two of them, so that nothing commits before one follows.
    """

    def __init__(self, rules: Rules, *, mode: Mode, timing: Timing, alone: dict[int, int], wide: bool, ahead: tuple[int, ...]) -> None:  # fmt: skip
        self.alone = alone
        self.wide = wide
        self.owed = 0
        """Records of the founder that no other copy needs to have yet."""
        self.refused = 0
        """Brokers that ended because their log is of no group (R19)."""
        super().__init__(rules, mode=mode, timing=timing, ahead=ahead)

    def prepare(self) -> None:
        """See World."""
        self.history = []
        if not self.alone:
            self.configs[0] = replace(self.configs[0], founds=True)
        for id_, records in self.alone.items():
            node = self.nodes[id_]
            node.log = [Log(ALONE_EPOCH, -1 - id_, number) for number in range(1, records + 1)]
            self.configs[id_] = self._from_one_copy(self.configs[id_])

    def _from_one_copy(self, config: ReplicationConfig) -> ReplicationConfig:
        if self.wide:
            return replace(config, founds=config.broker_id == 0, adopts=True)
        return replace(config, members=(config.broker_id,), min_isr=1, founds=True, adopts=True)

    @property
    def record(self) -> GroupRecord:
        return self.history[-1].record if self.history else UNWRITTEN

    def call(self, index: int, answer: str) -> None:
        """See World. Who writes the first record brings its log into the group: all of it is committed."""
        id_, was_there = self.calls[index][0], bool(self.history)
        super().call(index, answer)
        if self.history and not was_there and not self.committed:
            self.committed = list(self.nodes[id_].log)
            self.committed_in = [one.epoch for one in self.committed]
            self.bytes_at = {(one.epoch, offset): one for offset, one in enumerate(self.committed)}
            self.owed = len(self.committed) if self.wide else 0
            self.lost_stores += self.owed > 0  # I6: one copy has them

    def _commit(self, node: Node, replica: Replica) -> None:
        super()._commit(node, replica)
        if self.owed and len(self.committed) > self.owed:
            self.owed, self.lost_stores = 0, self.lost_stores - 1

    def observe(self, id_: int, back: int = 0) -> None:
        """See World; a late read may find no record."""
        node = self.nodes[id_]
        if back < len(self.history):
            super().observe(id_, back)
        elif node.replica is not None:
            self.run(node, node.replica.absent())

    def fenced(self, node: Node, action: Fence) -> None:
        """See World."""
        if "R19" not in str(action.error):
            super().fenced(node, action)
        self.refused += 1
        self.kill(node.id)
        node.log, node.synced, node.epoch_seen, self.dirty = [], 0, 0, True


class Founding(ChangingCopies):
    """A walk from before the first record on; copies are added once a copy leads."""

    def made(self, rules: Rules, mode: Mode, timing: Timing) -> World:
        """See Walk."""
        alone: dict[int, int] = {}
        if self.rng.random() < 0.7:
            ids = (0, 1, 2) if self.rng.random() < 0.5 else (0,)
            alone = {id_: 1 + int(self.rng.random() * 4) for id_ in ids}
        return FoundingWorld(
            rules, mode=mode, timing=timing, alone=alone, wide=self.rng.random() < 0.5, ahead=self.ahead
        )

    def begin(self) -> None:
        """One copy founds the group and leads it, before any fault."""
        world = self.world
        for _ in range(CALM_ROUNDS):
            if any(node.replica is not None and node.replica.role in LEADING for node in world.nodes):
                break
            world.now_ms += 3
            for id_ in world.brokers:
                world.observe(id_)
                world.tick(id_)
                world.write(id_)
                world.sync(id_)
            self.deliver_all()
            while world.calls:
                world.call(0, "known")
            world.judge()

    def can_heal(self) -> bool:
        """Any copy may be elected, or found."""
        return not self.world.history or super().can_heal()
