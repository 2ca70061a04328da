"""View of a broker group for operators: its leader, and how far each copy is.

`group_view` is what one copy knows: a leader all of it, a follower itself and which copies answer it. Where no copy
leads, `combined` makes one view of what several copies report of themselves. Pure; read on request, never by the
protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum

from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair, UncleanElection
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import LEADING, Role

UNKNOWN = -1
"""In place of a number that the reporting copy does not know."""
MODES = {Mode.REPL_SYNC: "sync", Mode.REPL_MEMORY: "memory"}


class CopyState(StrEnum):
    LEADER = "leader"
    STARTING = "starting"  # Elected, and not serving yet: it waits for other copies, or reads its log
    IN_SYNC = "in sync"
    CATCHING_UP = "catching up"  # Present, and lacking records or recent confirmations
    AWAY = "away"  # it does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyView:
    """One copy. Numbers are `UNKNOWN` where the reporting copy does not know them."""

    copy: int  # broker id
    address: str  # address for the other copies; empty: not known
    state: CopyState
    may_lead: bool
    """Its store is in the in-sync set of the group record: it has all that is committed."""
    log_end: int = UNKNOWN  # end of what it confirmed, as a log offset, bytes
    lag_bytes: int = UNKNOWN
    """Unconfirmed bytes of the leader's log; if no copy leads, of the longest log that may lead and answers."""
    lag_ms: int = UNKNOWN  # time since it last had everything; 0 while it has
    away_since_ms: int = 0
    """When the reporting copy first missed it, ms since the epoch; 0: it answers."""
    committed_end: int = UNKNOWN
    """End of what it knows to be committed since its process started, as a log offset."""
    log_epoch: int = UNKNOWN  # epoch of its last record; 0: it has none

    @property
    def in_sync(self) -> bool:
        """True if it holds every committed record and keeps up."""
        return self.state in {CopyState.LEADER, CopyState.STARTING, CopyState.IN_SYNC}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroupView:
    broker_name: str
    mode: str  # `sync` or `memory`; empty: there is one copy
    epoch: int
    leader: int  # broker id; `NO_LEADER`: no copy leads, as far as is known
    in_sync_min: int
    told_by: int  # broker id of the reporting copy
    copies: tuple[CopyView, ...]  # ascending broker id
    unclean: tuple[UncleanElection, ...] = ()  # of the group record, the newest last

    def copy(self, broker_id: int) -> CopyView | None:
        return next((one for one in self.copies if one.copy == broker_id), None)

    @property
    def in_sync(self) -> int:
        """Number of copies in sync."""
        return sum(one.in_sync for one in self.copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersSeen:
    """A copy's knowledge of the others, beside its replica."""

    connected: AbstractSet[int]
    stores: Mapping[int, str] = field(default_factory=dict)  # broker id -> the store it named last
    complete_ms: Mapping[int, int] = field(default_factory=dict)
    """Broker id -> when it was last seen to have everything, ms of the replica's clock."""
    away_since_ms: Mapping[int, int] = field(default_factory=dict)


def one_copy(broker_name: str, *, broker_id: int, epoch: int, address: str) -> ReplicaGroupView:
    """Returns the view of a broker without other copies."""
    own = CopyView(copy=broker_id, address=address, state=CopyState.LEADER, may_lead=True, lag_bytes=0, lag_ms=0)
    return ReplicaGroupView(
        broker_name=broker_name, mode="", epoch=epoch, leader=broker_id, in_sync_min=1, told_by=broker_id, copies=(own,)
    )


def group_view(
    replica: Replica,
    peers: PeersSeen,
    *,
    broker_name: str,
    addresses: Mapping[int, str],
    serves: bool,
    now_ms: int,
) -> ReplicaGroupView:
    """Returns what this copy knows. `serves`: it answers clients; `now_ms`: of the replica's clock."""
    record, own_id = replica.record, replica.config.broker_id
    leader = replica.group.leader_id()
    if leader != own_id and leader not in peers.connected:
        leader = NO_LEADER
    members = replica.config.members if record is None else record.members
    copies = []
    for broker_id in members:
        if broker_id == own_id:
            view = _own(replica, serves=serves)
        elif replica.leads:
            view = _follower(replica, broker_id, peers, now_ms)
        else:
            view = _other(record, broker_id, peers, leads=broker_id == leader)
        copies.append(replace(view, address=addresses.get(broker_id, "")))
    return ReplicaGroupView(
        broker_name=broker_name,
        mode=MODES[replica.config.mode],
        epoch=replica.max_epoch,
        leader=leader,
        in_sync_min=replica.config.min_isr if record is None else record.min_isr,
        told_by=own_id,
        copies=tuple(copies),
        unclean=() if record is None else record.unclean,
    )


def combined(views: Sequence[ReplicaGroupView]) -> ReplicaGroupView:
    """Returns one view made of one or more: that of the newest leader, otherwise each copy's view of itself."""
    newest = max(views, key=lambda view: view.epoch)
    leaders = [view for view in views if view.leader == view.told_by and view.epoch == newest.epoch]
    if leaders:
        return leaders[0]
    of_themselves = {view.told_by: own for view in views if (own := view.copy(view.told_by)) is not None}
    longest = max((one.log_end for one in of_themselves.values() if one.may_lead), default=UNKNOWN)
    copies = []
    for known in newest.copies:
        own = of_themselves.get(known.copy)
        if own is not None and longest != UNKNOWN:  # otherwise no copy that answers knows what is committed
            own = replace(own, lag_bytes=max(0, longest - own.log_end))
        copies.append(own or known)
    return replace(newest, copies=tuple(copies))


def _own(replica: Replica, *, serves: bool) -> CopyView:
    role, record = replica.role, replica.record
    may_lead = record is not None and replica.own.pair in record.isr
    state, lag = CopyState.CATCHING_UP, UNKNOWN
    if role in LEADING or role is Role.ELECTED:
        state, lag = CopyState.LEADER if serves else CopyState.STARTING, 0
    elif role is Role.FETCHING and may_lead:
        state = CopyState.IN_SYNC
    own = replica.config.broker_id
    return CopyView(
        copy=own,
        address="",
        state=state,
        may_lead=may_lead,
        log_end=replica.log.end,
        lag_bytes=lag,
        lag_ms=lag,
        committed_end=replica.log.hw,
        log_epoch=replica.log.table.last_epoch,
    )


def _follower(replica: Replica, broker_id: int, peers: PeersSeen, now_ms: int) -> CopyView:
    """Returns a copy as its leader sees it."""
    record = replica.record
    assert record is not None, "a leader knows the record"
    pair = _pair_of(replica, record, broker_id, peers.stores)
    confirmed, complete_ms = replica.copies.acks.get(pair), peers.complete_ms.get(broker_id)
    lag_bytes = UNKNOWN if confirmed is None else max(0, replica.log.end - confirmed)
    lag_ms = 0 if lag_bytes == 0 else UNKNOWN
    if lag_bytes > 0 and complete_ms is not None:
        lag_ms = max(0, now_ms - complete_ms)
    may_lead = pair in record.isr
    state = CopyState.IN_SYNC if may_lead and pair not in replica.copies.silent else CopyState.CATCHING_UP
    if broker_id not in peers.connected:
        state = CopyState.AWAY
    return CopyView(
        copy=broker_id,
        address="",
        state=state,
        may_lead=may_lead,
        log_end=UNKNOWN if confirmed is None else confirmed,
        lag_bytes=lag_bytes,
        lag_ms=lag_ms,
        away_since_ms=peers.away_since_ms.get(broker_id, 0) if state is CopyState.AWAY else 0,
    )


def confirmed_end(replica: Replica, broker_id: int, stores: Mapping[int, str]) -> int | None:
    """Returns how far another copy is, as reported in this epoch; None: not yet, or this replica does not lead."""
    record = replica.record
    if record is None or not replica.leads:
        return None
    return replica.copies.acks.get(_pair_of(replica, record, broker_id, stores))


def _pair_of(replica: Replica, record: GroupRecord, broker_id: int, stores: Mapping[int, str]) -> Pair:
    """Returns the copy with the store that it named last, otherwise one in sync, otherwise one that confirmed."""
    store_ids = [pair.store_id for pair in replica.copies.acks if pair.broker_id == broker_id]
    return Pair(broker_id, stores.get(broker_id) or record.store_of(broker_id) or (store_ids or [""])[-1])


def _other(record: GroupRecord | None, broker_id: int, peers: PeersSeen, *, leads: bool) -> CopyView:
    """Returns a copy as another follower sees it: by the record, and whether it answers."""
    may_lead = record is not None and bool(record.store_of(broker_id))
    state = CopyState.LEADER if leads else CopyState.IN_SYNC if may_lead else CopyState.CATCHING_UP
    if broker_id not in peers.connected:
        state = CopyState.AWAY
    since_ms = peers.away_since_ms.get(broker_id, 0) if state is CopyState.AWAY else 0
    return CopyView(copy=broker_id, address="", state=state, may_lead=may_lead, away_since_ms=since_ms)
