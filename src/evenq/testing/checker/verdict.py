"""Checks at the end of a history: lost, unseen, skipped, dead letters. Called once by `check`; O(messages x groups)."""

from __future__ import annotations

from collections import Counter

from evenq.testing.checker.groups import GroupChecker
from evenq.testing.checker.messages import Messages, Sent
from evenq.testing.checker.report import AnomalyKind, Report

__all__ = ["Scans", "judge_dead_letters", "judge_losses"]


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
