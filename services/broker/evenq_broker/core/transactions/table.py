"""The transactions of one broker: which are open, and how the last ones ended. The first decision wins, for ever.

A transaction is named by a number, the log offset of its first timer. It is OPEN from the append of its half message
until it is committed, rolled back or given up; each check appends its timer again, so the timer's id changes and the
number stays. Of the decided ones the newest `decisions_max` are remembered; an id that is neither open nor remembered
was decided long ago, since ids are signed. Pure: time comes in as ms since the epoch.

Always true: an open transaction has exactly one pending timer in the store. A timer that fires for a decided one is a
leftover (COMMITTED, ROLLED_BACK) or carries the decision out (TO_COMMIT, GIVEN_UP).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum, auto

from evenq.errors import InvalidTransition, TooManyRequests
from evenq.serving.auth.users import UserResource
from evenq_broker.core.shares import Shares, UsersNow, no_users
from evenq_broker.core.state.records import HalfPut, HalvesEnded
from evenq_broker.core.transactions.half_messages import HalfHeader

__all__ = ["DecisionStatus", "Half", "TimerAction", "TransactionOutcome", "TransactionTable"]

ZOMBIE_MS = 3_600_000
"""An open one whose timer is this late has none: the crash of its birth took it."""


SWEEP_MS = 10_000


class TransactionOutcome(IntEnum):
    """How a transaction ended; the numbers stand in the journal."""

    FORGOTTEN = 0
    """It was never stored, or its topic is gone."""
    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3
    TO_COMMIT = 4
    """Committed; its message is delivered when its timer fires, since the frame could not be read before."""


class DecisionStatus(Enum):
    """What a decision meets."""

    FIRST = auto()
    """It was not decided before: carry it out."""
    SAME = auto()
    OTHER = auto()
    """It was decided otherwise; that stays."""
    GIVEN_UP = auto()
    LONG_AGO = auto()
    """Decided, and not remembered how."""


class TimerAction(Enum):
    """What to do with a timer that is due."""

    END = auto()
    CHECK = auto()
    WAIT = auto()
    """It is being decided: append it again, and look later."""
    DELIVER = auto()
    GIVE_UP = auto()


class Half:
    """One open transaction."""

    __slots__ = ("checks", "deciding", "due_ms", "first_ms", "missed", "previous_id", "timer_id", "topic_id")

    def __init__(self, topic_id: int, timer_id: int, first_ms: int, due_ms: int) -> None:
        self.topic_id = topic_id
        self.timer_id = timer_id
        """Its newest timer, which may not be safe yet, or may never have been stored if `previous_id` is set."""
        self.previous_id = -1
        """The timer before, until the newest has shown that it exists."""
        self.first_ms = first_ms
        self.due_ms = due_ms
        self.checks = 0
        self.missed = 0
        """Checks in a row that reached no producer."""
        self.deciding = False


class TransactionTable:
    """number -> open transaction, and the remembered decisions, oldest first."""

    __slots__ = (
        "_decided", "_name_of", "_of_topic", "_open", "_shares", "_swept_ms", "_version", "age_max_ms", "checks_max",
        "decisions_max",
    )  # fmt: skip

    def __init__(
        self, *, open_max: int, decisions_max: int, checks_max: int, age_max_ms: int,
        users: UsersNow = no_users, name_of: Callable[[int], str] = str,
    ) -> None:  # fmt: skip
        """`users`: see `core.shares`; `name_of`: a topic's name by its id."""
        self._shares = Shares(
            UserResource.TOPIC, users, limit=open_max, setting="transactions_max", what="open transactions"
        )
        self._name_of = name_of
        self.decisions_max = decisions_max
        self.checks_max = checks_max
        self.age_max_ms = age_max_ms
        self._open: dict[int, Half] = {}
        self._of_topic: dict[int, int] = {}
        self._version = 0
        self._decided: dict[int, TransactionOutcome] = {}
        self._swept_ms = 0

    def __len__(self) -> int:
        return len(self._open)

    def get(self, number: int) -> Half | None:
        """The open transaction."""
        return self._open.get(number)

    def all(self) -> Iterator[tuple[int, Half]]:
        """Every open one."""
        return iter(self._open.items())

    def outcome(self, number: int) -> TransactionOutcome | None:
        """How it ended, if that is remembered."""
        return self._decided.get(number)

    # ------------------------------------------------------------------------------------------------ begin

    def make_room(self, now_ms: int, topic_id: int) -> list[int]:
        """Before another one of the topic begins: those without a timer that were dropped. Raises TooManyRequests if
        none can.
        """
        if not self._refusal(topic_id):
            return []
        gone = self.drop_zombies(now_ms) if abs(now_ms - self._swept_ms) >= SWEEP_MS else []
        refusal = self._refusal(topic_id)
        if refusal:
            raise TooManyRequests(f"{refusal}: commit or roll back some, or try again later")
        return gone

    def _refusal(self, topic_id: int) -> str:
        return self._shares.refusal(self._name_of(topic_id), self._counts, total=len(self._open), version=self._version)

    def _counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for topic_id, count in self._of_topic.items():
            name = self._name_of(topic_id)
            counts[name] = counts.get(name, 0) + count
        return counts

    def _put(self, number: int, half: Half) -> None:
        self._remove(number)
        self._open[number] = half
        self._of_topic[half.topic_id] = self._of_topic.get(half.topic_id, 0) + 1
        self._version += 1

    def _remove(self, number: int) -> None:
        half = self._open.pop(number, None)
        if half is None:
            return
        self._version += 1
        self._of_topic[half.topic_id] -= 1
        if not self._of_topic[half.topic_id]:
            del self._of_topic[half.topic_id]

    def drop_zombies(self, now_ms: int) -> list[int]:
        """Forget open ones whose timer should have fired long ago: it was never stored. Only while timers fire."""
        self._swept_ms = now_ms
        gone = [number for number, half in self._open.items() if half.due_ms + ZOMBIE_MS < now_ms and not half.deciding]
        for number in gone:
            self._remove(number)
        return gone

    def begin(self, number: int, topic_id: int, *, first_ms: int, due_ms: int) -> Half:
        """Its half message was appended."""
        half = Half(topic_id, number, first_ms, due_ms)
        self._put(number, half)
        return half

    def forget(self, number: int) -> None:
        """It was not stored after all, or its topic is gone."""
        self._remove(number)

    # ------------------------------------------------------------------------------------------------ decide

    def decide(self, number: int, outcome: TransactionOutcome) -> DecisionStatus:
        """A caller wants it to end so. After FIRST comes `settle` or `undo`, and no other may decide before."""
        half = self._open.get(number)
        if half is not None:
            if half.deciding:
                raise InvalidTransition(f"transaction {number} is being decided; wait for that")
            half.deciding = True
            return DecisionStatus.FIRST
        known = self._decided.get(number)
        # Only decided ones are ever forgotten, so this one had ended, one way or the other (decision 15).
        if known is None:
            return DecisionStatus.LONG_AGO
        if known is TransactionOutcome.GIVEN_UP:
            return DecisionStatus.GIVEN_UP
        same = outcome is (TransactionOutcome.COMMITTED if known is TransactionOutcome.TO_COMMIT else known)
        return DecisionStatus.SAME if same else DecisionStatus.OTHER

    def settle(self, number: int, outcome: TransactionOutcome) -> None:
        """The decision is on its way to the log; `reopen` if it did not get there."""
        self._remove(number)
        self._remember(number, outcome)

    def undo(self, number: int) -> None:
        """Nothing was appended: it is open as before."""
        half = self._open.get(number)
        if half is not None:
            half.deciding = False

    def reopen(self, number: int, half: Half) -> None:
        """The append of the decision failed: it is open as before."""
        half.deciding = False
        self._decided.pop(number, None)
        self._put(number, half)

    # ------------------------------------------------------------------------------------------------ time

    def fire(self, number: int, timer_id: int, header: HalfHeader, topic_id: int, *, now_ms: int) -> TimerAction:
        """Its timer is due. One that is not known was cut off at its birth: it is open from now on. The same timer may
        come again, if the store could not take what it was to become.
        """
        known = self._decided.get(number)
        if known is not None:
            leftovers = {
                TransactionOutcome.TO_COMMIT: TimerAction.DELIVER,
                TransactionOutcome.GIVEN_UP: TimerAction.GIVE_UP,
            }
            return leftovers.get(known, TimerAction.END)
        half = self._open.get(number)
        if half is None:
            half = self.begin(number, topic_id, first_ms=header.first_ms, due_ms=now_ms)
            half.checks, half.missed = header.checks, header.missed
        # It fired, so the log has it; the one before is not needed as the frame to fall back to.
        half.timer_id, half.previous_id = timer_id, -1
        if half.deciding:
            return TimerAction.WAIT
        if half.checks >= self.checks_max or now_ms - half.first_ms >= self.age_max_ms:
            self.settle(number, TransactionOutcome.GIVEN_UP)
            return TimerAction.GIVE_UP
        return TimerAction.CHECK

    def checked(self, number: int) -> None:
        """A producer was asked."""
        half = self._open.get(number)
        if half is not None:
            half.checks, half.missed = half.checks + 1, 0

    def missed(self, number: int) -> None:
        """There was no producer to ask; that counts as no check."""
        half = self._open.get(number)
        if half is not None:
            # No transaction is given up only because all producers of a deployment were down
            # (docs/guides/transactions.md).
            half.missed += 1

    def renewed(self, number: int, timer_id: int, due_ms: int) -> None:
        """Its timer was appended again."""
        half = self._open.get(number)
        if half is not None and half.timer_id != timer_id:
            half.timer_id, half.previous_id, half.due_ms = timer_id, half.timer_id, due_ms

    # ------------------------------------------------------------------------------------------------ journal

    def op(self, number: int) -> HalfPut | None:
        """What the journal keeps of an open one."""
        half = self._open.get(number)
        return None if half is None else _record_of(number, half)

    def dump(self) -> list[HalfPut | HalvesEnded]:
        """Everything, for a snapshot."""
        ended = HalvesEnded(tuple(self._decided), tuple(map(int, self._decided.values())))
        return [*(_record_of(number, half) for number, half in self._open.items()), ended]

    def apply(self, op: HalfPut | HalvesEnded) -> None:
        """Replay; twice is as good as once."""
        if isinstance(op, HalvesEnded):
            for number, outcome in zip(op.numbers, op.outcomes, strict=True):
                self._remove(number)
                if outcome:
                    self._remember(number, TransactionOutcome(outcome))
            return
        half = self.begin(op.number, op.topic_id, first_ms=op.first_ms, due_ms=op.due_ms)
        half.timer_id, half.previous_id = op.timer_id, op.previous_id
        half.checks, half.missed = op.checks, op.missed
        self._decided.pop(op.number, None)  # a decision that did not reach the log was taken back

    def check(self) -> None:
        """Recompute what is always true. For tests."""
        assert not self._open.keys() & self._decided.keys(), "open and decided"
        assert len(self._decided) <= self.decisions_max
        assert self._of_topic == Counter(half.topic_id for half in self._open.values())
        assert all(half.checks <= self.checks_max for half in self._open.values())

    def _remember(self, number: int, outcome: TransactionOutcome) -> None:
        self._decided.pop(number, None)
        self._decided[number] = outcome
        # Only decided ones are forgotten, so a late decision about one that is not known can be answered OK (decision
        # 15).
        while len(self._decided) > self.decisions_max:
            del self._decided[next(iter(self._decided))]


def _record_of(number: int, half: Half) -> HalfPut:
    return HalfPut(
        number, half.topic_id, half.timer_id, half.previous_id, half.first_ms, half.due_ms, half.checks, half.missed
    )
