"""Unclean elections: an operator lets a copy lead that is not in sync, at any time, also when that is a mistake.

The judge knows what may be lost: at the moment in which the record is written, what was committed and the chosen copy
lacks, and whatever copies of older epochs go on to commit among themselves until they hear of it. All else must stay as
it was: what the chosen copy had is committed as before, and what is committed from then on is never lost.
"""

from __future__ import annotations

from evenq_broker.core.replication.config import Mode, Timing
from evenq_broker.core.replication.record import Pair
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import LEADING

from replication_model.walks import HEAL_ROUNDS, ChangingCopies
from replication_model.world import Log, Node, Rules, Violation, World


class UncleanWorld(World):
    """See the module."""

    def __init__(self, rules: Rules, *, mode: Mode, timing: Timing, spares: int = 0) -> None:
        self.given_up: list[Log] = []
        self.hw_epochs: dict[int, int] = {}
        """Broker -> epoch in which its process last said how much is committed."""
        super().__init__(rules, mode=mode, timing=timing, spares=spares)

    @property
    def unclean_epoch(self) -> int:
        """Of the newest one that stands in the record; 0: none."""
        return self.record.unclean[-1].epoch if self.record.unclean else 0

    def stand_unclean(self, id_: int) -> None:
        """The operator's command reaches a copy."""
        node = self.nodes[id_]
        if node.replica is not None:
            self.run(node, node.replica.stand_unclean(reason="", time_ms=self.now_ms))

    def start(self, id_: int) -> None:
        """See World."""
        self.hw_epochs[id_] = 0
        super().start(id_)

    def call(self, index: int, answer: str) -> None:
        """See World. An unclean election gives up what its copy lacks, from now on."""
        id_, before = self.calls[index][0], self.unclean_epoch
        if self.is_now(index) and self.calls[index][2].proposed.unclean[-1:] != self.record.unclean[-1:]:
            self._give_up(self.nodes[id_], index)
        super().call(index, answer)
        assert self.unclean_epoch >= before

    def is_now(self, index: int) -> bool:
        """The compare-and-set will be carried out."""
        expected = self.calls[index][2].expected
        return expected is not None and expected.token == self.history[-1].token

    def _give_up(self, node: Node, index: int) -> None:
        if Pair(node.id, node.store_id) not in self.calls[index][2].proposed.isr:
            return  # its disk was lost meanwhile: nobody leads, and the next one decides what is lost
        has = node.log[: node.synced] if self.mode is Mode.REPL_SYNC else node.log
        kept = next(
            (at for at, (one, own) in enumerate(zip(self.committed, has, strict=False)) if one != own),
            min(len(self.committed), len(has)),
        )
        self.given_up += self.committed[kept:]
        del self.committed[kept:], self.committed_in[kept:]
        known = 0 if node.replica is None else min(len(has), node.replica.log.hw)
        self.committed_in += [node.log[at].epoch for at in range(kept, known)]
        self.committed += node.log[kept:known]  # committed by an older epoch while nobody led any more: it came along
        self.lost_stores = max(self.lost_stores, len(self.brokers))  # I6: one disk is enough for what is left
        self.dirty = True

    def _commit(self, node: Node, replica: Replica) -> None:
        """I5, which may be broken once by each unclean election; what older epochs commit is of no account."""
        if replica.max_epoch < self.unclean_epoch:
            if replica.log.hw < node.shown and not self._newer_than(self.hw_epochs[node.id], replica.max_epoch):
                raise Violation(f"I5: broker {node.id} knew {node.shown} committed, now {replica.log.hw}")
            count = len(self.committed)
            self.given_up += [
                one for at, one in enumerate(node.log[: replica.log.hw]) if at >= count or one != self.committed[at]
            ]
            node.shown, self.hw_epochs[node.id] = replica.log.hw, replica.max_epoch
            return
        if replica.log.hw < node.shown and self._newer_than(self.hw_epochs[node.id], replica.max_epoch):
            node.shown = replica.log.hw  # cut, because of an unclean election
        elif self._newer_than(self.hw_epochs[node.id], replica.max_epoch):
            node.shown = 0  # all of it is compared with what is committed now
        self.hw_epochs[node.id] = replica.max_epoch
        late = node.log[len(self.committed) : replica.log.hw]
        if replica.role not in LEADING and all(one.epoch < self.unclean_epoch for one in late):
            self.committed += late  # the chosen copy went on copying until it heard that it leads: I1 judges whether
            self.committed_in += [one.epoch for one in late]
            self.dirty = True
        super()._commit(node, replica)

    def _serve(self, node: Node, replica: Replica, epoch: int) -> None:
        """R11, but for leaders of older epochs: what they lack may be committed again by the newest election."""
        if epoch < self.unclean_epoch:
            node.waits.serve(epoch)
            return
        super()._serve(node, replica, epoch)

    def _newer_than(self, epoch: int, until: int) -> bool:
        """An unclean election lies between two epochs."""
        return any(epoch < seen.record.unclean[-1].epoch <= until for seen in self.history if seen.record.unclean)

    def _answer(self, node: Node, tickets: tuple[int, ...]) -> None:
        lost = {one.number for one in self.given_up}
        super()._answer(node, tuple(ticket for ticket in tickets if ticket not in lost))


class Unclean(ChangingCopies):
    """A walk with operators in a hurry: copies are told to lead that lack records, whoever else lives."""

    elections = 0
    """Unclean ones that were carried out."""
    cut_committed = 0

    def made(self, rules: Rules, mode: Mode, timing: Timing) -> World:
        """See Walk."""
        return UncleanWorld(rules, mode=mode, timing=timing, spares=self.spares)

    def append(self) -> None:
        """See Walk."""
        world = self.world
        assert isinstance(world, UncleanWorld)
        self.elections = max(self.elections, len(world.record.unclean))
        if self.rng.random() < 0.1:
            alive = ((node.id, node.replica) for node in world.nodes if node.replica is not None)
            able = [id_ for id_, replica in alive if not replica.election.why_not_unclean()]
            if able:
                world.stand_unclean(able[int(self.rng.random() * len(able))])
        if self.rng.random() < 0.01:
            self.wipes += 1
        super().append()

    def can_heal(self) -> bool:
        """The operator sees to it."""
        return True

    def heal(self) -> int:
        """Faults end; if nobody may lead, the operator lets the best copy lead."""
        world = self.world
        assert isinstance(world, UncleanWorld)
        for node in world.nodes:
            if node.replica is None:
                world.start(node.id)
        world.cut = set()
        while world.calls:  # of processes that died: one may take the last copy that may lead out of the set
            world.call(0, "known")
        for _ in range(HEAL_ROUNDS):
            if super().can_heal():
                return super().heal()
            world.now_ms += 3
            for id_ in world.brokers:
                world.tick(id_)
                world.observe(id_)
                world.write(id_)
                world.sync(id_)
            self.deliver_all()
            if not world.calls:
                members = [node for node in world.nodes if node.id in world.record.members]
                best = max(members, key=lambda node: (node.log[-1].epoch if node.log else 0, len(node.log)))
                world.stand_unclean(best.id)
            while world.calls:
                world.call(0, "known")
            world.judge()
        raise Violation(f"I8: no copy could be made leader in {HEAL_ROUNDS} rounds: {world.record}")
