"""Changes of topics and groups that a broker of the cluster has not confirmed, because it was away or silent.

A change stays until every broker that it waits for has confirmed it or is forgotten, at most `KEPT_MS`. At most
`CHANGES_MAX` are kept; the oldest are given up first. They are in the journal and survive restarts of all brokers that
hold them. Each of these brokers sends a change independently (`loops.cluster.change_sender`), so the same change may
wait for different brokers. Example: `t` was deleted at broker-a while broker-c was down. Broker-a and broker-b hold
("topic-deleted", "t", uid, waiting: broker-c) until broker-c is back and confirms it to both.

A deletion identifies a topic by its uid and a group by the time of the deletion, so a new one of the same name stays.
Pure; times are ms since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from evenq_broker.core.state.records import ChangeKind, ChangePut

CHANGES_MAX = 10_000
KEPT_MS = 30 * 86_400_000


class ChangeId(NamedTuple):
    """Identity of one change. A topic widened again, or a group deleted again, is another change."""

    kind: ChangeKind
    name: str
    uid: str
    at_ms: int

    @classmethod
    def of(cls, change: ChangePut) -> ChangeId:
        return cls(change.kind, change.name, change.uid, change.at_ms)


_Key = tuple[ChangeKind, str, str]


class UnconfirmedChanges:
    """The table, oldest first. The caller records the operations that a method returns."""

    __slots__ = ("_changes", "_deleted", "version")

    def __init__(self) -> None:
        self._changes: dict[_Key, ChangePut] = {}
        self._deleted: set[str] = set()  # uids of deleted topics
        self.version = 0  # grows with each change of the table

    def __len__(self) -> int:
        return len(self._changes)

    def __contains__(self, uid: object) -> bool:
        """Returns True for the uid of a topic whose deletion is in the table."""
        return uid in self._deleted

    def all(self) -> list[ChangePut]:
        return list(self._changes.values())

    def group_deleted_ms(self, name: str) -> int:
        """Returns when the group was deleted, if some broker has not confirmed it; 0: it was not."""
        change = self._changes.get((ChangeKind.GROUP_DELETED, name, ""))
        return 0 if change is None else change.at_ms

    def waiting(self) -> dict[str, int]:
        """Returns how many changes wait for each broker, by name."""
        return dict(sorted(Counter(name for change in self._changes.values() for name in change.waiting).items()))

    def asked(self, change: ChangePut) -> list[ChangePut]:
        """Adds a change that an operator requests here, now: it is later than a known one of the same object."""
        known = self._changes.get(_key(change))
        if known is not None and known.at_ms >= change.at_ms:  # by another broker's clock
            change = replace(change, at_ms=known.at_ms + 1)
        return self.add(change)

    def add(self, change: ChangePut) -> list[ChangePut]:
        """Adds a change that brokers wait for, unless a later one is known. It waits for an older one's brokers too."""
        known = self._changes.get(_key(change))
        if not change.waiting:
            return []
        if known is not None:
            if known.at_ms >= change.at_ms or change.kind is ChangeKind.TOPIC_DELETED:
                return []
            change = replace(change, waiting=tuple(sorted({*known.waiting, *change.waiting})))
        ops = [change]
        if change.kind is ChangeKind.TOPIC_DELETED:
            ops += [_ended(old) for old in self.all() if old.kind is ChangeKind.TOPIC_MADE and old.name == change.name]
        self._apply_all(ops)
        return ops

    def overflow(self) -> list[ChangePut]:
        """Returns the oldest changes beyond the bound, unchanged; `end` ends them."""
        return self.all()[: max(0, len(self._changes) - CHANGES_MAX)]

    def expired(self, now_ms: int) -> list[ChangePut]:
        """Returns changes that are too old, unchanged; `end` ends them."""
        return [change for change in self.all() if now_ms - change.at_ms > KEPT_MS]

    def end(self, changes: Iterable[ChangePut]) -> list[ChangePut]:
        ops = [_ended(change) for change in changes]
        self._apply_all(ops)
        return ops

    def confirmed(self, changes: Sequence[ChangeId], broker_name: str) -> list[ChangePut]:
        """Notes that a broker applied these. One that a later change replaced meanwhile is ignored."""
        here = [known for one in changes if (known := self._changes.get(one[:3])) and known.at_ms == one.at_ms]
        return self._without(here, broker_name)

    def broker_forgotten(self, broker_name: str) -> list[ChangePut]:
        """Stops waiting for a broker that left for good."""
        return self._without(self.all(), broker_name)

    def apply(self, change: ChangePut) -> None:
        self.version += 1
        key = _key(change)
        known = self._changes.get(key)
        if known is not None and (known.at_ms != change.at_ms or not change.waiting):
            del self._changes[key]  # a later one goes to the end
        if change.waiting:
            self._changes[key] = change
        if change.kind is ChangeKind.TOPIC_DELETED:
            (self._deleted.add if change.waiting else self._deleted.discard)(change.uid)

    def dump(self) -> Iterator[ChangePut]:
        return iter(self.all())

    def _without(self, changes: Iterable[ChangePut], broker_name: str) -> list[ChangePut]:
        ops = [
            replace(change, waiting=tuple(name for name in change.waiting if name != broker_name))
            for change in changes
            if broker_name in change.waiting
        ]
        self._apply_all(ops)
        return ops

    def _apply_all(self, ops: Iterable[ChangePut]) -> None:
        for op in ops:
            self.apply(op)


def _key(change: ChangePut) -> _Key:
    return change.kind, change.name, change.uid


def _ended(change: ChangePut) -> ChangePut:
    return replace(change, waiting=())
