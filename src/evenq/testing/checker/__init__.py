"""Checks a history against the promises: 17 kinds of anomaly, one pass, pure. Called by tests, the demo and `python -m
evenq.testing.checker FILE`.

`check` reads events in order and keeps only the state that it needs; it never sorts or searches. A correct history
gives no anomaly: if the order of two concurrent operations is unknown, it assumes the harmless one.
docs/internals/checker.md has the rule of each kind; the list is that of the reliability design, paragraph C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from evenq.errors import BadRequest
from evenq.testing.checker.faults import Faults
from evenq.testing.checker.groups import GroupChecker
from evenq.testing.checker.messages import Messages, Sent
from evenq.testing.checker.report import Anomaly, AnomalyKind, FaultRecovery, Report, Tolerances
from evenq.testing.history import Event

__all__ = ["Anomaly", "AnomalyKind", "FaultRecovery", "Report", "Tolerances", "check"]


class Scans:
    """The final reads of queues."""

    def __init__(self) -> None:
        # queue -> (line at which the last scan began, first offset it found)
        self._queues: dict[str, tuple[int, int]] = {}

    def add(self, queue: str, begun_line: int, first_offset: int) -> None:
        self._queues[queue] = (begun_line, first_offset)

    def should_hold(self, sent: Sent) -> bool:
        """Returns whether a scan after the send covered its place."""
        scan = self._queues.get(sent.queue)
        return scan is not None and scan[0] > sent.ok_line and scan[1] <= sent.offset


def judge_losses(messages: Messages, groups: list[GroupChecker], scans: Scans, report: Report) -> None:
    """Checks that each acknowledged message is stored, and was delivered to every group that drained its topic."""
    dead = {group.name: frozenset(group.dead) for group in groups}
    for body, sent in messages.sent.items():
        if sent.state != "ok" or sent.visible != "yes":
            continue
        drained = [group for group in groups if _drained(group, sent)]
        gone = scans.should_hold(sent) and not sent.scanned
        never_came = bool(drained) and not sent.received and not sent.scanned
        if gone or never_came:
            report.add(AnomalyKind.LOST, 0, f"{body} was sent OK to {sent.queue}:{sent.offset} and is gone")
            continue
        for group in groups:
            if body in group.bodies or body in dead[group.name] or not group.wants(sent):
                continue
            floor = group.floor.get(sent.queue)
            if floor is not None and floor <= sent.offset < group.committed.get(sent.queue, -1):
                committed = group.committed[sent.queue]
                text = f"{group.name} committed {committed} of {sent.queue} and never got {sent.offset} ({body})"
                report.add(AnomalyKind.SKIP, 0, text)
            elif group in drained:
                report.add(
                    AnomalyKind.UNSEEN,
                    0,
                    f"{group.name} drained {sent.topic} and never got {body} ({sent.queue}:{sent.offset})",
                )


def _drained(group: GroupChecker, sent: Sent) -> bool:
    drain = group.drained.get(sent.topic)
    return drain is not None and drain[0] > sent.ok_line and sent.delivery_ms <= drain[1] and group.wants(sent)


def judge_dead_letters(group: GroupChecker, report: Report) -> None:
    """Checks that each message that a drained group received is finished or a dead letter: one of the two, once.

    A message may become a dead letter unseen if every answer with it was lost.
    """
    for body, count in Counter(group.dead).items():
        if count > 1:
            report.add(AnomalyKind.DEAD_LETTERS, 0, f"{body} is {count} times among the dead letters of {group.name}")
        if body not in group.bodies and not group.unclear_receives:
            report.add(AnomalyKind.DEAD_LETTERS, 0, f"{body} is a dead letter of {group.name}, which never received it")
    if not group.has_acks:
        return
    among_dead = frozenset(group.dead)
    for queue, places in group.seen.items():
        topic = queue.split("/", 1)[0]
        for offset, seen in places.items():
            if seen.acked_line and seen.body in among_dead:
                report.add(
                    AnomalyKind.DEAD_LETTERS, 0, f"{seen.body} was finished by {group.name} and is a dead letter too"
                )
            elif not seen.maybe_acked and seen.body not in among_dead and topic in group.drained:
                text = f"{seen.body} ({queue}:{offset}) is neither finished by {group.name} nor a dead letter"
                report.add(AnomalyKind.DEAD_LETTERS, 0, text)


def check(history: Iterable[Event], *, limits: Tolerances | None = None) -> Report:
    """Checks a whole history. Raises BadRequest if it is malformed: an end without its invoke, an id used twice."""
    walk = _Walk(limits or Tolerances())
    for line, event in enumerate(history, start=1):
        walk.step(line, event)
    return walk.finish()


class _Walk:
    def __init__(self, limits: Tolerances) -> None:
        self._limits = limits
        self._report = Report(examples_max=limits.examples_max)
        self._messages = Messages(self._report, limits)
        self._faults = Faults(self._report, limits)
        self._groups: dict[str, GroupChecker] = {}
        self._open: dict[int, tuple[int, Event]] = {}
        self._scans = Scans()
        self._last_ms = 0

    def step(self, line: int, event: Event) -> None:
        self._last_ms = event.at_ms
        self._report.events = line
        if event.kind == "invoke":
            if event.id in self._open:
                raise BadRequest(
                    f"History line {line}: operation {event.id} is already open since line {self._open[event.id][0]}."
                )
            self._open[event.id] = (line, event)
            self._begin(line, event)
        elif event.kind == "fault":
            self._faults.begun(line, event)
            for group in self._groups.values():
                group.broken(event.target)
        elif event.kind == "heal":
            self._faults.healed(event)
        else:
            begun = self._open.pop(event.id, None)
            if begun is None:
                raise BadRequest(
                    f"History line {line}: {event.kind} of operation {event.id}, which never began or has ended."
                )
            self._report.operations[f"{begun[1].op} {event.kind}"] += 1
            self._end(line, begun[0], begun[1], event)

    def finish(self) -> Report:
        for _, event in self._open.values():
            self._report.operations[f"{event.op} open"] += 1
            # Its unrecorded answer may have had messages: a missing message is not lost then.
            if event.op == "receive":
                self._group(event.group).unclear_receives = True
        groups = list(self._groups.values())
        judge_losses(self._messages, groups, self._scans, self._report)
        for group in groups:
            if group.dead_known:
                judge_dead_letters(group, self._report)
        self._faults.finish(self._last_ms)
        return self._report

    def _group(self, name: str) -> GroupChecker:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = GroupChecker(name, self._messages, self._faults, self._report, self._limits)
        return group

    def _begin(self, line: int, event: Event) -> None:
        match event.op:
            case "send":
                self._messages.invoked(event)
                self._faults.tried()
            case "receive":
                self._faults.tried()
            case "ack":
                self._group(event.group).acknowledging(event)
            case "extend":
                self._group(event.group).extending(event)
            case "offset":
                if event.action == "reset":
                    self._group(event.group).resetting(event)
            case "admin":
                if event.action in ("commit", "rollback"):
                    self._messages.transaction_ending(event)
                elif event.action == "unlock":
                    self._group(event.group).unlocking(line, event)
            case _:
                raise BadRequest(f"Operation {event.op!r} is not one of send, receive, ack, extend, offset, admin.")

    def _end(self, line: int, begun_line: int, begun: Event, end: Event) -> None:
        if begun.op == "send":
            self._messages.ended(line, begun_line, begun, end)
            if end.kind == "ok":
                self._faults.succeeded(begun_line, end)
            return
        if end.kind != "ok":
            if begun.op == "receive" and end.kind == "info":
                self._group(begun.group).unclear_receives = True
            return
        match begun.op:
            case "receive":
                self._group(begun.group).received(line, begun_line, begun, end)
                if end.messages:
                    self._faults.succeeded(begun_line, end)
            case "ack":
                self._group(begun.group).acknowledged(line, end, begun)
            case "extend":
                self._group(begun.group).extended(begun)
            case "offset":
                self._group(begun.group).progress(line, begun_line, begun, end)
            case _:
                self._end_admin(line, begun_line, begun, end)

    def _end_admin(self, line: int, begun_line: int, begun: Event, end: Event) -> None:
        match begun.action:
            case "commit" | "rollback":
                self._messages.transaction_ended(line, begun)
            case "subscribe":
                self._group(begun.group).subscribed(begun)
            case "lock":
                self._group(begun.group).locked(line, begun_line, begun)
            case "drain":
                self._group(begun.group).drained[begun.topic] = (begun_line, begun.at_ms)
            case "scan":
                for message in end.messages or ():
                    self._messages.arrived(line, end.at_ms, message, scan=True)
                self._scans.add(begun.queue, begun_line, max(end.offset, 0))
            case "dead_letters":
                group = self._group(begun.group)
                group.dead_known = True
                group.dead.extend(message.body for message in end.messages or ())
            case _:
                pass
