"""What became of the messages of a rolling upgrade: pure, from what was acknowledged and what came."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Acknowledged(NamedTuple):
    """A send that was answered with OK."""

    number: int
    """Of the message in its stream."""
    at_ms: int
    """Monotonic."""


class Arrival(NamedTuple):
    """A message that reached a group."""

    stream: str
    number: int
    place: str
    """Queue and offset: a repeat from two places was stored twice, one from the same place was delivered twice."""
    at_ms: int = 0
    """Monotonic."""


@dataclass(slots=True)
class Outcome:
    """The whole of it."""

    acknowledged: int = 0
    refused: int = 0
    """Sends that ended with an error, after all tries of the SDK."""
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What must not be, or nothing."""
        kinds = {"lost": self.lost, "repeated": self.repeated, "reordered": self.reordered}
        return [f"{len(texts)} {kind}: {'; '.join(texts[:5])}" for kind, texts in kinds.items() if texts]


def missing(group: str, sent: Mapping[str, Sequence[Acknowledged]], arrivals: Sequence[Arrival]) -> list[str]:
    """What was acknowledged and never came to the group."""
    came = {(one.stream, one.number) for one in arrivals}
    return [
        f"{group} never got {stream}:{number}"
        for stream, messages in sent.items()
        for number, _ in list(messages)
        if (stream, number) not in came
    ]


def repeated(group: str, arrivals: Sequence[Arrival]) -> list[str]:
    """What came more than once, with the places that it came from, and how long after the first time."""
    times: dict[tuple[str, int], list[Arrival]] = defaultdict(list)
    for one in arrivals:
        times[one.stream, one.number].append(one)
    return [
        f"{group} got {stream}:{number} at {', '.join(f'{one.place} ({one.at_ms - same[0].at_ms} ms)' for one in same)}"
        for (stream, number), same in times.items()
        if len(same) > 1
    ]


def reordered(group: str, arrivals: Sequence[Arrival]) -> list[str]:
    """Messages of one stream that came first behind a later one."""
    last: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    wrong = []
    for stream, number, *_ in arrivals:
        if (stream, number) not in seen and number < last.get(stream, 0):
            wrong.append(f"{group} got {stream}:{number} after {last[stream]}")
        seen.add((stream, number))
        last[stream] = max(number, last.get(stream, 0))
    return wrong


def longest_gap_ms(times_ms: Sequence[int], begin_ms: int, end_ms: int) -> int:
    """The longest time between two of these that reaches into the given time, ends included; one that has no end yet
    counts up to `end_ms`.
    """
    gaps = [after - before for before, after in pairwise(times_ms) if after >= begin_ms and before <= end_ms]
    if times_ms and times_ms[-1] < end_ms:
        gaps.append(end_ms - times_ms[-1])
    return max(gaps, default=0)
