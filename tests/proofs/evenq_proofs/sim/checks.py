"""What must be true of every history; pure functions from events to problems.

- one progressing owner: a broker takes progress of a queue, or hands its messages out, only for the member that it
  granted the queue to last (RB-37, OC-18);
- nothing is skipped: an offset is committed only when listeners have finished all before it, and in the end every
  stored message was finished;
- progress and generations only grow;
- where every change was graceful, no message is given to a listener twice;
- after the faults stopped, each queue has exactly one reader again and is read to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from evenq_proofs.sim.history import Event, Kind


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken promise."""

    check: str
    """Which one, in two words."""
    at_us: int
    queue: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text} ({self.queue or 'no queue'}, {self.at_us / 1000:.3f} ms)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the world looked at its end, after the bound for recovery."""

    at_us: int
    graceful: bool
    """True: nothing was killed, cut, paused or lost."""
    queues: Mapping[str, int]
    """Each readable queue, and how many messages it has."""
    readers: Mapping[str, tuple[str, ...]]
    """Each queue's readers, as the living members say."""


def judge(events: Iterable[Event], ending: Ending) -> list[Problem]:
    """All problems, in order of time."""
    result = list(events)
    problems = [*_owners(result), *_skips(result, ending), *_growth(result), *_recovery(ending)]
    if ending.graceful:
        problems += _repeats(result)
    return sorted(problems, key=lambda problem: problem.at_us)


def _owners(events: list[Event]) -> list[Problem]:
    problems: list[Problem] = []
    owner: dict[str, str] = {}
    for event in events:
        match event.kind:
            case Kind.GRANT:
                owner[event.queue] = event.who
            case Kind.PULL | Kind.COMMIT:
                last = owner.get(event.queue)
                if last is not None and last != event.who:
                    text = f"{event.who} made progress ({event.kind}) although {last} was granted the queue after it"
                    problems.append(Problem("two owners", event.at_us, event.queue, text))
            case _:
                pass
    return problems


def _skips(events: list[Event], ending: Ending) -> list[Problem]:
    problems: list[Problem] = []
    finished: dict[str, set[int]] = {}
    low: dict[str, int] = {}
    for event in events:
        if event.kind is Kind.DONE:
            finished.setdefault(event.queue, set()).add(event.offset)
        elif event.kind is Kind.COMMIT:
            done, reached = finished.get(event.queue, set()), low.get(event.queue, 0)
            while reached in done:
                reached += 1
            low[event.queue] = reached
            if event.offset > reached:
                text = f"{event.who} committed {event.offset}, and nobody has finished {reached}"
                problems.append(Problem("skipped", event.at_us, event.queue, text))
    for queue, count in ending.queues.items():
        missing = sorted(set(range(count)) - finished.get(queue, set()))
        if missing:
            text = f"{len(missing)} of {count} messages were never finished, the first is {missing[0]}"
            problems.append(Problem("not read", ending.at_us, queue, text))
    for event in events:
        if event.kind is Kind.STORED and event.offset >= ending.queues.get(event.queue, 0):
            text = f"{event.offset} was acknowledged and is not there"
            problems.append(Problem("lost", ending.at_us, event.queue, text))
    return problems


def _growth(events: list[Event]) -> list[Problem]:
    return [
        *_growing(events, Kind.COMMIT, "progress", lambda event: (event.offset, 0)),
        *_growing(events, Kind.DECIDED, "generation", lambda event: _generation(event.text)),
        *_growing(events, Kind.HELD, "held generation", lambda event: _generation(event.text)),
    ]


def _growing(events: list[Event], kind: Kind, name: str, value_of: Callable[[Event], tuple[int, int]]) -> list[Problem]:
    problems: list[Problem] = []
    most: dict[str, tuple[tuple[int, int], Event]] = {}
    for event in events:
        if event.kind is not kind:
            continue
        value = value_of(event)
        known = most.get(event.queue)
        if known is not None and value < known[0]:
            text = f"{event.who} told {value} after {known[1].who} had told {known[0]}"
            problems.append(Problem(f"{name} went back", event.at_us, event.queue, text))
        else:
            most[event.queue] = (value, event)
    return problems


def _generation(text: str) -> tuple[int, int]:
    epoch, _, counter = text.partition(".")
    return int(epoch), int(counter)


def _repeats(events: list[Event]) -> list[Problem]:
    problems: list[Problem] = []
    first: dict[tuple[str, int], Event] = {}
    for event in events:
        if event.kind is not Kind.START:
            continue
        before = first.setdefault((event.queue, event.offset), event)
        if before is not event:
            text = f"{event.offset} was given to {event.who}, and to {before.who} at {before.at_us / 1000:.3f} ms"
            problems.append(Problem("repeated", event.at_us, event.queue, text))
    return problems


def _recovery(ending: Ending) -> list[Problem]:
    problems: list[Problem] = []
    for queue in ending.queues:
        readers = ending.readers.get(queue, ())
        if len(readers) != 1:
            text = f"read by {', '.join(readers)}" if readers else "nobody reads it"
            problems.append(Problem("not owned", ending.at_us, queue, f"after the bound for recovery: {text}"))
    return problems
