"""Configuration of a consumer group."""

from dataclasses import dataclass
from enum import StrEnum

from evenq.model.balance import EVEN_BALANCE, BalancePolicy
from evenq.model.names import group_problem
from evenq.model.retry import CLASSIC_RETRY, RetryPolicy


class MessageModel(StrEnum):
    """CLUSTERING delivers a message to one member, BROADCASTING to every member (TQ-8)."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class StartFrom(StrEnum):
    """Position where a group without progress starts to read a queue (RB-42)."""

    LAST = "LAST"
    FIRST = "FIRST"
    TIMESTAMP = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Start of a group that has never read the topic; queues that are added later start at their first message."""

    start_from: StartFrom | None = None
    """None: as the group is configured."""
    timestamp_ms: int = 0
    """For TIMESTAMP, ms since the epoch; 0: at the first message."""
    young_from_first: bool = False
    """LAST starts at the first message of a queue whose first message is still in the broker's memory (RB-46)."""
    begun_ms: int = 0
    """Ms since a member saw the group start on the topic at another broker; -1: it joined later; 0: it saw no start.
    Used if the other brokers do not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One consumer group, the same on every broker of the cluster."""

    name: str
    group_id: int
    """Numeric, per broker, never reused."""
    ordered: bool = False
    """True: FIFO delivery, blocked by message group."""
    max_attempts: int = 17
    """Total deliveries before the dead-letter topic, 1 .. 1000 (RD-3: 16 retries)."""
    start_from: StartFrom = StartFrom.LAST
    strategy: str = ""
    """Allocate strategy for QueryAssignment (STICKY, AVG, AVG_BY_CIRCLE ...); empty: every member gets every broker."""
    retry: RetryPolicy = CLASSIC_RETRY
    balance: BalancePolicy = EVEN_BALANCE
    revised_ms: int = 0
    """Time of the last change by an operator, ms since the epoch; of two brokers' settings the newer ones count.
    0: never, the group was created by its first use."""
    made_ms: int = 0
    """Time of its creation on this broker, ms since the epoch; an older deletion belongs to an earlier group of the
    name. 0: created by a version that did not record it."""

    def __post_init__(self) -> None:
        problem = group_problem(self.name)
        if problem:
            raise ValueError(problem)
        if not 1 <= self.max_attempts <= 1000:
            raise ValueError(f"group {self.name} has {self.max_attempts} max_attempts, the range is 1 to 1000")
