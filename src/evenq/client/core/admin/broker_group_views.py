"""Views of broker groups: the copies of a broker's data, and their leader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCopyView:
    """One copy of a broker's data. Numbers are None where no answering copy has them."""

    copy: int
    """Its broker id."""
    address: str
    """Address for the other copies; it answers `describe_cluster` there, leader or not."""
    state: str
    """LEADER, STARTING (elected, does not serve yet), IN_SYNC, CATCHING_UP or AWAY (does not answer)."""
    may_lead: bool
    """True: it has all committed records."""
    log_end: int | None
    """Bytes of log that it confirmed."""
    lag_bytes: int | None
    """Bytes of log that it did not confirm yet."""
    lag_ms: int | None
    """Time since it last had everything; 0 while it has."""
    away_since_ms: int
    """Begin of its absence, ms since the epoch; 0: it answers."""
    committed_end: int | None = None
    """Bytes of log that are committed, by its information since its process started."""
    log_epoch: int | None = None
    """Epoch of the last record of its log; 0: it has none."""

    @property
    def in_sync(self) -> bool:
        """True if it has every committed record, and keeps up."""
        return self.state in {"LEADER", "STARTING", "IN_SYNC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPairView:
    """A copy with its store that has all that is committed, by the group record."""

    copy: int
    store_id: str
    away_since_ms: int
    """Begin of its absence, ms since the epoch; 0: it answers, with another store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElectionView:
    """An unclean election: an operator made a copy lead that may lack acknowledged messages."""

    epoch: int
    """The epoch that it began."""
    copy: int
    store_id: str
    time_ms: int
    """Ms since the epoch, by the clock of that copy."""
    log_end: int
    """Bytes of log that the copy had; what was committed behind them is lost."""
    lost: tuple[int, ...]
    """Copies that were allowed to lead before."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroupView:
    broker_name: str
    mode: str
    """`sync` or `memory`: when messages are acknowledged; empty: there is one copy."""
    epoch: int
    """Grows with each election."""
    leader: int | None
    """The copy that serves; None: none is known."""
    in_sync_min: int
    """With fewer copies in sync, no messages are accepted."""
    copies: tuple[BrokerCopyView, ...]
    """Ascending."""
    unclean: tuple[UncleanElectionView, ...] = ()
    """The last four, the newest last."""

    @property
    def in_sync(self) -> int:
        return sum(one.in_sync for one in self.copies)

    @property
    def served(self) -> bool:
        return any(one.copy == self.leader and one.state == "LEADER" for one in self.copies)


@dataclass(frozen=True, slots=True)
class MoveAnswer:
    """A leader's answer to a hand-over: the new leader and its epoch."""

    leader: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMoveView:
    broker_name: str
    before: int | None
    leader: int
    """The copy that leads now; the previous leader if it was requested."""
    epoch: int
    served: bool
    """True: the new leader was seen to serve. False: it cannot be reached from here, or still reads its log."""
    took_ms: int
    """From the request until it served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanPlanView:
    """The losses if a copy led that is not in sync, and the election, if it was done."""

    group: BrokerGroupView
    """The group before the election."""
    suggested: int | None
    """The answering copy with the longest log; None: none answers."""
    refusal: str
    """Why it is or would be refused; empty: it is possible."""
    lost: tuple[LostPairView, ...]
    """Records that only these have are lost."""
    election: UncleanElectionView | None
    """None: it was not done."""
