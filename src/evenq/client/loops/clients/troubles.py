"""What goes wrong while a client works on its own: said once, counted, and said again when it is over.

Loops that try for ever report each failed call here. An error that no retry can help (`Error.retryable` is False: a
missing topic, a missing grant) goes to the user once: to `report` (`on_error`, or the next `poll`), or to the log as
an error. A topic that is not there yet is normal while an application starts: one line at INFO, and a warning if it
lasts. The others are an outage of a broker: one line at its begin, one with the number of failed calls at its end.
Texts name client, broker, topic and cause, because most programs print nothing else of a log record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from evenq.errors import Error, PreconditionFailed, TopicNotFound
from evenq.runtime.clock import Clock

__all__ = ["Report", "Troubles", "is_permanent"]

log = logging.getLogger(__name__)

Report = Callable[[Error], None]
"""Takes a permanent error, in the loop; returns at once and raises nothing."""

SUBJECTS_MAX = 10_000
QUIET_MS = 30_000
"""After the begin of an outage was said, further ones of the same subject are only counted for this time."""
MISSING_MS = 60_000
"""A topic that is missing for longer is perhaps misspelt: then it is worth a warning."""
LEFT_MS = 2_000
"""A topic that one broker does not know may just have left it: the route says so within moments, and its queues go."""


def is_permanent(error: Error) -> bool:
    """True if a retry cannot help until an operator changes something. A failed precondition belongs to a hand-over
    and settles itself.
    """
    return not error.retryable and not isinstance(error, PreconditionFailed)


class _Trouble:
    __slots__ = ("calls", "kinds", "said", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.calls = 0
        self.kinds: dict[type[Error], str] = {}
        """Permanent errors that were reported, with their texts."""
        self.said = 0
        """Level of the line that was logged, for that of its end; 0: none was."""


class Troubles:
    """The troubles of one client, in one event loop."""

    def __init__(self, clock: Clock, *, who: str, report: Report | None = None) -> None:
        """`who` begins each line, as `group billing`."""
        self._clock = clock
        self._who = who
        self._report = report
        self._troubles: dict[str, _Trouble] = {}
        self._begins_ms: dict[str, int] = {}

    def failed(self, subject: str, error: Error, *, patience_ms: int = 0) -> None:
        """A call about `subject` (as `topic orders`, `broker broker-a`) failed and will be made again. A permanent
        error counts as one when it has lasted for `patience_ms`.
        """
        trouble = self._troubles.get(subject)
        now_ms = self._clock.monotonic_ms()
        if trouble is None:
            if len(self._troubles) >= SUBJECTS_MAX:
                return
            trouble = self._troubles[subject] = _Trouble(now_ms)
        trouble.calls += 1
        if is_permanent(error):
            if now_ms - trouble.since_ms >= patience_ms:
                self._permanent(subject, trouble, error)
        elif not trouble.said and now_ms - self._begins_ms.get(subject, -QUIET_MS) >= QUIET_MS:
            trouble.said = logging.WARNING
            if len(self._begins_ms) >= SUBJECTS_MAX:
                self._begins_ms.clear()
            self._begins_ms[subject] = now_ms
            log.warning("%s: %s fails, trying again until it works: %s", self._who, subject, error)

    def failed_at(self, topic: str, broker: str, error: Error) -> None:
        """A call about a topic's queues at a broker failed: the broker's outage, or a refusal of this topic there.

        A topic that is missing there is a trouble only if it is so for 2 s.
        """
        if not is_permanent(error):
            self.failed(f"broker {broker}", error)
            return
        patience_ms = LEFT_MS if isinstance(error, TopicNotFound) else 0
        self.failed(f"topic {topic} at broker {broker}", error, patience_ms=patience_ms)

    def well(self, subject: str) -> None:
        """A call about `subject` succeeded."""
        if not self._troubles:
            return
        trouble = self._troubles.pop(subject, None)
        if trouble is not None and trouble.said:
            seconds = (self._clock.monotonic_ms() - trouble.since_ms) / 1000
            level = min(trouble.said, logging.WARNING)
            log.log(level, "%s: %s works after %.1f s, %d calls failed", self._who, subject, seconds, trouble.calls)

    def well_at(self, topic: str, broker: str) -> None:
        """Queues of the topic are read from the broker."""
        if self._troubles:
            self.well(f"topic {topic} at broker {broker}")
            self.well(f"broker {broker}")

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
        if known:  # another broker or topic said the very same
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
