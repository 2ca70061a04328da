"""Transactions of one broker: which are open, and how the last ones ended. The first decision wins, for ever.

Problem: a half message must become a message once or never, in whatever order its commit, rollback, checks, repeats and
restarts come. A producer whose answer was lost sends its decision again, and a check may be answered at the same time.

Idea: a half message is a timer of the store that is due for its next check. The log offset of its first timer is the
transaction's number, which its signed id holds. Each check appends the timer again, so the timer's id changes and the
number stays. The table has the open transactions and the newest `decisions_max` decisions. Besides half messages that
were never stored, only decided ones are forgotten. So an id that is neither open nor remembered was decided long ago
(LONG_AGO).

Life: `begin` opens a transaction. `decide` marks it, so that no other caller decides it meanwhile. `settle` ends it
when the decision is on its way to the log. `undo` (nothing was appended) and `reopen` (the append failed) make it open
again. `fire` handles a due timer: a check, the end after `checks_max` checks or `age_max_ms`, or the rest of a
decision.

Invariants:

- A transaction is open or decided, never both.
- An open one has one pending timer in the store: `timer_id`, or `previous_id` where the append of the newest failed. A
  crash may leave one without a timer, which `make_room` drops an hour after its time.
- A timer that fires for a decided one is a leftover (COMMITTED, ROLLED_BACK) or carries the decision out (TO_COMMIT,
  GIVEN_UP). A timer that fires for an unknown one was cut off from its record by a crash: the transaction is open.
- `checks` counts checks that reached a producer, and is at most `checks_max`.
- Applying an operation of the journal again changes nothing.

Example: a half message is appended at log offset 4096 and due in 6 s. Its timer fires: `fire` gives CHECK, a producer
is reached (`checked`), and the timer is appended again at 9000 (`renewed`): `timer_id` 9000, `previous_id` 4096. The
producer commits: `decide` gives FIRST, then `settle` COMMITTED. A repeated commit is SAME, a rollback now is OTHER, and
timer 9000, should it still fire, gives END.

Pure: time comes in as ms since the epoch. Decision 15; wire contract 3.7, 3.13, 4.5; docs/guides/transactions.md.
RocketMQ solves the same with two hidden topics that it scans for half messages without a decision.
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

ZOMBIE_MS = 3_600_000
"""An open transaction whose timer is this late has none: a crash took it at its birth."""
SWEEP_MS = 10_000  # between two looks for such transactions


class TransactionOutcome(IntEnum):
    """How a transaction ended; the numbers are part of the journal."""

    FORGOTTEN = 0  # it was never stored, or its topic is gone
    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3
    TO_COMMIT = 4  # Committed; its timer delivers the message when it fires, because the frame could not be read before


class DecisionStatus(Enum):
    FIRST = auto()  # it was not decided before: the caller carries it out
    SAME = auto()
    OTHER = auto()  # it was decided otherwise, which stays
    GIVEN_UP = auto()
    LONG_AGO = auto()  # it was decided, and it is not remembered how


class TimerAction(Enum):
    """Action for a timer that is due."""

    END = auto()
    CHECK = auto()
    WAIT = auto()
    """It is being decided: append the timer again, and look later."""
    DELIVER = auto()
    GIVE_UP = auto()


class Half:
    """One open transaction."""

    __slots__ = ("checks", "deciding", "due_ms", "first_ms", "missed", "previous_id", "timer_id", "topic_id")

    def __init__(self, topic_id: int, timer_id: int, first_ms: int, due_ms: int) -> None:
        self.topic_id = topic_id  # of the message
        self.timer_id = timer_id
        """Its newest timer. While `previous_id` is set, its append may be unfinished, or may have failed."""
        self.previous_id = -1
        """The timer before, until the newest one fires and so shows that it exists; -1: there is none."""
        self.first_ms = first_ms  # its begin
        self.due_ms = due_ms  # of the newest timer
        self.checks = 0  # that reached a producer
        self.missed = 0  # checks in a row that reached no producer
        self.deciding = False  # a caller decides it now: no other may, and its timer waits


class TransactionTable:
    """number -> open transaction, and the remembered decisions, oldest first."""

    __slots__ = (
        "_decided",
        "_name_of",
        "_of_topic",
        "_open",
        "_shares",
        "_swept_ms",
        "_version",
        "age_max_ms",
        "checks_max",
        "decisions_max",
    )

    def __init__(
        self,
        *,
        open_max: int,
        decisions_max: int,
        checks_max: int,
        age_max_ms: int,
        users: UsersNow = no_users,
        name_of: Callable[[int], str] = str,
    ) -> None:
        """`users`: see `core.shares`; `name_of`: a topic's name by its id."""
        self._shares = Shares(
            UserResource.TOPIC, users, limit=open_max, setting="transactions_max", what="open transactions"
        )
        self._name_of = name_of
        self.decisions_max = decisions_max
        self.checks_max = checks_max
        self.age_max_ms = age_max_ms
        self._open: dict[int, Half] = {}  # disjoint from `_decided`
        self._of_topic: dict[int, int] = {}  # topic -> open transactions, at least one
        self._version = 0  # grows with each change of `_open`
        self._decided: dict[int, TransactionOutcome] = {}  # oldest first, at most `decisions_max`
        self._swept_ms = 0

    def __len__(self) -> int:
        return len(self._open)

    def get(self, number: int) -> Half | None:
        return self._open.get(number)

    def all(self) -> Iterator[tuple[int, Half]]:
        return iter(self._open.items())

    def outcome(self, number: int) -> TransactionOutcome | None:
        return self._decided.get(number)

    # ------------------------------------------------------------------------------------------------ begin

    def make_room(self, now_ms: int, topic_id: int) -> list[int]:
        """Makes room for one more transaction of the topic: drops and returns open ones without a timer. Raises
        TooManyRequests if that does not suffice.
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
        """Drops open ones whose timer should have fired long ago, so it was never stored. Call it while timers fire."""
        self._swept_ms = now_ms
        gone = [number for number, half in self._open.items() if half.due_ms + ZOMBIE_MS < now_ms and not half.deciding]
        for number in gone:
            self._remove(number)
        return gone

    def begin(self, number: int, topic_id: int, *, first_ms: int, due_ms: int) -> Half:
        """Opens a transaction whose half message was appended."""
        half = Half(topic_id, number, first_ms, due_ms)
        self._put(number, half)
        return half

    def forget(self, number: int) -> None:
        """Forgets an open one: it was not stored after all, or its topic is gone."""
        self._remove(number)

    # ------------------------------------------------------------------------------------------------ decide

    def decide(self, number: int, outcome: TransactionOutcome) -> DecisionStatus:
        """Begins a decision. After FIRST the caller must call `settle` or `undo`; no other may decide meanwhile."""
        half = self._open.get(number)
        if half is not None:
            if half.deciding:
                raise InvalidTransition(f"transaction {number} is being decided; wait for that")
            half.deciding = True
            return DecisionStatus.FIRST
        known = self._decided.get(number)
        # Only decided ones are ever forgotten, so this one has ended, one way or the other (decision 15).
        if known is None:
            return DecisionStatus.LONG_AGO
        if known is TransactionOutcome.GIVEN_UP:  # its message lies elsewhere: every decision is refused
            return DecisionStatus.GIVEN_UP
        # The caller of a commit that is still to be delivered has decided the same.
        same = outcome is (TransactionOutcome.COMMITTED if known is TransactionOutcome.TO_COMMIT else known)
        return DecisionStatus.SAME if same else DecisionStatus.OTHER

    def settle(self, number: int, outcome: TransactionOutcome) -> None:
        """Ends a transaction whose decision is on its way to the log; `reopen` follows if it does not get there."""
        self._remove(number)
        self._remember(number, outcome)

    def undo(self, number: int) -> None:
        """Takes a decision back of which nothing was appended."""
        half = self._open.get(number)
        if half is not None:
            half.deciding = False

    def reopen(self, number: int, half: Half) -> None:
        """Takes a decision back whose append failed."""
        half.deciding = False
        self._decided.pop(number, None)
        self._put(number, half)

    # ------------------------------------------------------------------------------------------------ time

    def fire(self, number: int, timer_id: int, header: HalfHeader, topic_id: int, *, now_ms: int) -> TimerAction:
        """Handles its timer, which is due. A transaction that is not known was cut off at its birth: it is open from
        now on. The same timer may fire again, if the store could not take what it was to become.
        """
        known = self._decided.get(number)
        if known is not None:
            leftovers = {
                TransactionOutcome.TO_COMMIT: TimerAction.DELIVER,
                TransactionOutcome.GIVEN_UP: TimerAction.GIVE_UP,
            }
            return leftovers.get(known, TimerAction.END)
        half = self._open.get(number)
        if half is None:  # a crash came between the append and its record
            half = self.begin(number, topic_id, first_ms=header.first_ms, due_ms=now_ms)
            half.checks, half.missed = header.checks, header.missed
        # It fired, so the log has it: the timer before is not needed any more as the frame to fall back to.
        half.timer_id, half.previous_id = timer_id, -1
        if half.deciding:
            return TimerAction.WAIT
        if half.checks >= self.checks_max or now_ms - half.first_ms >= self.age_max_ms:
            self.settle(number, TransactionOutcome.GIVEN_UP)
            return TimerAction.GIVE_UP
        return TimerAction.CHECK

    def checked(self, number: int) -> None:
        """Counts a check that reached a producer."""
        half = self._open.get(number)
        if half is not None:
            half.checks, half.missed = half.checks + 1, 0

    def missed(self, number: int) -> None:
        """Notes that no producer was there; that does not count as a check."""
        half = self._open.get(number)
        if half is not None:
            # No transaction is given up only because all producers were down (docs/guides/transactions.md).
            half.missed += 1

    def renewed(self, number: int, timer_id: int, due_ms: int) -> None:
        half = self._open.get(number)
        if half is not None and half.timer_id != timer_id:  # otherwise decided, or a repetition
            half.timer_id, half.previous_id, half.due_ms = timer_id, half.timer_id, due_ms

    # ------------------------------------------------------------------------------------------------ journal

    def op(self, number: int) -> HalfPut | None:
        half = self._open.get(number)
        return None if half is None else _record_of(number, half)

    def dump(self) -> list[HalfPut | HalvesEnded]:
        ended = HalvesEnded(tuple(self._decided), tuple(map(int, self._decided.values())))
        return [*(_record_of(number, half) for number, half in self._open.items()), ended]

    def apply(self, op: HalfPut | HalvesEnded) -> None:
        """Replays one operation; a repetition changes nothing."""
        if isinstance(op, HalvesEnded):
            for number, outcome in zip(op.numbers, op.outcomes, strict=True):
                self._remove(number)
                if outcome:  # otherwise FORGOTTEN
                    self._remember(number, TransactionOutcome(outcome))
            return
        half = self.begin(op.number, op.topic_id, first_ms=op.first_ms, due_ms=op.due_ms)
        half.timer_id, half.previous_id = op.timer_id, op.previous_id
        half.checks, half.missed = op.checks, op.missed
        self._decided.pop(op.number, None)  # a decision that did not reach the log was taken back

    def check(self) -> None:
        """Raises AssertionError if an invariant does not hold; for tests."""
        assert not self._open.keys() & self._decided.keys(), "open and decided"
        assert len(self._decided) <= self.decisions_max
        assert self._of_topic == Counter(half.topic_id for half in self._open.values())
        assert all(half.checks <= self.checks_max for half in self._open.values())

    def _remember(self, number: int, outcome: TransactionOutcome) -> None:
        self._decided.pop(number, None)
        self._decided[number] = outcome
        # Only decided ones are forgotten, so a late decision about an unknown one is answered OK (decision 15).
        while len(self._decided) > self.decisions_max:
            del self._decided[next(iter(self._decided))]


def _record_of(number: int, half: Half) -> HalfPut:
    return HalfPut(
        number, half.topic_id, half.timer_id, half.previous_id, half.first_ms, half.due_ms, half.checks, half.missed
    )
