"""Answers that were sent whole, and of which their handlers want to know whether they were taken.

A client that stands still reads nothing. When it goes on, its calls are over for it: it drops the answers that lie
unread in its socket. For HTTP/2 their streams have ended; a handler that gave something away wants to know. Two things
tell it. Most clients reset the stream; one that has read its end does not (Node.js's gRPC may, without an error: that
says nothing). Go's may read to the end and drop the answer silently, so a PING follows the answers, twice a second at
most: if it is answered only after the deadline of a call, its answer was read after that, too.
Made by `StreamSender.tell_if_untaken` for a connection's first such answer. Always true: a handler is told once, or
never; at most `CONNECTION_MAX` answers of one connection are known, about `ALL_MAX` of all, none for longer than
`keep_ms` and a look at the connection, none that was seen to be read in time, and none of a connection that ended.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.wire.http2.codes import ErrorCode

__all__ = ["ALL_MAX", "CONNECTION_MAX", "PROBE", "SentAnswers"]

CONNECTION_MAX = 256
"""A client that stands still has one answer for each poll that waited: for each queue of its connection."""
ALL_MAX = 16_384
"""At this a connection has its share, and one at least: the newest."""
PROBE = b"evenq-rd"
"""Data of the PING behind answers."""
LATE_MS = 1_000
"""A PING that is answered sooner says that the peer reads, whatever its deadlines; so long a way is no standing still.
"""
SETTLE_MS = 1_000
"""From then until its handler is told: a client whose timer was slower than its socket has taken the answer (Java's
may), and says so soon.
"""
STALL_MS = 1_500
"""Between two looks at a connection: more, and it is this server that stood still. The PING counts from then on."""


class _Answer(NamedTuple):
    since_ms: int
    deadline_ms: int | None
    untaken: Callable[[], None]


class SentAnswers:
    """Of one connection."""

    __slots__ = ("_answers", "_keep_ms", "_late", "_late_ms", "_looked_ms", "_pinged_ms", "_probed", "_totals")

    def __init__(self, limits: Http2Limits, totals: Totals, now_ms: int) -> None:
        # A client that stands still answers no PING: after these two its connection ends, and no reset can come.
        self._keep_ms = 2 * (limits.keepalive_ms + limits.keepalive_timeout_ms)
        self._totals = totals
        self._answers: dict[int, _Answer] = {}
        """By stream, the oldest first."""
        self._probed: list[int] = []
        """Streams that had ended when the PING left."""
        self._pinged_ms: int | None = None
        """Since when a PING is on its way."""
        self._looked_ms = now_ms
        self._late: list[Callable[[], None]] = []
        """To be told that an answer was read too late."""
        self._late_ms = 0
        """When the last one of them was seen."""

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def keep_ms(self) -> int:
        """How long an answer is known: 160 s, unless the limits say otherwise."""
        return self._keep_ms

    def add(self, stream_id: int, untaken: Callable[[], None], now_ms: int, deadline_ms: int | None) -> None:
        """An answer leaves, before the caller's deadline; `untaken` is what to call if it is not taken."""
        answers, totals = self._answers, self._totals
        share = max(1, ALL_MAX // max(1, totals.connections))
        most = CONNECTION_MAX if totals.sent_answers < ALL_MAX else min(CONNECTION_MAX, share)
        while len(answers) >= most:
            self._drop(next(iter(answers)))
        answers[stream_id] = _Answer(now_ms, deadline_ms, untaken)
        totals.sent_answers += 1

    def reset(self, stream_id: int, code: ErrorCode) -> Callable[[], None] | None:
        """A stream is reset, whichever it is; what is to be called, if it is one of these."""
        if stream_id not in self._answers or code is ErrorCode.NO_ERROR:
            return None
        self._totals.untaken += 1
        return self._drop(stream_id).untaken

    def look(self, now_ms: int, open_streams: Container[int]) -> bool:
        """Called twice a second. Tell of what was read too late, forget what is known for too long; True: a PING is to
        leave now.
        """
        self._look_at_itself(now_ms)
        if self._late and now_ms - self._late_ms >= SETTLE_MS:
            late, self._late = self._late, []
            self._totals.untaken += len(late)
            for untaken in late:
                untaken()
        answers = self._answers
        while answers and now_ms - next(iter(answers.values())).since_ms >= self._keep_ms:
            self._drop(next(iter(answers)))
        if self._pinged_ms is not None or not answers:
            return False
        # A PING is subject to no window: it says nothing of answers that still wait for one.
        self._probed = [stream_id for stream_id in answers if stream_id not in open_streams]
        if self._probed:
            self._pinged_ms = now_ms
        return bool(self._probed)

    def read(self, now_ms: int) -> None:
        """The PING was answered: all before it is read. Those of what was read too late are told a little later."""
        self._look_at_itself(now_ms)
        pinged_ms, self._pinged_ms = self._pinged_ms, None
        if pinged_ms is not None and now_ms - pinged_ms >= LATE_MS:
            # Nor was anything read that was sent behind the PING.
            for stream_id, answer in list(self._answers.items()):
                if answer.deadline_ms is not None and answer.deadline_ms <= now_ms:
                    self._late.append(self._drop(stream_id).untaken)
                    self._late_ms = now_ms
        for stream_id in self._probed:
            if stream_id in self._answers:
                self._drop(stream_id)
        self._probed = []

    def clear(self) -> None:
        """The connection is over. Idempotent."""
        self._totals.sent_answers -= len(self._answers)
        self._answers.clear()
        self._probed = []
        self._late = []

    def _look_at_itself(self, now_ms: int) -> None:
        if now_ms - self._looked_ms > STALL_MS and self._pinged_ms is not None:
            self._pinged_ms = now_ms  # an answer that came in time is read in a moment
        self._looked_ms = now_ms

    def _drop(self, stream_id: int) -> _Answer:
        self._totals.sent_answers -= 1
        return self._answers.pop(stream_id)
