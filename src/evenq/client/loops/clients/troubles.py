"""Failures of a client's background work: logged once, counted, and logged again when they have ended.

Loops that repeat calls for ever report each failed call here. A permanent error (`Error.retryable` is False: a missing
topic, a missing grant) is reported to the user once: by `report` (`on_error`, or the next `poll`), or in the log. A
missing topic is normal while an application starts: one line at INFO, and a warning if it lasts. The other errors are
an outage of a broker: one line at its begin, one with the number of failed calls at its end. Texts contain client,
broker, topic and cause, because most programs print only the message of a log record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from evenq.errors import Error, Forbidden, PreconditionFailed, TopicNotFound, Unauthorized
from evenq.runtime.clock import Clock

log = logging.getLogger(__name__)

Report = Callable[[Error], None]
"""Takes a permanent error, in the loop; must not block or raise."""

DENIED = (Forbidden, Unauthorized)
"""Permanent errors that end while a client runs: an operator returns the grant or the key. Work that would be done
twice, such as that of a message without its acknowledgement, is worth waiting for that.
"""
SUBJECTS_MAX = 10_000
QUIET_MS = 30_000
"""For this time after the begin of an outage was logged, further outages of the same subject are only counted."""
MISSING_MS = 60_000
"""A topic that is missing for longer may be misspelt, and causes a warning."""
LEFT_MS = 2_000
"""A topic that is missing at one broker may have been withdrawn; the route changes within this time."""


def is_permanent(error: Error) -> bool:
    """True if a retry cannot help until an operator acts. A failed precondition is part of a hand-over, and passes."""
    return not error.retryable and not isinstance(error, PreconditionFailed)


class _Trouble:
    __slots__ = ("calls", "kinds", "said", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.calls = 0
        self.kinds: dict[type[Error], str] = {}
        """Permanent errors that were reported, with their texts."""
        self.said = 0
        """Level of the logged line; 0: none was logged."""


class Troubles:
    def __init__(self, clock: Clock, *, who: str, report: Report | None = None) -> None:
        """`who` starts each line, such as `group billing`."""
        self._clock = clock
        self._who = who
        self._report = report
        self._troubles: dict[str, _Trouble] = {}
        self._begins_ms: dict[str, int] = {}

    def failed(self, subject: str, error: Error, *, patience_ms: int = 0) -> None:
        """Notes a failed call about `subject`, such as `topic a`. A permanent error is reported after `patience_ms`."""
        trouble = self._counted(subject)
        if trouble is None:
            return
        if not is_permanent(error):
            self._outage(subject, trouble, error, logging.WARNING)
        elif self._clock.monotonic_ms() - trouble.since_ms >= patience_ms:
            self._permanent(subject, trouble, error)

    def noted(self, subject: str, error: Error) -> None:
        """As `failed`, for a failure that stops nothing, such as that of a refresh: all its lines are at INFO."""
        trouble = self._counted(subject)
        if trouble is not None:
            self._outage(subject, trouble, error, logging.INFO)

    def failed_at(self, topic: str, broker: str, error: Error) -> None:
        """Notes a failed call about a topic's queues at a broker: an outage of the broker, or a permanent error of the
        topic.

        A topic that is missing there is reported only if that lasts for 2 s.
        """
        if not is_permanent(error):
            self.failed(f"broker {broker}", error)
            return
        patience_ms = LEFT_MS if isinstance(error, TopicNotFound) else 0
        self.failed(f"topic {topic} at broker {broker}", error, patience_ms=patience_ms)

    def well(self, subject: str) -> None:
        """Notes a successful call about `subject`."""
        if not self._troubles:
            return
        trouble = self._troubles.pop(subject, None)
        if trouble is not None and trouble.said:
            seconds = (self._clock.monotonic_ms() - trouble.since_ms) / 1000
            level = min(trouble.said, logging.WARNING)
            log.log(level, "%s: %s works after %.1f s, %d calls failed", self._who, subject, seconds, trouble.calls)

    def well_at(self, topic: str, broker: str) -> None:
        """Notes a successful call about a topic's queues at a broker."""
        if self._troubles:
            self.well(f"topic {topic} at broker {broker}")
            self.well(f"broker {broker}")

    def _counted(self, subject: str) -> _Trouble | None:
        trouble = self._troubles.get(subject)
        if trouble is None:
            if len(self._troubles) >= SUBJECTS_MAX:
                return None
            trouble = self._troubles[subject] = _Trouble(self._clock.monotonic_ms())
        trouble.calls += 1
        return trouble

    def _outage(self, subject: str, trouble: _Trouble, error: Error, level: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if trouble.said or now_ms - self._begins_ms.get(subject, now_ms - QUIET_MS) < QUIET_MS:
            return
        trouble.said = level
        if len(self._begins_ms) >= SUBJECTS_MAX:
            self._begins_ms.clear()
        self._begins_ms[subject] = now_ms
        log.log(level, "%s: %s fails, trying again until it works: %s", self._who, subject, error)

    def _permanent(self, subject: str, trouble: _Trouble, error: Error) -> None:
        if type(error) in trouble.kinds:
            missing_ms = self._clock.monotonic_ms() - trouble.since_ms
            if trouble.said == logging.INFO and missing_ms >= MISSING_MS:
                trouble.said = logging.WARNING
                log.warning("%s: %s is still missing after %d s: %s", self._who, subject, missing_ms // 1_000, error)
            return
        text = str(error)
        known = any(text in other.kinds.values() for other in self._troubles.values())
        trouble.kinds[type(error)] = text
        if known:  # the same text was reported for another subject
            return
        if self._report is not None:
            self._report(error)
            return
        if isinstance(error, TopicNotFound) and not trouble.said:
            trouble.said = logging.INFO
            log.info("%s: waits for %s: %s", self._who, subject, error)
            return
        trouble.said = logging.ERROR
        log.error("%s: %s is refused, trying again until it is allowed: %s", self._who, subject, error)
