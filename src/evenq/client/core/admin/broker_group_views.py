"""What an admin sees of broker groups: the copies of a broker's data, and which of them leads."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BrokerCopyView",
    "BrokerGroupView",
    "LeaderMoveView",
    "LostPairView",
    "MoveAnswer",
    "UncleanElectionView",
    "UncleanPlanView",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCopyView:
    """One copy of a broker's data. Numbers are None where no copy that answered knows them."""

    copy: int
    """Its broker id."""
    address: str
    """At which the other copies reach it; it answers `describe_cluster` there, leader or not."""
    state: str
    """LEADER, STARTING (elected, does not serve yet), IN_SYNC, CATCHING_UP or AWAY (does not answer)."""
    may_lead: bool
    """It has all that is committed."""
    log_end: int | None
    """Bytes of log that it has confirmed."""
    lag_bytes: int | None
    """What it has not confirmed yet."""
    lag_ms: int | None
    """How long ago it had everything; 0 while it has."""
    away_since_ms: int
    """When it was missed first, ms since the epoch; 0: it answers."""
    committed_end: int | None = None
    """Bytes of log that it knows to be committed since its process started."""
    log_epoch: int | None = None
    """Epoch of the last record of its log; 0: it has none."""

    @property
    def in_sync(self) -> bool:
        """It has every committed record, and keeps up."""
        return self.state in {"LEADER", "STARTING", "IN_SYNC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPairView:
    """A copy with its store that has all that is committed, by the group record."""

    copy: int
    store_id: str
    away_since_ms: int
    """When it was missed first, ms since the epoch; 0: it answers, with another store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElectionView:
    """An operator let a copy lead that may lack acknowledged messages."""

    epoch: int
    """That it began."""
    copy: int
    store_id: str
    time_ms: int
    """Ms since the epoch, by the clock of that copy."""
    log_end: int
    """Bytes of log that it had: what was committed behind that is lost."""
    lost: tuple[int, ...]
    """Copies that may have led before."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroupView:
    """The copies of one broker's data."""

    broker_name: str
    mode: str
    """`sync` or `memory`: what an acknowledgement waits for; empty: there is one copy."""
    epoch: int
    """Grows with each election."""
    leader: int | None
    """The copy that serves; None: none, as far as is known."""
    in_sync_min: int
    """With fewer copies in sync nothing is taken."""
    copies: tuple[BrokerCopyView, ...]
    """Ascending."""
    unclean: tuple[UncleanElectionView, ...] = ()
    """The last four, the newest last; empty: nothing acknowledged was ever given up."""

    @property
    def in_sync(self) -> int:
        """How many copies are in sync."""
        return sum(one.in_sync for one in self.copies)

    @property
    def served(self) -> bool:
        """True if a leader serves."""
        return any(one.copy == self.leader and one.state == "LEADER" for one in self.copies)


@dataclass(frozen=True, slots=True)
class MoveAnswer:
    """What a leader says after a hand-over: who leads, since which epoch."""

    leader: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMoveView:
    """What became of a hand-over."""

    broker_name: str
    before: int | None
    """The copy that led before."""
    leader: int
    """The copy that leads now; the previous leader if that was asked for."""
    epoch: int
    served: bool
    """It was seen to serve. False: the hand-over is done, and the new leader cannot be reached from here, or reads its
    log for longer than was waited."""
    took_ms: int
    """From the request until it served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanPlanView:
    """What would be lost if a copy led that is not in sync; and what was done, if it was."""

    group: BrokerGroupView
    """As it was before."""
    suggested: int | None
    """The copy that answers and has most; None: none answers."""
    refusal: str
    """Why it is not done, or would not be; empty: nothing hinders."""
    lost: tuple[LostPairView, ...]
    """What only these have is lost."""
    election: UncleanElectionView | None
    """None: nothing was done."""
