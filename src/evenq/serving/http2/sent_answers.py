"""Answers that were sent whole and whose handlers must be notified if the client did not take them.

A stalled client reads nothing. When it continues, its calls have expired, and it drops the unread answers of its
socket. For HTTP/2 their streams have ended, but the handler may have handed out messages. There are two signs. Most
clients reset the stream. One that read its end does not (Node.js's gRPC may reset without an error, which means
nothing). Go's may drop a late answer silently, so a PING follows the answers, at most twice a second: if it is answered
only after a call's deadline, the answer was read too late.
Made by `StreamSender.tell_if_untaken` for a connection's first such answer. Always true: a handler is notified at most
once; at most `CONNECTION_MAX` answers of one connection are kept, about `ALL_MAX` in total. No answer is kept longer
than `keep_ms` and one check, after it was read in time, or after its connection ended.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.wire.http2.codes import ErrorCode

CONNECTION_MAX = 256  # a stalled client has one answer for each waiting poll: for each queue of its connection
ALL_MAX = 16_384  # above this each connection keeps its share of it, at least its newest answer
PROBE = b"evenq-rd"  # data of the PING after answers
LATE_MS = 1_000
"""A PING answered sooner shows that the peer reads, whatever its deadlines. A slow round trip is not a stalled client.
"""
SETTLE_MS = 1_000
"""Delay from then to the notification: a client whose timer was slower than its socket (Java's may be) did take the
answer, and acknowledges it soon.
"""
STALL_MS = 1_500
"""A longer time between two checks means that this server was stalled; the PING's time then starts again."""


class _Answer(NamedTuple):
    since_ms: int
    deadline_ms: int | None
    untaken: Callable[[], None]


class SentAnswers:
    """Answers of one connection."""

    __slots__ = ("_answers", "_keep_ms", "_late", "_late_ms", "_looked_ms", "_pinged_ms", "_probed", "_totals")

    def __init__(self, limits: Http2Limits, totals: Totals, now_ms: int) -> None:
        # A stalled client answers no PING: after these two its connection ends, and no reset can arrive.
        self._keep_ms = 2 * (limits.keepalive_ms + limits.keepalive_timeout_ms)
        self._totals = totals
        self._answers: dict[int, _Answer] = {}  # by stream, the oldest first
        self._probed: list[int] = []  # streams that had ended when the PING left
        self._pinged_ms: int | None = None  # since when a PING is on its way
        self._looked_ms = now_ms
        self._late: list[Callable[[], None]] = []  # notifications for answers that were read too late
        self._late_ms = 0  # when the last of them was found

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def keep_ms(self) -> int:
        """Time for which an answer is kept: 160 s by default."""
        return self._keep_ms

    def add(self, stream_id: int, untaken: Callable[[], None], now_ms: int, deadline_ms: int | None) -> None:
        """Adds an answer that leaves; `untaken` is called if it is not taken."""
        answers, totals = self._answers, self._totals
        share = max(1, ALL_MAX // max(1, totals.connections))
        most = CONNECTION_MAX if totals.sent_answers < ALL_MAX else min(CONNECTION_MAX, share)
        while len(answers) >= most:
            self._drop(next(iter(answers)))
        answers[stream_id] = _Answer(now_ms, deadline_ms, untaken)
        totals.sent_answers += 1

    def reset(self, stream_id: int, code: ErrorCode) -> Callable[[], None] | None:
        """Processes a reset of any stream; returns the function to call, if it is one of these."""
        if stream_id not in self._answers or code is ErrorCode.NO_ERROR:
            return None
        self._totals.untaken += 1
        return self._drop(stream_id).untaken

    def look(self, now_ms: int, open_streams: Container[int]) -> bool:
        """Sends due notifications and drops old answers; called twice a second. True: a PING must leave now."""
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
        # A PING is not subject to a window, so it proves nothing for answers that still wait for one.
        self._probed = [stream_id for stream_id in answers if stream_id not in open_streams]
        if self._probed:
            self._pinged_ms = now_ms
        return bool(self._probed)

    def read(self, now_ms: int) -> None:
        """Processes the answer to the PING: all before it was read. Late answers are reported after `SETTLE_MS`."""
        self._look_at_itself(now_ms)
        pinged_ms, self._pinged_ms = self._pinged_ms, None
        if pinged_ms is not None and now_ms - pinged_ms >= LATE_MS:
            # Answers sent after the PING were not read either.
            for stream_id, answer in list(self._answers.items()):
                if answer.deadline_ms is not None and answer.deadline_ms <= now_ms:
                    self._late.append(self._drop(stream_id).untaken)
                    self._late_ms = now_ms
        for stream_id in self._probed:
            if stream_id in self._answers:
                self._drop(stream_id)
        self._probed = []

    def clear(self) -> None:
        """Drops everything when the connection ends. Idempotent."""
        self._totals.sent_answers -= len(self._answers)
        self._answers.clear()
        self._probed = []
        self._late = []

    def _look_at_itself(self, now_ms: int) -> None:
        if now_ms - self._looked_ms > STALL_MS and self._pinged_ms is not None:
            self._pinged_ms = now_ms  # a PING answer that arrived in time is about to be read
        self._looked_ms = now_ms

    def _drop(self, stream_id: int) -> _Answer:
        self._totals.sent_answers -= 1
        return self._answers.pop(stream_id)
