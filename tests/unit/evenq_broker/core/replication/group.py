"""A leader and its followers for unit tests: broker 0 leads epoch 1 of brokers 0, 1 and 2."""

from __future__ import annotations

from dataclasses import replace

from evenq_broker.core.replication.actions import Action, CompareAndSet
from evenq_broker.core.replication.config import Mode, ReplicationConfig, Timing
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.messages import Body, Envelope, EpochsReply, EpochsRequest, FollowerProgress, Records
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair, Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role

STORES = ("a" * 32, "b" * 32, "c" * 32)
PAIRS = tuple(Pair(id_, store) for id_, store in enumerate(STORES))
TIMING = Timing(renew_ms=2_000, suspect_ms=6_000, backoff_ms=500, lag_ms=3_000, retry_ms=500, drain_ms=10_000)


def config(
    id_: int, *, mode: Mode = Mode.REPL_SYNC, founds: bool = False, ahead: int = 0
) -> ReplicationConfig:  # fmt: skip
    """`ahead` 0: of a version that asks for each message."""
    return ReplicationConfig(
        cluster="c",
        broker_id=id_,
        members=(0, 1, 2),
        min_isr=2,
        founds=founds,
        mode=mode,
        timing=TIMING,
        ahead=ahead,
    )


def seen(version: int = 1, *, epoch: int = 0, leader: int = NO_LEADER, isr: tuple[Pair, ...] = PAIRS) -> Seen:
    record = GroupRecord(version=version, epoch=epoch, leader=leader, isr=isr, min_isr=2, members=(0, 1, 2))
    return Seen(record, str(version))


def replica(
    id_: int, *, mode: Mode = Mode.REPL_SYNC, founds: bool = False, epoch_seen: int = 0, restored_epoch: int = 0, ahead: int = 0
) -> Replica:  # fmt: skip
    settings = replace(config(id_, mode=mode, founds=founds, ahead=ahead), restored_epoch=restored_epoch)
    return Replica(settings, store_id=STORES[id_], epoch_seen=epoch_seen, session=10 + id_)


def envelope(sender: int, body: Body, *, epoch: int = 1, store_id: str = "", cluster: str = "c") -> Envelope:
    return Envelope(cluster, sender, store_id or STORES[sender], 10 + sender, epoch, body)


def only(actions: list[Action], kind: type) -> list:  # type: ignore[type-arg]
    return [action for action in actions if isinstance(action, kind)]


def starting(*, mode: Mode = Mode.REPL_SYNC, isr: tuple[Pair, ...] = PAIRS) -> Replica:
    """Broker 0 won epoch 1, its first record [0, 10) is synced; no follower confirmed anything."""
    one = replica(0, mode=mode)
    one.recovered(EpochTable(), 0, 0)
    one.observed(seen(isr=isr), 0)
    (call,) = only(one.election.stand(), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "2"), 0)
    one.epoch_persisted(1)
    one.appended(1, 10)
    one.synced(10)
    assert one.role is Role.STARTING
    return one


def confirm(leader: Replica, id_: int, end: int, *, now_ms: int = 0, wants: bool = False, store_id: str = "") -> list[Action]:  # fmt: skip
    return leader.receive(envelope(id_, FollowerProgress(end, end, wants), store_id=store_id), now_ms)


def ready(*, mode: Mode = Mode.REPL_SYNC) -> Replica:
    """The same, with both others having confirmed the first record."""
    one = starting(mode=mode)
    confirm(one, 1, 10)
    confirm(one, 2, 10)
    assert one.role is Role.READY
    return one


def fetching(id_: int = 1, *, mode: Mode = Mode.REPL_SYNC, ahead: int = 0) -> Replica:
    """A follower of broker 0 in epoch 1 that copied and synced [0, 10)."""
    one = replica(id_, mode=mode, ahead=ahead)
    one.recovered(EpochTable(), 0, 0)
    one.observed(seen(2, epoch=1, leader=0), 0)
    one.epoch_persisted(1)
    table = EpochTable(0, (EpochStart(1, 0),))
    one.receive(envelope(0, EpochsReply(one.follower.request, 10 + id_, table, 10)), 0)
    one.emptied(0)
    one.receive(envelope(0, records(0, 10, epochs=(EpochStart(1, 0),), previous=0)), 0)
    one.copied(10)
    one.synced(10)
    assert (one.role, one.log.end, one.log.durable) == (Role.FETCHING, 10, 10)
    return one


def watch(
    one: Replica, since_ms: int, until_ms: int, *, reads: bool = True, hears: bool = False, step_ms: int = 100
) -> list[Action]:
    """Time passes for a follower of broker 0 in epoch 1, behind `since_ms` and up to `until_ms`: the record is read again
    and again and does not change, or is away; the leader is heard of, or is not. Gives all that the follower did.
    """
    actions: list[Action] = []
    for now_ms in range(since_ms + step_ms, until_ms + 1, step_ms):
        assert one.group.seen is not None
        if reads:
            actions += one.observed(one.group.seen, now_ms)
        if hears:
            actions += one.receive(envelope(0, records(one.log.end, one.log.end)), now_ms)
        actions += one.tick(now_ms)
    return actions


def records(start: int, end: int, *, epochs: tuple[EpochStart, ...] = (), previous: int = 1, committed: int = 0, rank: int = 0) -> Records:  # fmt: skip
    return Records(start, end, previous, epochs, committed, rank, b"")


__all__ = ["PAIRS", "STORES", "EpochsRequest", "confirm", "envelope", "fetching", "only", "ready", "records", "replica", "seen", "starting", "watch"]  # fmt: skip
