"""Spoils a good history with exactly one kind of anomaly, to prove that the checker finds it and names it.

Used by the checker's tests. Each planter edits a copy at a place
drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from evenq.testing.checker.report import AnomalyKind
from evenq.testing.history import Delivery, Event
from evenq_proofs.good_history import good_history

__all__ = ["good_history", "plant"]


def plant(kind: AnomalyKind, history: list[Event], seed: int) -> list[Event]:
    """A copy of `history` with one anomaly of `kind`. Raises LookupError if the history offers no place for it: take a
    longer one.
    """
    copies = [replace(event, messages=None if event.messages is None else list(event.messages)) for event in history]
    spoiled = _Spoiled(copies, random.Random(seed))  # a seed is the point
    _PLANTERS[kind](spoiled)
    return spoiled.events


class _Spoiled:
    """A history under the knife, with indexes to find places."""

    def __init__(self, events: list[Event], rng: random.Random) -> None:
        self.events = events
        self.rng = rng
        self.begun = {event.id: event for event in events if event.kind == "invoke"}
        self.sends = {event.body: event for event in self.begun.values() if event.op == "send"}
        self.ended = {event.id: event for event in events if event.kind in ("ok", "fail", "info")}
        self.last_id = max(self.begun)

    def pick(self, events: Iterable[Event]) -> Event:
        found = list(events)
        if not found:
            raise LookupError("the history has no place for this anomaly")
        return self.rng.choice(found)

    def op(self, op: str, action: str = "", outcome: str = "ok") -> list[Event]:
        """Ends of such operations."""
        ends = [end for end in self.ended.values() if end.kind == outcome]
        return [end for end in ends if self.begun[end.id].op == op and self.begun[end.id].action == action]

    def receives(self, group: str, *, size: int = 1) -> list[Event]:
        return [
            end for end in self.op("receive") if self.begun[end.id].group == group and len(end.messages or ()) >= size
        ]

    def stored_sends(self, topic: str) -> list[Event]:
        return [end for end in self.op("send") if self.begun[end.id].topic == topic and end.offset >= 0]

    def erase(self, body: str, *, groups: tuple[str, ...] | None = None) -> None:
        """No group (of `groups`, nor a scan if None) ever got `body`."""
        for event in self.events:
            if event.messages and (groups is None or (event.id in self.begun and self.begun[event.id].group in groups)):
                event.messages = [message for message in event.messages if message.body != body]

    def insert(self, index: int, *pair: Event) -> None:
        """Put an invoke and its end before `index`."""
        self.last_id += 1
        for event in pair:
            event.id = self.last_id
            event.at_ms = self.events[index - 1].at_ms
        self.events[index:index] = pair

    def index(self, event: Event) -> int:
        return next(place for place, other in enumerate(self.events) if other is event)

    def faults_after(self, index: int) -> bool:
        return any(event.kind in ("fault", "heal") for event in self.events[index:])


def _lost(spoiled: _Spoiled) -> None:
    end = spoiled.pick(spoiled.stored_sends("plain"))
    spoiled.erase(spoiled.begun[end.id].body)


def _unseen(spoiled: _Spoiled) -> None:
    end = spoiled.pick(spoiled.stored_sends("plain"))
    spoiled.erase(spoiled.begun[end.id].body, groups=("pop-1",))


def _skip(spoiled: _Spoiled) -> None:
    end = spoiled.pick(end for end in spoiled.stored_sends("plain") if end.offset > 0)
    spoiled.erase(spoiled.begun[end.id].body, groups=("pull-1",))


def _phantom(spoiled: _Spoiled) -> None:
    end = spoiled.pick(spoiled.receives("pop-2"))
    assert end.messages
    end.messages.append(Delivery(end.messages[0].queue, 10_000, "never-sent"))


def _failed_delivered(spoiled: _Spoiled) -> None:
    failed = spoiled.pick(end for end in spoiled.op("send", outcome="fail") if spoiled.begun[end.id].topic == "plain")
    body = spoiled.begun[failed.id].body
    scan = spoiled.pick(end for end in spoiled.op("admin", "scan") if spoiled.begun[end.id].queue.startswith("plain"))
    scan.messages = [*(scan.messages or ()), Delivery(spoiled.begun[scan.id].queue, 10_000, body)]


def _duplicate_after_ack(spoiled: _Spoiled) -> None:
    ack = spoiled.begun[spoiled.pick(end for end in spoiled.op("ack") if spoiled.begun[end.id].group == "pop-2").id]
    again = [Delivery(ack.queue, ack.offset, ack.body, 2)]
    begin = Event(kind="invoke", at_ms=0, op="receive", group="pop-2", process="late", topic="plain", invisible_ms=400)
    place = spoiled.index(spoiled.ended[ack.id]) + 1
    spoiled.insert(place, begin, Event(kind="ok", at_ms=0, messages=again))


def _duplicate_graceful(spoiled: _Spoiled) -> None:
    candidates = [
        end for end in spoiled.receives("pop-2") if all(message.attempt == 1 for message in end.messages or ())
    ]
    healed = max(index for index, event in enumerate(spoiled.events) if event.kind == "heal")
    quiet = [
        end for end in candidates if spoiled.index(end) > healed and end.at_ms > spoiled.events[healed].at_ms + 1_000
    ]
    end = spoiled.pick(quiet)
    assert end.messages
    begin = Event(kind="invoke", at_ms=0, op="receive", group="pop-2", process="other", topic="plain", invisible_ms=400)
    spoiled.insert(
        spoiled.index(end) + 1, begin, Event(kind="ok", at_ms=0, messages=[end.messages[0]._replace(attempt=2)])
    )


def _reordered_in_queue(spoiled: _Spoiled) -> None:
    end = spoiled.pick(
        end for end in spoiled.receives("pop-2", size=2) if all(message.attempt == 1 for message in end.messages or ())
    )
    end.messages = list(reversed(end.messages or ()))


def _reordered_in_message_group(spoiled: _Spoiled) -> None:
    def of_one_group(end: Event) -> bool:
        groups = [spoiled.sends[message.body].message_group for message in (end.messages or [])[:2]]
        return groups[0] == groups[1] and all(message.attempt == 1 for message in end.messages or ())

    seen: set[str] = set()
    candidates = []
    for end in spoiled.receives("pull-1", size=2):
        messages = end.messages or []
        fresh = all(message.body not in seen for message in messages)
        seen.update(message.body for message in messages)
        if fresh and messages[0].queue.startswith("fifo") and of_one_group(end):
            candidates.append(end)
    end = spoiled.pick(candidates)
    assert end.messages
    end.messages[0], end.messages[1] = end.messages[1], end.messages[0]


def _two_bodies(spoiled: _Spoiled) -> None:
    scan = spoiled.pick(end for end in spoiled.op("admin", "scan") if len(end.messages or ()) >= 2)
    assert scan.messages
    first, second = scan.messages[0], scan.messages[1]
    scan.messages.append(first._replace(body=second.body))


def _offset_backward(spoiled: _Spoiled) -> None:
    fetches = [end for end in spoiled.op("offset", "fetch") if end.offset > 0]
    end = spoiled.pick(fetches)
    begin = spoiled.begun[end.id]
    again = Event(
        kind="invoke", at_ms=0, op="offset", action="fetch", group=begin.group, queue=begin.queue, process="late"
    )
    spoiled.insert(spoiled.index(end) + 1, again, Event(kind="ok", at_ms=0, offset=end.offset - 1))


def _two_owners(spoiled: _Spoiled) -> None:
    end = spoiled.pick(spoiled.op("admin", "lock"))
    begin = spoiled.begun[end.id]
    thief = Event(
        kind="invoke", at_ms=0, op="admin", action="lock", group=begin.group, queue=begin.queue, process="thief"
    )
    spoiled.insert(spoiled.index(end) + 1, thief, Event(kind="ok", at_ms=0))
    leave = Event(
        kind="invoke", at_ms=0, op="admin", action="unlock", group=begin.group, queue=begin.queue, process="thief"
    )
    spoiled.insert(spoiled.index(end) + 3, leave, Event(kind="ok", at_ms=0))


def _early_delay(spoiled: _Spoiled) -> None:
    end = spoiled.pick(
        end for end in spoiled.receives("pop-1") if end.messages and end.messages[0].queue.startswith("delay")
    )
    assert end.messages
    spoiled.sends[end.messages[0].body].delivery_ms = end.at_ms + 50


def _half_visible(spoiled: _Spoiled) -> None:
    rolled_back = {begin.body for begin in spoiled.begun.values() if begin.action == "rollback"}
    scan = spoiled.pick(end for end in spoiled.op("admin", "scan") if spoiled.begun[end.id].queue.startswith("tx"))
    body = spoiled.rng.choice(sorted(body for body in rolled_back if _outcome(spoiled, body) == "ok"))
    scan.messages = [*(scan.messages or ()), Delivery(spoiled.begun[scan.id].queue, 10_000, body)]


def _outcome(spoiled: _Spoiled, body: str) -> str:
    return str(spoiled.ended[spoiled.sends[body].id].kind)


def _dead_letters(spoiled: _Spoiled) -> None:
    """A dead letter vanishes, neither finished nor dead; or there are two of it."""
    shelf = spoiled.pick(end for end in spoiled.op("admin", "dead_letters") if end.messages)
    group = spoiled.begun[shelf.id].group
    tried = {
        spoiled.begun[end.id].body
        for end in spoiled.ended.values()
        if spoiled.begun[end.id].op == "ack" and spoiled.begun[end.id].group == group
    }
    assert shelf.messages
    received = {message.body for end in spoiled.receives(group) for message in end.messages or ()}
    victims = [message for message in shelf.messages if message.body in received - tried]
    if victims:
        shelf.messages.remove(spoiled.rng.choice(victims))
    else:
        shelf.messages.append(shelf.messages[0])


def _slow_recovery(spoiled: _Spoiled) -> None:
    heal = spoiled.pick(event for event in spoiled.events if event.kind == "heal" and event.op == "kill")
    place = spoiled.index(heal)
    done = [index for index in range(place, len(spoiled.events)) if spoiled.events[index].kind == "invoke"]
    fault = Event(kind="fault", at_ms=spoiled.events[-1].at_ms, op="freeze", target="")
    spoiled.events.append(fault)
    spoiled.last_id += 1
    at_ms = fault.at_ms
    assert done
    for wait_ms in (0, 20_000, 40_000):
        spoiled.last_id += 1
        begin = Event(
            kind="invoke", at_ms=at_ms + wait_ms, id=spoiled.last_id, op="send", topic="plain", body=f"frozen-{wait_ms}"
        )
        spoiled.events += [begin, Event(kind="info", at_ms=at_ms + wait_ms + 5_000, id=spoiled.last_id)]


def _stored_twice(spoiled: _Spoiled) -> None:
    scan = spoiled.pick(end for end in spoiled.op("admin", "scan") if spoiled.begun[end.id].queue.startswith("plain"))
    queue = spoiled.begun[scan.id].queue
    sent = [end for end in spoiled.stored_sends("plain") if end.queue.split("/")[1] == queue.split("/")[1]]
    body = spoiled.begun[spoiled.pick(sent).id].body
    scan.messages = [*(scan.messages or ()), Delivery(queue, 10_000, body)]


_PLANTERS: dict[AnomalyKind, Callable[[_Spoiled], None]] = {
    AnomalyKind.LOST: _lost,
    AnomalyKind.UNSEEN: _unseen,
    AnomalyKind.PHANTOM: _phantom,
    AnomalyKind.FAILED_DELIVERED: _failed_delivered,
    AnomalyKind.STORED_TWICE: _stored_twice,
    AnomalyKind.DUPLICATE_AFTER_ACK: _duplicate_after_ack,
    AnomalyKind.DUPLICATE_GRACEFUL: _duplicate_graceful,
    AnomalyKind.REORDERED_IN_QUEUE: _reordered_in_queue,
    AnomalyKind.REORDERED_IN_MESSAGE_GROUP: _reordered_in_message_group,
    AnomalyKind.SKIP: _skip,
    AnomalyKind.TWO_BODIES: _two_bodies,
    AnomalyKind.OFFSET_BACKWARD: _offset_backward,
    AnomalyKind.TWO_OWNERS: _two_owners,
    AnomalyKind.EARLY_DELAY: _early_delay,
    AnomalyKind.HALF_VISIBLE: _half_visible,
    AnomalyKind.DEAD_LETTERS: _dead_letters,
    AnomalyKind.SLOW_RECOVERY: _slow_recovery,
}
