"""Starts that cannot read the record: they follow whom they remember, and do nothing else on that ground (R23).

The judge knows which process has read the record: one that proposes another state of it before that is a finding. Some
disks note changes of the copies too late, and a disk that passes for another store has forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from evenq_broker.core.replication.actions import Action, CompareAndSet, PersistEpoch
from evenq_broker.core.replication.config import Mode, Timing
from evenq_broker.core.replication.membership import CopyChange, SetMinimum
from evenq_broker.core.replication.record import GroupRecord
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role

from replication_model.walks import ChangingCopies
from replication_model.world import MIN_ISR, Node, Rules, Violation, World, Write

BLIND_LOOKS_MAX = 40
CHANGES = 0.2
"""Part of the changes of copies that ChangingCopies makes: where the members change all the time, less is committed."""


class RememberingWorld(World):
    """See the module."""

    def prepare(self) -> None:
        """See World."""
        self.remembered: dict[tuple[int, str], GroupRecord] = {}
        """Broker and store -> what lies on its disk."""
        self.readers: set[tuple[int, int]] = set()
        """Broker and start of its process that were told what the record is."""
        self.followed = 0
        """Events of copies that follow although they have not read the record."""

    def wipe(self, id_: int) -> None:
        """See World."""
        self.remembered.pop((id_, self.nodes[id_].store_id), None)
        super().wipe(id_)

    def _written(self, node: Node, replica: Replica, write: Write) -> list[Action]:
        if isinstance(write, PersistEpoch):
            assert replica.record is not None
            self.remembered[node.id, node.store_id] = replica.record
        return super()._written(node, replica, write)

    def observe(self, id_: int, back: int = 0) -> None:
        """See World. Of the disks every second one notes at once when copies changed."""
        node = self.nodes[id_]
        self.readers.add((id_, node.session))
        record = self.history[max(0, len(self.history) - 1 - back)].record
        if id_ % 2 and record.epoch == node.epoch_seen:
            self.remembered[id_, node.store_id] = record
        super().observe(id_, back)

    def call(self, index: int, answer: str) -> None:
        """See World."""
        if answer == "known":
            self.readers.add(self.calls[index][:2])
        super().call(index, answer)

    def unreadable(self, id_: int) -> None:
        """A read fails; perhaps none has succeeded since the start."""
        node = self.nodes[id_]
        remembered = self.remembered.get((id_, node.store_id))
        if node.replica is not None and remembered is not None:
            self.run(node, node.replica.unreadable(remembered))

    def run(self, node: Node, actions: Iterable[Action]) -> None:
        """See World."""
        actions = list(actions)
        for action in actions:
            if isinstance(action, CompareAndSet) and (node.id, node.session) not in self.readers:
                raise Violation(f"R23: broker {node.id} proposes {action.proposed} and has not read the record")
        replica = node.replica
        self.followed += replica is not None and replica.group.seen is None and replica.role is Role.FETCHING
        super().run(node, actions)


class Remembering(ChangingCopies):
    """A walk with many starts that cannot read the record for a while."""

    world: RememberingWorld

    def __init__(self, seed: int, rules: Rules) -> None:
        super().__init__(seed, rules)
        self.blind = dict.fromkeys(self.world.brokers, 0)
        """Broker -> how many more of its reads fail."""
        self.kills += 6

    def made(self, rules: Rules, mode: Mode, timing: Timing) -> World:
        """See Walk."""
        return RememberingWorld(rules, mode=mode, timing=timing, spares=self.spares, ahead=self.ahead)

    def change(self) -> CopyChange:
        """See ChangingCopies."""
        return super().change() if self.rng.random() < CHANGES else SetMinimum(MIN_ISR)

    def restart(self) -> None:
        """See Walk."""
        id_ = self.one()
        if self.world.nodes[id_].replica is None:
            self.world.start(id_)
            self.blind[id_] = int(self.rng.random() * BLIND_LOOKS_MAX)
            self.world.unreadable(id_)

    def observe(self) -> None:
        """See Walk."""
        id_ = self.one()
        if self.blind[id_]:
            self.blind[id_] -= 1
            self.world.unreadable(id_)
        else:
            self.world.observe(id_, 0 if self.rng.random() >= self.late else 1 + int(self.rng.random() * 4))
