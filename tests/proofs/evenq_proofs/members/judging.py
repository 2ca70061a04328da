"""Outcome of a run with members that come and go: pure, from the lines of the peers.

A stream is what one sender sends, each message with its number; in an ordered group it is a message group. All times are
microseconds of the machine's clock, which all peers share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Delivery(NamedTuple):
    """A listener of a group began to work on a message."""

    at_us: int
    member: str
    body: str
    """`STREAM:NUMBER`."""


class End(NamedTuple):
    """A member was killed, or had closed its consumer of the group."""

    at_us: int
    member: str


class Hidden(NamedTuple):
    """A message that waited for another member."""

    body: str
    ms: int
    """From the member's end to the delivery."""


@dataclass(frozen=True, slots=True)
class HiddenTimes:
    """Messages that waited at one member's end."""

    held: Sequence[Hidden]
    """Its listener had begun, and another member got them later: by this the run is judged."""
    waiting: Sequence[Hidden]
    """Stored before the end, first delivered after it: the member's unread cache is among them, and so is whatever
    waited for a broker or behind another message.
    """


def lost(sent: Mapping[str, int], deliveries: Iterable[Delivery]) -> list[str]:
    """Messages that were acknowledged, by their bodies and times, and that never came."""
    came = {one.body for one in deliveries}
    return [body for body in sent if body not in came]


def late(deliveries: Iterable[Delivery]) -> list[str]:
    """Messages that came for the first time after a later one of their stream."""
    newest: dict[str, int] = {}
    seen: set[str] = set()
    wrong = []
    for one in sorted(deliveries):
        stream, _, text = one.body.rpartition(":")
        number, before = int(text), newest.get(stream, -1)
        if one.body not in seen and number < before:
            wrong.append(f"{one.body} after {before}")
        seen.add(one.body)
        newest[stream] = max(number, before)
    return wrong


def repeats(deliveries: Sequence[Delivery]) -> int:
    """Deliveries beyond the first of each message."""
    return len(deliveries) - len({one.body for one in deliveries})


def hidden_times(end: End, sent: Mapping[str, int], deliveries: Iterable[Delivery]) -> HiddenTimes:
    """Times from the end of a member to the delivery of what waited then. What a member had and nobody got later was
    finished.
    """
    of_body: dict[str, list[Delivery]] = defaultdict(list)
    for one in sorted(deliveries):
        of_body[one.body].append(one)
    held, waiting = [], []
    for body, all_of_it in of_body.items():
        before = [one for one in all_of_it if one.at_us <= end.at_us]
        after = [one for one in all_of_it if one.at_us > end.at_us]
        if not after:
            continue
        wait = Hidden(body, (after[0].at_us - end.at_us) // 1_000)
        if before and before[-1].member == end.member:
            held.append(wait)
        elif not before and sent.get(body, end.at_us) < end.at_us:
            waiting.append(wait)
    return HiddenTimes(held, waiting)
