"""The shapes of broken links between the copies of a group, and between a copy and the place of its record.

A shape breaks, may go on breaking while it lasts (`again`, called each `again_s`), and is over when every proxy passes
everything. Each is aimed at who leads when it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from evenq_proofs.group_faults.places import MEMBERS, RECORDS
from evenq_proofs.group_faults.proxy import Flow
from evenq_proofs.group_faults.stage import BROKERS, Stage

HELD: Final = Flow(held=True)
LATE: Final = Flow(late_ms=300, jitter_ms=50)
TORN: Final = Flow(bytes_max=200_000)


@dataclass(frozen=True, slots=True)
class Shape:
    """One way in which a network breaks."""

    name: str
    says: str
    breaks: Callable[[Stage, int], None]
    """Given the leader's id."""
    again: Callable[[Stage, int, int], None] | None = None
    """Given the leader's id at the begin and how often it was called before."""
    again_s: float = 1.0
    lasts_s: tuple[float, float] = (4.0, 9.0)
    """Shortest and longest time of one application."""
    records: tuple[str, ...] = RECORDS
    """Places of the record that it can be done to."""


def _hold(stage: Stage, pairs: list[tuple[int, int]]) -> None:
    """Nothing passes between two brokers, no matter which side dialled."""
    for one, other in pairs:
        for proxy in stage.between(one, other):
            proxy.there = proxy.back = HELD


def _silence(stage: Stage, speaker: int, hearer: int) -> None:
    """What one broker says does not reach the other, on connections of both."""
    stage.links[speaker, hearer].there = HELD
    stage.links[hearer, speaker].back = HELD


def _hold_place(stage: Stage, *brokers: int) -> None:
    for broker in brokers:
        for proxy in stage.place.proxies[broker]:
            proxy.hold()


def _others(broker: int) -> list[int]:
    return [other for other in BROKERS if other != broker]


def _leader_alone(stage: Stage, leader: int) -> None:
    _hold(stage, [(leader, other) for other in _others(leader)])
    _hold_place(stage, leader)


def _leader_from_followers(stage: Stage, leader: int) -> None:
    _hold(stage, [(leader, other) for other in _others(leader)])


def _leader_and_one(stage: Stage, leader: int) -> None:
    alone = _others(leader)[-1]
    _hold(stage, [(alone, other) for other in _others(alone)])
    _hold_place(stage, alone)


def _nothing_in(stage: Stage, leader: int) -> None:
    for other in _others(leader):
        _silence(stage, other, leader)


def _nothing_out(stage: Stage, leader: int) -> None:
    for other in _others(leader):
        _silence(stage, leader, other)


def _followers_apart(stage: Stage, leader: int) -> None:
    one, other = _others(leader)
    _hold(stage, [(one, other)])


def _late(stage: Stage, _: int) -> None:
    for proxy in stage.links.values():
        proxy.there = proxy.back = LATE


def _torn(stage: Stage, _: int) -> None:
    for proxy in stage.links.values():
        proxy.there = proxy.back = TORN


def _say_again(stage: Stage, *_: int) -> None:
    for proxy in stage.links.values():
        proxy.say_again()


def _half_open(stage: Stage, leader: int, turn: int = 0) -> None:
    """Now those that the leader dialled, now those that were dialled to it."""
    for other in _others(leader):
        (stage.links[leader, other] if turn % 2 else stage.links[other, leader]).half_open()


def _flap(stage: Stage, leader: int, turn: int = 0) -> None:
    if turn % 2:
        stage.mend()
    else:
        _leader_alone(stage, leader)


def _take_in_turn(how: str, count: int = 1) -> tuple[Callable[[Stage, int], None], Callable[[Stage, int, int], None]]:
    """Of the place's three members now these, now others; the ones before come back first."""

    def again(stage: Stage, _: int, turn: int) -> None:
        stage.place.mend()
        stage.place.take(sorted((turn + 1 + n) % MEMBERS for n in range(count)), how)

    return lambda stage, leader: again(stage, leader, -1), again


def _reset(stage: Stage, *_: int) -> None:
    for proxy in stage.links.values():
        proxy.reset()


SHAPES: Final = {
    shape.name: shape
    for shape in (
        Shape("leader-alone", "the leader is cut from its followers and from the record, not from clients", _leader_alone),
        Shape("leader-from-followers", "the leader is cut from its followers, not from clients or the record",
              _leader_from_followers),
        Shape("leader-and-one", "a follower is cut from both others and from the record", _leader_and_one),
        Shape("nothing-in", "nothing that the followers say reaches the leader", _nothing_in),
        Shape("nothing-out", "nothing that the leader says reaches its followers", _nothing_out),
        Shape("followers-apart", "the followers are cut from each other", _followers_apart),
        Shape("late", "everything between the copies is 250 to 350 ms late", _late),
        Shape("torn", "every connection breaks after up to 200 KB, mostly within a message", _torn),
        Shape("said-again", "what was said on a link comes once more on a second connection", _say_again, _say_again, 0.7),
        Shape("half-open", "connections are gone at one end only", _half_open, lambda s, b, n: _half_open(s, b, n + 1), 2.5),
        Shape("flapping", "the leader is cut off for a second and reached for a second",
              _flap, lambda s, b, n: _flap(s, b, n + 1)),
        Shape("resets", "all connections are reset each second", _reset, _reset),
        Shape("leader-from-record", "the leader is cut from the place of the record", _hold_place),
        Shape("follower-from-record", "a follower is cut from the place of the record",
              lambda s, b: _hold_place(s, _others(b)[0])),
        Shape("record-away", "nobody reaches the place of the record", lambda s, _: _hold_place(s, *BROKERS)),
        Shape("member-killed", "one of the record's three members is killed, now this, now that one",
              *_take_in_turn("killed"), again_s=2.5, records=("etcd",)),
        Shape("member-paused", "one of the record's members keeps its connections and says nothing",
              *_take_in_turn("paused"), again_s=3.5, records=("etcd",)),
        Shape("member-cut", "no broker reaches one of the record's members",
              *_take_in_turn("cut"), again_s=3.5, records=("etcd",)),
        Shape("most-members-paused", "two of the record's three members say nothing, so nobody can write",
              *_take_in_turn("paused", 2), again_s=6.0, records=("etcd",)),
    )
}  # fmt: skip
SHORT: Final = ("leader-alone", "nothing-out", "said-again")
"""What CI plays."""
