"""Counts of one kind: sent and received messages, and what is wrong with them. Pure; times are arguments.

Only answers count: a message is *sent* when its send was answered OK. Each repeat has a reason. A place is broker,
queue and offset: the same number at another place is a second stored copy, because its send was retried. `producing`
and `running` call it; `result` is one row of the table.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

from evenq.verify.outages import Outages
from evenq.verify.plan import Kind

EARLY_MS = 50  # tolerance for the difference of two machines' clocks
EXAMPLES_MAX = 20


class Repeat(StrEnum):
    """Reason of a redelivery."""

    RESENT = "resent"
    """Its send was retried after an unclear end, and both were stored."""
    OUTAGE = "outage"
    """A broker was away between the deliveries, and no ack had been answered."""
    TIMEOUT = "timeout"
    """Its invisible time had ended before an ack was answered."""
    AFTER_ACK = "after_ack"
    """Its ack had been answered OK: never allowed."""
    UNEXPLAINED = "unexplained"
    """None of these: never allowed."""


WRONG_REPEATS = (Repeat.AFTER_ACK, Repeat.UNEXPLAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    number: int
    place: str
    """Broker, queue id and offset."""
    now_ms: int
    """Time of receiving."""
    until_ms: int
    """End of its invisible time."""


class _Sent:
    __slots__ = ("begun_ms", "copies", "due_ms", "expected", "received", "settled", "state", "stream", "tries")

    def __init__(self, stream: str, begun_ms: int, due_ms: int, expected: bool | None) -> None:
        self.stream = stream
        self.begun_ms = begun_ms
        self.due_ms = due_ms
        self.expected = expected  # None: a transaction that is not decided yet
        self.state = "open"  # open, stored, unsure, refused
        self.tries = 0
        self.received = False
        self.copies: dict[str, _Copy] | None = None
        """By place: copies that were received and are not acknowledged."""
        self.settled: tuple[int, ...] = ()
        """Hashes of the places of acknowledged copies; smaller than the places."""


@dataclass(slots=True)
class _Copy:
    at_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One row. Times are ms; None if the kind has no such value."""

    kind: Kind
    sent: int
    expected: int
    """Sent, and not rolled back."""
    received: int
    """Different messages that were received."""
    lost: int
    """Sent, expected, and never received."""
    unsure: int
    """Unknown whether stored: no answer until the end. They may have been received or not."""
    refused: int
    repeats: dict[Repeat, int]
    reordered: int | None
    early: int | None
    late: int | None
    """Beyond the tolerance although no broker was away."""
    excused: int | None
    """Late because a broker was away; of lite topics: out of order because the lite topic moved meanwhile."""
    late_p50_ms: int | None
    late_p99_ms: int | None
    leaked: int | None
    """Transactions: received although rolled back, or before the commit."""
    problems: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        return sum(self.repeats.values())

    @property
    def broken(self) -> bool:
        """True if a promise was broken."""
        wrong = sum(self.repeats.get(reason, 0) for reason in WRONG_REPEATS)
        counts = (self.lost, self.refused, wrong, self.reordered, self.early, self.late, self.leaked)
        return any(counts) or not self.sent


class Tally:
    """All messages of one kind. Memory: about 250 bytes per finished message."""

    def __init__(self, kind: Kind, *, outages: Outages, tolerance_ms: int) -> None:
        self.kind = kind
        self.sent = 0
        self.received = 0
        self._outages = outages
        self._tolerance_ms = tolerance_ms
        self._messages: list[_Sent] = []
        self._expected = 0
        self._repeats: Counter[Repeat] = Counter()
        self._counts: Counter[str] = Counter()
        self._highest: dict[str, int] = {}
        self._lateness_ms: list[int] = []
        self._problems: deque[str] = deque(maxlen=EXAMPLES_MAX)

    def begin(self, *, stream: str = "", begun_ms: int = 0, due_ms: int = 0, expected: bool | None = True) -> int:
        """Adds a message; returns its number. Numbers of a stream grow, and must be sent in that order."""
        self._messages.append(_Sent(stream, begun_ms if self.kind is Kind.LITE else 0, due_ms, expected))
        return len(self._messages) - 1

    def tried(self, number: int) -> None:
        self._messages[number].tries += 1

    def stored(self, number: int) -> None:
        message = self._messages[number]
        message.state = "stored"
        self.sent += 1
        self._expect(message, 1)

    def unsure(self, number: int) -> None:
        self._messages[number].state = "unsure"

    def refused(self, number: int, why: str) -> None:
        """Notes that the server will never accept it."""
        self._messages[number].state = "refused"
        self._wrong("refused", f"{number} was refused: {why}")

    def decided(self, number: int, *, expected: bool) -> None:
        """Notes that a transaction will be committed (`expected`) or rolled back."""
        message = self._messages[number]
        message.expected = expected
        if message.state == "stored":
            self._expect(message, 1)

    def decision(self, number: int) -> bool | None:
        """Returns the value given to `decided`; None if there is none, or the number is unknown."""
        return self._messages[number].expected if 0 <= number < len(self._messages) else None

    def arrived(self, arrival: Arrival) -> None:
        """Notes a delivery; called in the order of receiving."""
        if not 0 <= arrival.number < len(self._messages):
            self._wrong("leaked", f"{arrival.number} at {arrival.place} was never sent")
            return
        message = self._messages[arrival.number]
        if not message.expected:
            why = "its commit" if message.expected is None else "although it was rolled back"
            self._wrong("leaked", f"{arrival.number} came {'before ' if message.expected is None else ''}{why}")
        if message.received:
            self._repeats[self._again(message, arrival)] += 1
        else:
            self._first(message, arrival)
        if message.copies is None:
            message.copies = {}
        message.copies[arrival.place] = _Copy(arrival.now_ms, arrival.until_ms)

    def acked(self, arrival: Arrival) -> None:
        message = self._messages[arrival.number]
        if message.copies is not None and arrival.place in message.copies:
            del message.copies[arrival.place]
            message.settled += (hash(arrival.place),)
            message.copies = message.copies or None

    def out_of_turn(self, text: str) -> None:
        """Notes a message that was received before one of higher priority."""
        self._wrong("reordered", text)

    @property
    def pending(self) -> int:
        """Sent, expected, and not received yet."""
        return self._expected

    def result(self) -> Result:
        lost = [
            n for n, one in enumerate(self._messages) if one.state == "stored" and one.expected and not one.received
        ]
        for number in lost[:EXAMPLES_MAX]:
            self._problems.append(f"{number} was sent and never came")
        delayed = self.kind is Kind.DELAY
        ordered = self.kind in {Kind.FIFO, Kind.PRIORITY, Kind.LITE}
        lateness_ms = sorted(self._lateness_ms)
        return Result(
            kind=self.kind,
            sent=self.sent,
            expected=sum(one.state == "stored" and bool(one.expected) for one in self._messages),
            received=self.received,
            lost=len(lost),
            unsure=sum(one.state == "unsure" for one in self._messages),
            refused=self._counts["refused"],
            repeats=dict(self._repeats),
            reordered=self._counts["reordered"] if ordered else None,
            early=self._counts["early"] if delayed else None,
            late=self._counts["late"] if delayed else None,
            excused=self._counts["excused"] if delayed or self.kind is Kind.LITE else None,
            late_p50_ms=_share(lateness_ms, 50) if delayed else None,
            late_p99_ms=_share(lateness_ms, 99) if delayed else None,
            leaked=self._counts["leaked"] if self.kind is Kind.TRANSACTION or self._counts["leaked"] else None,
            problems=list(self._problems),
        )

    def _expect(self, message: _Sent, count: int) -> None:
        if message.expected and not message.received:
            self._expected += count

    def _first(self, message: _Sent, arrival: Arrival) -> None:
        if message.state == "stored":
            self._expect(message, -1)
        message.received = True
        self.received += 1
        if message.stream:
            self._in_sequence(message, arrival)
        if message.due_ms:
            self._timed(message.due_ms, arrival)

    def _in_sequence(self, message: _Sent, arrival: Arrival) -> None:
        highest = self._highest.setdefault(message.stream, arrival.number)
        if arrival.number >= highest:
            self._highest[message.stream] = arrival.number
        elif self.kind is Kind.LITE and self._outages.touched(message.begun_ms, arrival.now_ms):
            self._counts["excused"] += 1  # contract 5.6: the lite topic moved meanwhile, its stored messages did not
        else:
            self._wrong("reordered", f"{arrival.number} of {message.stream} came after {highest}")

    def _timed(self, due_ms: int, arrival: Arrival) -> None:
        late_ms = arrival.now_ms - due_ms
        self._lateness_ms.append(late_ms)
        if late_ms < -EARLY_MS:
            self._wrong("early", f"{arrival.number} came {-late_ms} ms before its time")
        elif late_ms > self._tolerance_ms:
            if self._outages.touched(due_ms, arrival.now_ms):
                self._counts["excused"] += 1
            else:
                self._wrong("late", f"{arrival.number} came {late_ms} ms after its time")

    def _again(self, message: _Sent, arrival: Arrival) -> Repeat:
        copy = message.copies.get(arrival.place) if message.copies else None
        if hash(arrival.place) in message.settled:
            reason = Repeat.AFTER_ACK
        elif copy is None:
            if message.tries > 1 or self._outages.any:
                return Repeat.RESENT
            reason = Repeat.UNEXPLAINED
        elif self._outages.touched(copy.at_ms, arrival.now_ms):
            return Repeat.OUTAGE
        elif arrival.now_ms >= copy.until_ms:
            return Repeat.TIMEOUT
        else:
            reason = Repeat.UNEXPLAINED
        self._problems.append(f"{arrival.number} was redelivered at {arrival.place} ({reason})")
        return reason

    def _wrong(self, count: str, text: str) -> None:
        self._counts[count] += 1
        self._problems.append(text)


def _share(ordered: list[int], percent: int) -> int | None:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else None
