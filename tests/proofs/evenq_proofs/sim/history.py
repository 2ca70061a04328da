"""What happened in a world, in order: the checkers' evidence, and the story that a person reads after a failure.

One event is one line of text, so that two histories are equal exactly when their bytes are. Times are the world's own,
ms since its start, reported with microseconds because much happens within one millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an event is about."""

    FAULT = "fault"
    """Something was done to the world."""
    GRANT = "grant"
    """A broker answered a member that a queue is its own; offset: the committed one."""
    UNLOCK = "unlock"
    """A member let go of a queue."""
    PULL = "pull"
    """A broker handed messages of a queue to a member; offset: of the first."""
    COMMIT = "commit"
    """A broker took a member's progress; offset: the next to be read."""
    REFUSED = "refused"
    """A broker refused a call."""
    START = "start"
    """A listener was given a message."""
    DONE = "done"
    """A listener finished a message."""
    DECIDED = "decided"
    """A rebalancer reported a generation."""
    HELD = "held"
    """Sampled: who holds a queue, under which generation."""
    STORED = "stored"
    """A broker acknowledged a message."""
    FINAL = "final"
    """At the end: a queue's reader, or what is wrong."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    at_us: int
    """World time, microseconds."""
    kind: Kind
    who: str
    """Client id or process."""
    queue: str = ""
    """`topic@broker:id`, as `str(MessageQueue)` writes it."""
    offset: int = -1
    text: str = ""

    def __str__(self) -> str:
        place = f" {self.queue}" if self.queue else ""
        offset = f" at {self.offset}" if self.offset >= 0 else ""
        text = f"  {self.text}" if self.text else ""
        return f"{self.at_us / 1000:11.3f} ms  {self.kind:<8} {self.who}{place}{offset}{text}"


class History:
    """Events in order. Bounded by the world's length."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False

    def add(self, at_us: int, kind: Kind, who: str, queue: str = "", offset: int = -1, text: str = "") -> None:
        """One event more; nothing after the end."""
        if not self.closed:
            self.events.append(Event(at_us, kind, who, queue, offset, text))

    def text(self) -> str:
        """All of it."""
        return "".join(f"{event}\n" for event in self.events)

    def story(self, queues: Iterable[str], *, before_us: int, last: int = 60) -> str:
        """The part that a person wants: all faults, and the last events of these queues up to a moment."""
        wanted = set(queues)
        reported = [event for event in self.events if event.at_us <= before_us]
        near = [
            event for event in reported if event.queue in wanted or (not event.queue and event.kind is not Kind.FAULT)
        ]
        kept = {id(event) for event in near[-last:]}
        return "\n".join(str(event) for event in reported if event.kind is Kind.FAULT or id(event) in kept)
