"""All messages of a history: every send, every place in a queue, and the rules that hold for every receiver of a
message.

Used by `check` alone. State grows with the number of distinct messages; every call is O(1).
"""

from __future__ import annotations

from evenq.testing.checker.report import AnomalyKind, Report, Tolerances
from evenq.testing.history import Delivery, Event

__all__ = ["Messages", "Sent"]


class Sent:
    __slots__ = (
        "delivery_ms",
        "half",
        "message_group",
        "offset",
        "ok_line",
        "place",
        "queue",
        "received",
        "scanned",
        "state",
        "tag",
        "topic",
        "tries",
        "visible",
    )

    def __init__(self, event: Event) -> None:
        self.topic = event.topic
        self.message_group = event.message_group
        self.tag = event.tag
        self.delivery_ms = event.delivery_ms
        self.half = event.half
        self.state = "open"  # open, ok, fail, info
        self.visible = "no" if event.half else "yes"  # no, maybe (commit invoked), yes (commit ok)
        self.ok_line = 0
        self.queue = ""
        self.offset = -1
        self.place: tuple[str, int] | None = None  # the first one that was seen in its topic
        self.tries = 1
        self.received = False
        self.scanned = False


class Messages:
    def __init__(self, report: Report, limits: Tolerances) -> None:
        self._report = report
        self._limits = limits
        self.sent: dict[str, Sent] = {}
        self._bodies: dict[str, dict[int, str]] = {}  # queue -> offset -> body
        self._ends: dict[str, list[list[int]]] = {}  # queue -> [line of the send's end, greatest offset sent so far]

    def invoked(self, event: Event) -> None:
        """Notes that a send begins. An application may send a body again after an unclear or failed attempt."""
        known = self.sent.get(event.body)
        if known is None:
            self.sent[event.body] = Sent(event)
            return
        known.tries += 1
        if known.state == "fail":
            known.state = "open"

    def ended(self, line: int, begun_line: int, begun: Event, end: Event) -> None:
        sent = self.sent[begun.body]
        if end.kind != "ok":
            if sent.state == "open":
                sent.state = str(end.kind)
            return
        sent.state = "ok"
        sent.ok_line = sent.ok_line or line
        self._report.sent_ok += 1
        if end.offset < 0:
            return
        sent.queue, sent.offset = end.queue, end.offset
        self._placed(line, end.queue, end.offset, begun.body)
        ends = self._ends.setdefault(end.queue, [])
        before = greatest_before(ends, begun_line)
        if end.offset < before:
            text = (
                f"{begun.body} got offset {end.offset} of {end.queue} after a send that had ended there with {before}"
            )
            self._report.add(AnomalyKind.REORDERED_IN_QUEUE, line, text)
        remember_greatest(ends, line, end.offset)

    def transaction_ending(self, event: Event) -> None:
        sent = self.sent.get(event.body)
        if sent is not None and event.action == "commit" and sent.visible == "no":
            sent.visible = "maybe"

    def transaction_ended(self, line: int, event: Event) -> None:
        sent = self.sent.get(event.body)
        if sent is not None and event.action == "commit":
            sent.visible = "yes"
            sent.ok_line = line

    def arrived(self, line: int, at_ms: int, message: Delivery, *, scan: bool) -> Sent | None:
        """Notes a delivery or scan of a message; returns its state, None for a phantom."""
        sent = self.sent.get(message.body)
        if sent is None:
            self._report.add(
                AnomalyKind.PHANTOM, line, f"{message.body} at {message.queue}:{message.offset} was never sent"
            )
            return None
        if scan:
            sent.scanned = True
        else:
            sent.received = True
        self._placed(line, message.queue, message.offset, message.body)
        if sent.state == "fail":
            self._report.add(AnomalyKind.FAILED_DELIVERED, line, f"{message.body} arrived, its send had failed")
        if sent.visible == "no":
            self._report.add(AnomalyKind.HALF_VISIBLE, line, f"{message.body} arrived and no commit had begun")
        if sent.delivery_ms and not scan and at_ms + self._limits.clock_slack_ms < sent.delivery_ms:
            self._report.add(
                AnomalyKind.EARLY_DELAY, line, f"{message.body} arrived {sent.delivery_ms - at_ms} ms early"
            )
        return sent

    def _placed(self, line: int, queue: str, offset: int, body: str) -> None:
        bodies = self._bodies.get(queue)
        if bodies is None:
            bodies = self._bodies[queue] = {}
        known = bodies.setdefault(offset, body)
        if known != body:
            self._report.add(AnomalyKind.TWO_BODIES, line, f"{queue}:{offset} holds {known} and {body}")
        elif self._limits.stored_once:
            self._stored_once(line, queue, offset, body)

    def _stored_once(self, line: int, queue: str, offset: int, body: str) -> None:
        sent, (topic, broker, _) = self.sent[body], queue.split("/")
        if sent.tries > 1 or topic != sent.topic:
            return
        place = sent.place = sent.place or (queue, offset)
        if place != (queue, offset) and place[0].split("/")[1] == broker:
            self._report.add(
                AnomalyKind.STORED_TWICE, line, f"{body} is at {place[0]}:{place[1]} and at {queue}:{offset}"
            )


def remember_greatest(ends: list[list[int]], line: int, offset: int) -> None:
    """Appends (line, greatest offset so far)."""
    ends.append([line, max(offset, ends[-1][1]) if ends else offset])
    if len(ends) > 4_096:  # older ends matter only to operations that have been open for that long
        del ends[:2_048]


def greatest_before(ends: list[list[int]], line: int) -> int:
    """Returns the greatest offset among ends above `line`; -1 if none. Searches concurrent operations only."""
    for end_line, offset in reversed(ends):
        if end_line < line:
            return offset
    return -1
