"""Changes of topics and groups that some broker of the cluster has not confirmed, because it was away or silent.

A change stays until every broker that it waits for has confirmed it or is forgotten, `KEPT_MS` at most, and there are
`CHANGES_MAX` at most: the oldest are given up first. It is in the journal, so it survives the start of all brokers that
hold it. Each broker that holds it sends it by itself (`loops.cluster.change_sender`), so two may hold one change with
other brokers waiting. Example: `t` was deleted at broker-a while broker-c was down. A and b hold ("topic-deleted", "t",
uid, waiting: broker-c), through any number of restarts, until c is back and confirms it to both.

A deletion names what it deletes: a topic by its uid, a group by the time of the deletion, so that what was made again
under the same name stays. Pure; times are ms since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from evenq_broker.core.state.records import ChangeKind, ChangePut

__all__ = ["CHANGES_MAX", "KEPT_MS", "ChangeId", "UnconfirmedChanges"]

CHANGES_MAX = 10_000
KEPT_MS = 30 * 86_400_000


class ChangeId(NamedTuple):
    """Names one change. A topic that is widened again, or a group that is deleted again, is another change."""

    kind: ChangeKind
    name: str
    uid: str
    at_ms: int

    @classmethod
    def of(cls, change: ChangePut) -> ChangeId:
        """The name of this change."""
        return cls(change.kind, change.name, change.uid, change.at_ms)


_Key = tuple[ChangeKind, str, str]


class UnconfirmedChanges:
    """The table, oldest first. The caller records the operations that a method returns."""

    __slots__ = ("_changes", "_deleted", "version")

    def __init__(self) -> None:
        self._changes: dict[_Key, ChangePut] = {}
        self._deleted: set[str] = set()
        """Uids of deleted topics."""
        self.version = 0
        """Grows with each change of the table."""

    def __len__(self) -> int:
        return len(self._changes)

    def __contains__(self, uid: object) -> bool:
        """True for the uid of a topic whose deletion is in the table."""
        return uid in self._deleted

    def all(self) -> list[ChangePut]:
        """Oldest first."""
        return list(self._changes.values())

    def group_deleted_ms(self, name: str) -> int:
        """When the group was deleted, if some broker has not confirmed it; 0: it was not."""
        change = self._changes.get((ChangeKind.GROUP_DELETED, name, ""))
        return 0 if change is None else change.at_ms

    def waiting(self) -> dict[str, int]:
        """How many changes wait for each broker, by name."""
        return dict(sorted(Counter(name for change in self._changes.values() for name in change.waiting).items()))

    def asked(self, change: ChangePut) -> list[ChangePut]:
        """An operator asks for this change here, now: it is later than what is known of the same thing."""
        known = self._changes.get(_key(change))
        if known is not None and known.at_ms >= change.at_ms:  # by another broker's clock
            change = replace(change, at_ms=known.at_ms + 1)
        return self.add(change)

    def add(self, change: ChangePut) -> list[ChangePut]:
        """A change is to be remembered, unless no broker waits for it or a later one of the same thing is known. A
        later one also waits for the brokers of the one before.
        """
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
        """The oldest changes beyond the bound, as they were; `end` ends them."""
        return self.all()[: max(0, len(self._changes) - CHANGES_MAX)]

    def expired(self, now_ms: int) -> list[ChangePut]:
        """Changes that are too old, as they were; `end` ends them."""
        return [change for change in self.all() if now_ms - change.at_ms > KEPT_MS]

    def end(self, changes: Iterable[ChangePut]) -> list[ChangePut]:
        """Forget these."""
        ops = [_ended(change) for change in changes]
        self._apply_all(ops)
        return ops

    def confirmed(self, changes: Sequence[ChangeId], broker_name: str) -> list[ChangePut]:
        """A broker has applied these. One that a later one replaced meanwhile is not in the table any more."""
        here = [known for one in changes if (known := self._changes.get(one[:3])) and known.at_ms == one.at_ms]
        return self._without(here, broker_name)

    def broker_forgotten(self, broker_name: str) -> list[ChangePut]:
        """A broker left for good: no change waits for it."""
        return self._without(self.all(), broker_name)

    def apply(self, change: ChangePut) -> None:
        """Replay one operation."""
        self.version += 1
        key = _key(change)
        known = self._changes.get(key)
        if known is not None and (known.at_ms != change.at_ms or not change.waiting):
            del self._changes[key]  # a later one stands last
        if change.waiting:
            self._changes[key] = change
        if change.kind is ChangeKind.TOPIC_DELETED:
            (self._deleted.add if change.waiting else self._deleted.discard)(change.uid)

    def dump(self) -> Iterator[ChangePut]:
        """All of it as operations, for a snapshot."""
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
