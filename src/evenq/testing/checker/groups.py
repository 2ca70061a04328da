"""Deliveries and progress of each consumer group: repeats, order, progress, ownership.

Used by `check` alone. A repeat is excused if the invisible time ended, the message was returned, the group was reset,
or a fault was open since the earlier delivery. Every call is O(1) except for the search over concurrent operations.
"""

from __future__ import annotations

from evenq.testing.checker.faults import Faults
from evenq.testing.checker.messages import Messages, Sent, greatest_before, remember_greatest
from evenq.testing.checker.report import AnomalyKind, Report, Tolerances
from evenq.testing.history import Delivery, Event

__all__ = ["GroupChecker", "SeenMessage"]


class SeenMessage:
    """One message as one group received it, latest delivery."""

    __slots__ = ("acked_in_lease", "acked_line", "body", "maybe_acked", "ok_ms", "returned", "since_ms", "until_ms")

    def __init__(self, body: str) -> None:
        self.body = body
        self.acked_line = 0
        self.acked_in_lease = False
        self.maybe_acked = False
        self.delivered(0, 0, 0)

    def delivered(self, since_ms: int, ok_ms: int, until_ms: int) -> None:
        """Delivered no earlier than `since_ms`, invisible to others until `until_ms` (0: no invisible time)."""
        self.since_ms = since_ms
        self.ok_ms = ok_ms
        self.until_ms = until_ms
        self.returned = False


class GroupChecker:
    """One consumer group; for broadcasting, one member of it."""

    def __init__(self, name: str, messages: Messages, faults: Faults, report: Report, limits: Tolerances) -> None:
        self.name = name
        self.seen: dict[str, dict[int, SeenMessage]] = {}  # queue -> offset -> message
        self.bodies: set[str] = set()
        self.tags: dict[str, frozenset[str]] = {}  # topic -> wanted tags, empty for all
        self.drained: dict[str, tuple[int, int]] = {}  # topic -> (line, ms) at which the drain began
        self.floor: dict[str, int] = {}  # queue -> where the group began
        self.committed: dict[str, int] = {}  # queue -> greatest commit answered OK
        self.has_acks = False
        self.dead: list[str] = []  # bodies in its dead-letter topic
        self.dead_known = False
        self.unclear_receives = False  # an answer may have been lost
        self._messages = messages
        self._faults = faults
        self._report = report
        self._limits = limits
        self._unordered: set[str] = set()
        self._firsts: dict[str, list[list[int]]] = {}  # queue or message group -> [line, greatest offset first seen]
        self._commits: dict[str, list[list[int]]] = {}
        self._owners: dict[str, str] = {}
        self._unlocks: dict[tuple[str, str], int] = {}  # queue and owner -> line at which the newest unlock began

    def subscribed(self, event: Event) -> None:
        """Notes a subscription to a topic or to some of its tags."""
        self.tags[event.topic] = frozenset(tag.strip() for tag in event.tag.split("||") if tag.strip())
        if event.order == "none":
            self._unordered.add(event.topic)

    def received(self, line: int, begun_line: int, begun: Event, end: Event) -> None:
        firsts: list[tuple[str, int]] = []
        for message in end.messages or ():
            sent = self._messages.arrived(line, end.at_ms, message, scan=False)
            if sent is None:
                continue
            places = self.seen.get(message.queue)
            if places is None:
                places = self.seen[message.queue] = {}
                self.floor.setdefault(message.queue, message.offset)
            seen = places.get(message.offset)
            if seen is None:
                seen = places[message.offset] = SeenMessage(message.body)
                self.bodies.add(message.body)
                self._first(line, begun_line, message, sent, firsts)
            else:
                self._report.repeats += 1
                self._repeat(line, begun_line, begun, end, message, seen)
            self._finished_before(line, begun_line, message)
            since_ms = max(begun.at_ms, end.at_ms - self._limits.delivery_slack_ms)
            seen.delivered(since_ms, end.at_ms, since_ms + begun.invisible_ms if begun.invisible_ms else 0)
        self._report.delivered += len(end.messages or ())
        for key, offset in firsts:
            remember_greatest(self._firsts.setdefault(key, []), line, offset)

    def _first(self, line: int, begun_line: int, message: Delivery, sent: Sent, firsts: list[tuple[str, int]]) -> None:
        """Checks the first delivery: it must follow all that the group had received of its queue and message group."""
        queue = message.queue
        if sent.message_group and queue == (sent.queue or queue):
            key = f"{queue}#{sent.message_group}"
            before = max(
                greatest_before(self._firsts.get(key, []), begun_line),
                *[offset for other, offset in firsts if other == key],
                -1,
            )
            if message.offset < before:
                text = f"{self.name} got {_at(message)} after offset {before} of {sent.message_group}"
                self._report.add(AnomalyKind.REORDERED_IN_MESSAGE_GROUP, line, text)
            firsts.append((key, message.offset))
        elif message.attempt <= 1 and sent.topic not in self._unordered:
            before = max(
                greatest_before(self._firsts.get(queue, []), begun_line),
                firsts[-1][1] if firsts and firsts[-1][0] == queue else -1,
            )
            if message.offset < before:
                text = f"{self.name} got {_at(message)} after offset {before}"
                self._report.add(AnomalyKind.REORDERED_IN_QUEUE, line, text)
            firsts.append((queue, message.offset))

    def _repeat(
        self, line: int, begun_line: int, begun: Event, end: Event, message: Delivery, seen: SeenMessage
    ) -> None:
        """Checks a repeat: not allowed after the ack; before it, there must be a reason."""
        if seen.acked_line:
            in_flight_is_no_excuse = (
                seen.acked_in_lease and begun.invisible_ms and seen.ok_ms < begun.at_ms + begun.invisible_ms
            )
            if begun_line > seen.acked_line or in_flight_is_no_excuse:
                text = f"{self.name} got {_at(message)} after its ack in line {seen.acked_line}"
                self._report.add(AnomalyKind.DUPLICATE_AFTER_ACK, line, text)
            return
        if (
            self.committed.get(message.queue, -1) > message.offset
            or seen.returned
            or self._faults.broken_since(seen.since_ms)
        ):
            return  # below the committed offset, `_finished_before` checks it
        if seen.until_ms == 0 or end.at_ms + self._limits.clock_slack_ms < seen.until_ms:
            text = f"{self.name} got {_at(message)} again {end.at_ms - seen.ok_ms} ms after the last time"
            self._report.add(AnomalyKind.DUPLICATE_GRACEFUL, line, text)

    def _finished_before(self, line: int, begun_line: int, message: Delivery) -> None:
        commits = self._commits.get(message.queue)
        if commits and message.offset < greatest_before(commits, begun_line):
            text = f"{self.name} got {_at(message)} although it had committed past it"
            self._report.add(AnomalyKind.DUPLICATE_AFTER_ACK, line, text)

    def acknowledging(self, event: Event) -> None:
        """Notes that an ack begins: whatever its outcome, the message may be finished now."""
        self.has_acks = True
        for seen in self._named(event):
            seen.maybe_acked = True

    def acknowledged(self, line: int, end: Event, begun: Event) -> None:
        for seen in self._named(begun):
            if not seen.acked_line:
                seen.acked_line = line
                seen.acked_in_lease = end.at_ms < seen.until_ms

    def extending(self, event: Event) -> None:
        """Notes that a change of invisible time begins (0: return). Until it ends, the earlier time counts."""
        for seen in self._named(event):
            if event.invisible_ms == 0:
                seen.returned = True
            else:
                seen.until_ms = min(seen.until_ms, event.at_ms + event.invisible_ms)

    def extended(self, begun: Event) -> None:
        for seen in self._named(begun):
            if begun.invisible_ms:
                seen.until_ms = begun.at_ms + begun.invisible_ms

    def _named(self, event: Event) -> list[SeenMessage]:
        named = event.messages or [Delivery(event.queue, event.offset, event.body)]
        known = [self.seen.get(message.queue, {}).get(message.offset) for message in named]
        return [seen for seen in known if seen is not None]

    def progress(self, line: int, begun_line: int, begun: Event, end: Event) -> None:
        """Checks a commit, fetch or reset of an offset that was answered OK. The answer -1 means: none stored."""
        queue = begun.queue
        commits = self._commits.setdefault(queue, [])
        if begun.action == "commit":
            remember_greatest(commits, line, begun.offset)
            self.committed[queue] = max(self.committed.get(queue, -1), begun.offset)
        elif begun.action == "fetch":
            before = greatest_before(commits, begun_line)
            if end.offset < before:
                text = f"{self.name} has {end.offset} for {queue}, had {before}"
                self._report.add(AnomalyKind.OFFSET_BACKWARD, line, text)
            remember_greatest(commits, line, end.offset)
            self.floor[queue] = min(self.floor.get(queue, max(end.offset, 0)), max(end.offset, 0))

    def resetting(self, event: Event) -> None:
        """Notes that a reset begins: later deliveries may repeat, and progress starts anew."""
        self._commits.pop(event.queue, None)
        self._firsts.pop(event.queue, None)
        self.committed.pop(event.queue, None)
        for seen in self.seen.get(event.queue, {}).values():
            seen.returned, seen.acked_line = True, 0

    def locked(self, line: int, begun_line: int, begun: Event) -> None:
        """Checks a granted lock. Its owner may have released it before the answer was recorded."""
        if self._unlocks.get((begun.queue, begun.process), 0) > begun_line:
            return
        owner = self._owners.get(begun.queue)
        if owner is not None and owner != begun.process:
            self._report.add(
                AnomalyKind.TWO_OWNERS, line, f"{begun.process} holds {begun.queue} for {self.name}, so does {owner}"
            )
        self._owners[begun.queue] = begun.process

    def unlocking(self, line: int, event: Event) -> None:
        """Notes that an unlock begins: its owner no longer relies on the queue."""
        self._unlocks[event.queue, event.process] = line
        if self._owners.get(event.queue) == event.process:
            del self._owners[event.queue]

    def broken(self, target: str) -> None:
        """Notes a fault: locks that the target holds, or that it keeps as a broker, are no longer certain."""
        gone = [queue for queue, owner in self._owners.items() if target in ("", owner) or f"/{target}/" in queue]
        for queue in gone:
            del self._owners[queue]

    def wants(self, sent: Sent) -> bool:
        """Returns whether the subscription covers the message."""
        tags = self.tags.get(sent.topic)
        return not tags or sent.tag in tags


def _at(message: Delivery) -> str:
    return f"{message.queue}:{message.offset} ({message.body})"
