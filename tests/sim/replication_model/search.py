"""Exhaustive search of a small scope: every order of every move, each state once.

Messages and writes happen at once here (what is late is a node that is cut off, and syncs are moves of their own), so
that the scope is about orders of syncs, elections, in-sync changes, wipes and crashes. A state's key leaves out what
only counts up or tells time. The walks play what is left out: late, lost and repeated messages, a writer with a queue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations
from operator import attrgetter

from evenq_broker.core.replication.config import Mode, ReplicationConfig, Timing
from evenq_broker.core.replication.replica import PARTS, Replica
from evenq_broker.core.replication.rules import LEADING, Role
from evenq_proofs.commit_waits import CommitWaits

from replication_model.world import BROKERS, Node, Rules, Violation, World

STILL = Timing(retry_ms=1, renew_ms=1 << 40, suspect_ms=1 << 41, lag_ms=1 << 40, backoff_ms=1, drain_ms=1 << 40)
LEFT_OUT = {"config", "pair", "session", "mode", "seen", "cas", "number", "read_ms", "changed_ms", "again_ms", "table", "request", "writing", "queued", "gap_at", "reported", "rank", "has_room", "sign_ms", "leader_ms", "lost_ms", "acks", "heard", "caught_up", "roomy", "windows", "asked", "calm_ms", "drain_since_ms", "drain_ms", "successor", "nominated"}  # fmt: skip
ANY = Replica(ReplicationConfig(cluster="", broker_id=0, members=()), store_id="", epoch_seen=0, session=0)
FIELDS = {part: tuple(field.name for field in fields(getattr(ANY, part))) for part in PARTS}
kept = attrgetter(*(f"{part}.{name}" for part in PARTS for name in FIELDS[part] if name not in {*PARTS, *LEFT_OUT}))


@dataclass(frozen=True, slots=True)
class Scope:
    """How much may happen in all."""

    epochs: int = 2
    records: int = 1
    calls: int = 4
    wipes: int = 1
    kills: int = 0
    powers: int = 0
    cuts: int = 1


SCOPES = {
    "one power loss": (Mode.REPL_SYNC, Scope(calls=2, cuts=0, wipes=0, powers=1)),
    "one wipe": (Mode.REPL_SYNC, Scope(calls=2, cuts=0, wipes=1)),
    "page cache": (Mode.REPL_MEMORY, Scope(calls=2, cuts=0, wipes=0, powers=1)),
}
"""What `make replication-model-search` plays: two epochs, one record of a client, two compare-and-sets each."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen."""

    states: int
    moves: int
    complete: bool
    problem: str
    path: tuple[str, ...]


class State:
    """A world and what may still happen in it."""

    __slots__ = ("left", "path", "world")

    def __init__(self, world: World, left: Scope, path: tuple[object, ...]) -> None:
        self.world = world
        self.left = left
        self.path = path

    def copy(self) -> State:
        return State(world_copy(self.world), self.left, self.path)


def world_copy(world: World) -> World:
    new = copy.copy(world)
    new.nodes = [node_copy(node) for node in world.nodes]
    new.history = world.history[-1:]
    new.calls = world.calls.copy()
    new.cut = set(world.cut)
    new.committed = world.committed.copy()
    new.committed_in = world.committed_in.copy()
    new.committers = world.committers.copy()
    new.bytes_at = world.bytes_at.copy()
    return new


def node_copy(node: Node) -> Node:
    new = copy.copy(node)
    new.log = node.log.copy()
    new.queue = []
    new.waits = CommitWaits()
    if node.replica is not None:
        new.replica = replica_copy(node.replica)
    return new


def replica_copy(replica: Replica) -> Replica:
    """Copies each part once, so that the copies refer to each other."""
    new = copy.copy(replica)
    for part, names in FIELDS.items():
        old = getattr(replica, part)
        made = object.__new__(type(old))
        for name in names:
            setattr(made, name, getattr(new if name in FIELDS else old, name))
        setattr(new, part, made)
    return new


def key_of(state: State) -> int:
    world = state.world
    record = world.record
    return hash(
        (
            tuple(_node_key(node) for node in world.nodes),
            record,
            tuple((id_, session, call.proposed) for id_, session, call in world.calls),
            frozenset(world.cut),
            tuple(world.committed),
            state.left,
        )
    )


def _node_key(node: Node) -> tuple[object, ...]:
    replica = node.replica
    mine = (node.store_id, node.synced, node.epoch_seen, tuple(node.log))
    if replica is None:
        return mine
    cas = replica.group.cas
    return (
        *mine,
        kept(replica),
        replica.record,
        None if cas is None else cas.proposed,
        frozenset(replica.copies.acks.items()),
        frozenset((id_, envelope.epoch) for id_, envelope in replica.leader.asked.items()),
        tuple((id_, window.start) for id_, window in sorted(replica.leader.windows.items())),
    )


class Search:
    """Depth first, each key once."""

    def __init__(self, rules: Rules, scope: Scope, *, mode: Mode = Mode.REPL_SYNC) -> None:
        world = World(rules, mode=mode, timing=STILL, in_order=True)
        self.known: set[int] = set()
        self.moves = 0
        self.stack = [State(world, scope, ())]

    def run(self, states_max: int, progress: Callable[[int, int], None] | None = None) -> Result:
        """Until everything was seen, something is wrong, or `states_max` states were."""
        turns = 0
        while self.stack and len(self.known) < states_max:
            state = self.stack.pop()
            turns += 1
            if progress is not None and turns % 1_000 == 0:
                progress(len(self.known), len(self.stack))
            for name, arguments in list(moves_of(state)):
                new = state.copy()
                self.moves += 1
                try:
                    play(new, name, arguments)
                    new.world.judge()
                except Violation as error:
                    return Result(len(self.known), self.moves, False, str(error), steps_of(new))
                key = key_of(new)
                if key not in self.known:
                    self.known.add(key)
                    self.stack.append(new)
        return Result(len(self.known), self.moves, not self.stack, "", ())


def steps_of(state: State) -> tuple[str, ...]:
    steps = []
    path = state.path
    while path:
        path, step = path  # type: ignore[assignment]
        steps.append(str(step))
    return tuple(reversed(steps))


def moves_of(state: State) -> Iterator[tuple[str, tuple[object, ...]]]:
    """What may happen next."""
    world, left = state.world, state.left
    for index in range(len(world.calls)):
        yield "call", (index, "known")
        yield "call", (index, "lost")
    for node in world.nodes:
        replica, id_ = node.replica, node.id
        if replica is None:
            yield "start", (id_,)
            continue
        if node.synced < len(node.log):
            yield "sync", (id_, len(node.log))
            if len(node.log) - node.synced > 1:
                yield "sync", (id_, node.synced + 1)
        if replica.group.seen != world.history[-1]:
            yield "observe", (id_,)
        if is_waiting(world, replica):
            yield "repeat", (id_,)
        if left.calls and replica.group.cas is None:
            if world.record.epoch < left.epochs and replica.role not in LEADING:
                yield "stand", (id_,)
            if replica.role in LEADING:
                for wish in wishes_of(replica):
                    yield "propose", (id_, wish)
        if left.records and replica.leader.may_append():
            yield "append", (id_,)
        if left.kills:
            yield "kill", (id_,)
        if left.powers:
            yield "power", (id_,)
        if left.wipes:
            yield "wipe", (id_,)
    if world.cut:
        yield "mend", ()
    elif left.cuts:
        yield from (("cut", (id_,)) for id_ in BROKERS)


def is_waiting(world: World, replica: Replica) -> bool:
    """True if a follower has something to ask of a leader that it can reach."""
    leader = replica.group.leader_id()
    if replica.role not in {Role.TRUNCATING, Role.FETCHING} or leader < 0:
        return False
    other, id_ = world.nodes[leader].replica, replica.config.broker_id
    if other is None or other.role not in LEADING or world.cut & {(id_, leader), (leader, id_)}:
        return False
    window = other.leader.windows.get(id_)
    return window is None or window.start != replica.log.end or window.start < other.log.end


def wishes_of(replica: Replica) -> list[tuple[object, ...]]:
    others = replica.copies.others()
    wishes = []
    for size in range(len(others) + 1):
        for silent in combinations(others, size):
            wishes += replica.copies.changes(frozenset(silent))
    return list(dict.fromkeys(wishes))


def play(state: State, name: str, arguments: tuple[object, ...]) -> None:
    world = state.world
    state.path = (state.path, (name, *arguments))
    spent = {"stand": "calls", "propose": "calls", "append": "records", "kill": "kills", "power": "powers", "wipe": "wipes", "cut": "cuts"}.get(name)  # fmt: skip
    if spent:
        state.left = replace(state.left, **{spent: getattr(state.left, spent) - 1})
    match name:
        case "repeat":
            replica = world.nodes[arguments[0]].replica  # type: ignore[call-overload]
            replica.retried_ms = world.now_ms - 1
            world.tick(arguments[0])  # type: ignore[arg-type]
        case "power":
            world.lose_power(arguments[0], 0)  # type: ignore[arg-type]
        case "cut":
            world.cut = {link for other in BROKERS for link in ((arguments[0], other), (other, arguments[0]))}  # type: ignore[misc]
        case "mend":
            world.cut = set()
        case _:
            getattr(world, name)(*arguments)
