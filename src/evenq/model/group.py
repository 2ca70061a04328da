"""What a consumer group is configured to be."""

from dataclasses import dataclass
from enum import StrEnum

from evenq.model.balance import EVEN_BALANCE, BalancePolicy
from evenq.model.names import group_problem
from evenq.model.retry import CLASSIC_RETRY, RetryPolicy

__all__ = ["GroupConfig", "MessageModel", "StartFrom"]


class MessageModel(StrEnum):
    """CLUSTERING: a message goes to one member. BROADCASTING: to every member (TQ-8)."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class StartFrom(StrEnum):
    """Where a group without progress starts to read a queue (RB-42)."""

    LAST = "LAST"
    FIRST = "FIRST"
    TIMESTAMP = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Where a group begins that never read the topic; queues that come later begin at their first message."""

    start_from: StartFrom | None = None
    """None: as the group is configured."""
    timestamp_ms: int = 0
    """Of TIMESTAMP, ms since the epoch; 0: at the first message."""
    young_from_first: bool = False
    """LAST begins at the first message of a queue whose first message is still in the broker's memory (RB-46)."""
    begun_ms: int = 0
    """How long ago a member saw the group begin on the topic at another broker, ms; -1: the member came later; 0: it
    saw nothing of it. Counts where the other brokers do not answer.
    """


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
    """Pauses between deliveries of a message that failed."""
    balance: BalancePolicy = EVEN_BALANCE
    """How a rebalancer shares the queues beside the strategy."""
    revised_ms: int = 0
    """When an operator asked for a change last, wall time in ms since the epoch: of two brokers' settings the newer
    ones count. 0: never, the group was made when it was used first."""
    made_ms: int = 0
    """When it was made on this broker, wall time in ms since the epoch: a deletion that is older is another group's.
    0: by a version that did not record it."""

    def __post_init__(self) -> None:
        problem = group_problem(self.name)
        if problem:
            raise ValueError(problem)
        if not 1 <= self.max_attempts <= 1000:
            raise ValueError(f"group {self.name} asks for {self.max_attempts} attempts, the range is 1 to 1000")
