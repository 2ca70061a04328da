"""Lite subscriptions: the lite topics that each client wants (wire contract 3.14).

Every broker of the cluster keeps them by client id, group and parent topic, in memory only. Clients send their whole
set every 30 s, and a broker group's next leader gets it from the previous one. A set that was not sent again for
`keep_ms` is forgotten. Called by `loops.lite.lite_topics`; pure, times come in as ms. Always true: a name of a set is
also found under its parent and name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from evenq.errors import LiteSubscriptionQuotaExceeded
from evenq.serving.auth.users import UserResource
from evenq_broker.core.shares import Shares, UsersNow, no_users


class LiteSubscribeAction(IntEnum):
    """Actions that a client requests, with the numbers of `LiteSubscriptionAction`."""

    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3


class Subscriber(NamedTuple):
    """Owner of a set."""

    client_id: str
    group: str
    parent: str


class RequestedStart(NamedTuple):
    """Requested start of a group on a lite topic to which none of its clients was subscribed."""

    kind: str
    """Name in the protocol: `offset`, `tail_n`, `timestamp` (ms) or `policy`; empty: the old policy, last."""
    value: int
    """An offset, a number of messages, a time, or the number of a policy: `LAST`, `MIN`, `MAX`."""

    @property
    def moves(self) -> bool:
        """True for a position, False for a policy."""
        return self.kind not in {"", "policy"}


LAST, MIN, MAX = range(3)  # policies of a start


class LiteSet(NamedTuple):
    """A client's set, as one broker sends it to another."""

    subscriber: Subscriber
    names: Sequence[str]
    age_ms: int  # since it was sent


class _Set:
    __slots__ = ("names", "synced_ms")

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.synced_ms = 0


class LiteSubscriptions:
    """All sets that this broker knows."""

    __slots__ = (
        "_count",
        "_of_client",
        "_sets",
        "_shares",
        "_subscribers",
        "changes",
        "each_max",
        "keep_ms",
        "on_change",
    )

    def __init__(self, *, each_max: int, all_max: int, keep_ms: int, users: UsersNow = no_users) -> None:
        """`users`: see `core.shares`."""
        self.each_max = each_max
        self._shares = Shares(
            UserResource.GROUP,
            users,
            limit=all_max,
            setting="lite_subscriptions_all_max",
            what="lite subscriptions",
        )
        self.keep_ms = keep_ms
        self._sets: dict[Subscriber, _Set] = {}
        self._of_client: dict[str, dict[Subscriber, None]] = {}
        self._subscribers: dict[tuple[str, str], dict[Subscriber, None]] = {}  # parent, lite topic -> subscribers
        self._count = 0
        self.changes = 0  # grows whenever a set changes
        self.on_change: Callable[[], None] = lambda: None  # called after each change

    def __len__(self) -> int:
        return self._count

    def sync(
        self, who: Subscriber, action: LiteSubscribeAction, names: Iterable[str], now_ms: int
    ) -> tuple[list[str], bool]:
        """Applies a client's request. Returns the names that are new for it, and whether anything changed.
        Raises LiteSubscriptionQuotaExceeded and then changes nothing.
        """
        known = self._sets.get(who)
        before = known.names if known is not None else {}
        listed = dict.fromkeys(names)
        match action:
            case LiteSubscribeAction.PARTIAL_ADD:
                after = {**before, **listed}
            case LiteSubscribeAction.PARTIAL_REMOVE:
                after = {name: None for name in before if name not in listed}
            case LiteSubscribeAction.COMPLETE_ADD:
                after = listed
            case LiteSubscribeAction.COMPLETE_REMOVE:
                after = {}
        added = [name for name in after if name not in before]
        self._must_fit(who, len(before), len(after))
        if not after:
            self._drop(who)
            return [], bool(before)
        if known is None:
            known = self._sets[who] = _Set()
            self._of_client.setdefault(who.client_id, {})[who] = None
        known.synced_ms = now_ms
        for name in before:
            if name not in after:
                self._unsubscribe(who, name)
        for name in added:
            self._subscribers.setdefault((who.parent, name), {})[who] = None
        self._count += len(after) - len(before)
        known.names = after
        changed = len(added) > 0 or len(after) != len(before)
        if changed:
            self._changed()
        return added, changed

    def names(self, who: Subscriber) -> Iterable[str]:
        known = self._sets.get(who)
        return () if known is None else known.names

    def subscribers(self, parent: str, name: str) -> list[Subscriber]:
        return list(self._subscribers.get((parent, name), ()))

    def is_subscribed(self, parent: str, name: str, *, group: str = "", besides: Subscriber | None = None) -> bool:
        """Returns True if a client, or one of this group, wants it; `besides` does not count."""
        return any(who != besides and group in {"", who.group} for who in self._subscribers.get((parent, name), ()))

    def newest(self, names_max: int) -> Iterator[tuple[Subscriber, list[str], int]]:
        """Yields subscriber, names and time of sending of as many sets as have `names_max` names together."""
        left = names_max
        for who, known in self._sets.items():
            left -= len(known.names)
            if left < 0:
                return
            yield who, list(known.names), known.synced_ms

    def learn(self, who: Subscriber, names: Iterable[str], synced_ms: int) -> bool:
        """Takes in a set from another broker, unless this one has it already. Returns whether that changed anything."""
        if who in self._sets:
            return False
        try:
            return self.sync(who, LiteSubscribeAction.COMPLETE_ADD, names, synced_ms)[1]
        except LiteSubscriptionQuotaExceeded:
            return False

    def sets(self) -> list[tuple[Subscriber, int]]:
        """Returns the owner of each set, and its number of names."""
        return [(who, len(known.names)) for who, known in self._sets.items()]

    def expire(self, now_ms: int) -> list[Subscriber]:
        """Forgets the sets that were not sent for too long; returns their owners."""
        gone = [who for who, known in self._sets.items() if known.synced_ms + self.keep_ms <= now_ms]
        for who in gone:
            self._drop(who)
        return gone

    def end_client(self, client_id: str) -> None:
        """Drops the sets of a client that announced its end."""
        for who in list(self._of_client.get(client_id, ())):
            self._drop(who)

    def end_group(self, group: str) -> None:
        """Drops the sets of the deleted group: a new one of the same name has other clients."""
        for who in [who for who in self._sets if who.group == group]:
            self._drop(who)

    def end_parent(self, parent: str) -> list[tuple[Subscriber, list[str]]]:
        """Drops the sets of the deleted parent topic; returns their owners and names."""
        ended = [(who, list(known.names)) for who, known in self._sets.items() if who.parent == parent]
        for who, _ in ended:
            self._drop(who)
        return ended

    def _must_fit(self, who: Subscriber, before: int, after: int) -> None:
        # A client above a limit that was lowered keeps its set, which may only shrink.
        if after > max(self.each_max, before):
            raise LiteSubscriptionQuotaExceeded(
                f"client {who.client_id} requests {after} lite topics of {who.parent}, the limit is "
                f"lite_subscriptions_max, {self.each_max}; unsubscribe from some"
            )
        if after > before:
            refusal = self._shares.refusal(
                who.group, self._counts, total=self._count, version=self.changes, more=after - before
            )
            if refusal:
                raise LiteSubscriptionQuotaExceeded(f"{refusal}: unsubscribe from some")

    def _counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for who, known in self._sets.items():
            counts[who.group] = counts.get(who.group, 0) + len(known.names)
        return counts

    def _drop(self, who: Subscriber) -> None:
        known = self._sets.pop(who, None)
        if known is not None:
            self._changed()
            theirs = self._of_client[who.client_id]
            del theirs[who]
            if not theirs:
                del self._of_client[who.client_id]
            self._count -= len(known.names)
            for name in known.names:
                self._unsubscribe(who, name)

    def _changed(self) -> None:
        self.changes += 1
        self.on_change()

    def _unsubscribe(self, who: Subscriber, name: str) -> None:
        subscribers = self._subscribers[who.parent, name]
        del subscribers[who]
        if not subscribers:
            del self._subscribers[who.parent, name]

    def check(self) -> None:
        pairs = {(who, name) for who, known in self._sets.items() for name in known.names}
        assert pairs == {(who, key[1]) for key, subscribers in self._subscribers.items() for who in subscribers}
        assert all(who.parent == key[0] for key, subscribers in self._subscribers.items() for who in subscribers)
        assert self._count == len(pairs)
        assert all(self._of_client.values())
        assert {who for theirs in self._of_client.values() for who in theirs} == set(self._sets)
