"""Faults that a test plans for the next messages that producers send.

A test plans them in its own thread, and the broker's loop takes them in the order of the messages. Plans are applied
one after another: `fail_sends(2)` and `drop(1)` refuse two messages and drop the third one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from evenq.errors import BadRequest, Error, RequestTimeout, TooManyRequests

COUNT_MAX = 1_000_000
DELAY_MAX_MS = 86_400_000


class FaultKind(Enum):
    """Kinds of faults of a message."""

    REFUSED = auto()
    ANSWER_LOST = auto()
    DROPPED = auto()
    DUPLICATED = auto()
    DELAYED = auto()


@dataclass(slots=True, kw_only=True)
class SendFault:
    """A planned fault, for `left` more messages."""

    kind: FaultKind
    left: int
    topic: str
    error: Error | None = None
    attempts: int | None = None
    delay_ms: int = 0


class SendFaults:
    """Plans of one cluster. All methods return immediately."""

    def __init__(self) -> None:
        self._planned: deque[SendFault] = deque()

    def fail_sends(
        self, count: int = 1, *, error: Error | None = None, attempts: int | None = None, topic: str = ""
    ) -> None:
        """Refuses the next `count` messages (1 .. 1,000,000) with `error`; None: TooManyRequests.

        Every attempt to send such a message is refused, so that `send` raises the error. With `attempts`, only that
        number of attempts of each message: a producer retries a retryable error and then succeeds. `topic`: only
        messages for it count, as in all methods here.
        """
        if attempts is not None and not (isinstance(attempts, int) and attempts >= 1):
            raise BadRequest(f"attempts is {attempts!r:.80}; give 1 or more, or None for every attempt")
        if error is not None and not isinstance(error, Error):
            raise BadRequest(f"error is {error!r:.80}; give an error of evenq.errors, as in Forbidden('no grant')")
        error = error or TooManyRequests("this message is refused, because the test planned it (fail_sends)")
        self._plan(FaultKind.REFUSED, count, topic, error=error, attempts=attempts)

    def lose_answers(self, count: int = 1, *, attempts: int | None = None, topic: str = "") -> None:
        """Stores the next `count` messages and answers RequestTimeout: the producer cannot know that they are stored.

        `attempts`: as in `fail_sends`. With `attempts=1` the producer's retry gets the first answer, and nothing is
        stored twice. With None `send` raises RequestTimeout.
        """
        error = RequestTimeout("the answer is lost, because the test planned it (lose_answers); the message is stored")
        self._plan(FaultKind.ANSWER_LOST, count, topic, error=error, attempts=attempts)

    def drop(self, count: int = 1, *, topic: str = "") -> None:
        """Accepts the next `count` messages and never delivers them. Their `SendResult` has the offset -1."""
        self._plan(FaultKind.DROPPED, count, topic)

    def duplicate(self, count: int = 1, *, topic: str = "") -> None:
        """Stores the next `count` messages twice: consumers get each two times, with one message id."""
        self._plan(FaultKind.DUPLICATED, count, topic)

    def delay(self, delay_ms: int, count: int = 1, *, topic: str = "") -> None:
        """Delivers the next `count` messages `delay_ms` later (1 .. 86,400,000), behind messages that are sent in
        between. Their `SendResult` has the offset -1.
        """
        if not isinstance(delay_ms, int) or not 1 <= delay_ms <= DELAY_MAX_MS:
            raise BadRequest(f"delay_ms is {delay_ms!r:.80}, the range is 1 to {DELAY_MAX_MS}")
        self._plan(FaultKind.DELAYED, count, topic, delay_ms=delay_ms)

    def clear(self) -> None:
        """Removes the plans that are left."""
        self._planned.clear()

    @property
    def pending(self) -> int:
        """The number of messages that planned faults still wait for."""
        return sum(fault.left for fault in list(self._planned))

    def take(self, topic: str) -> SendFault | None:
        """Returns the fault of the next message for a topic. Called in the broker's loop."""
        for fault in list(self._planned):
            if fault.topic not in {"", topic}:
                continue
            fault.left -= 1
            if fault.left <= 0 and fault in self._planned:
                self._planned.remove(fault)
            return fault
        return None

    def _plan(
        self,
        kind: FaultKind,
        count: int,
        topic: str,
        *,
        error: Error | None = None,
        attempts: int | None = None,
        delay_ms: int = 0,
    ) -> None:
        if not isinstance(count, int) or not 1 <= count <= COUNT_MAX:
            raise BadRequest(f"count is {count!r:.80}, the range is 1 to {COUNT_MAX}")
        self._planned.append(
            SendFault(kind=kind, left=count, topic=topic, error=error, attempts=attempts, delay_ms=delay_ms)
        )
