"""Half messages: stored, asked about, committed or rolled back (wire contract 3.7, 3.13, 4.5).

A half message is a timer of the store (`core.transactions.half_messages`), due for its next check. A decision ends the
timer, appends the message if it is a commit, and records the outcome: one group of the log, all or nothing. A check
goes to the sender's stream, here or at another broker; when the sender is nowhere, to that of another live producer of
the topic; when there is none, it counts as not made. After the last check the message goes to
`TRANS_CHECK_MAX_TIME_TOPIC`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from evenq.errors import ConnectionFailed, Error, InvalidTransactionId, StoreCorrupted, TopicNotFound
from evenq.model import TopicConfig
from evenq.model.names import GIVEN_UP_TOPIC
from evenq.runtime.tasks import spawn
from evenq.store import Append, StoredTimer, TimerAppend
from evenq_broker.core.state.frames import delivered, extra_fields, field, text_field
from evenq_broker.core.state.records import HalfPut, HalvesEnded, encode
from evenq_broker.core.transactions.half_messages import (
    HALF_MESSAGE,
    HalfHeader,
    number_of,
    pack_half,
    unpack_half,
)
from evenq_broker.core.transactions.table import DecisionStatus, Half, TimerAction, TransactionOutcome, TransactionTable
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.copies import given_up_message
from evenq_broker.loops.wire.transactions import relay_check, was_sent
from evenq_broker.runtime import Runtime

__all__ = ["TransactionStats", "Transactions"]

log = logging.getLogger(__name__)

RELAYS_MAX = 64
SOON_MS = 1_000
# Each check writes the message again, so checks that no producer can answer come at growing pauses (decision 15).
MISSED_WAIT_MAX_MS = 600_000
RELAY = "/evenq.v1.Data/RelayCheck"


class TransactionStats:
    """Counters since the start."""

    __slots__ = ("checks", "committed", "conflicts", "given_up", "missed", "relayed", "rolled_back")

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        """By topic id, as the next one."""
        self.rolled_back: dict[int, int] = {}
        self.checks = 0
        """Sent on streams of this broker, for itself and for others."""
        self.relayed = 0
        """Checks that another broker sent for this one."""
        self.missed = 0
        """Checks that found no producer."""
        self.given_up = 0
        self.conflicts = 0
        """Decisions that came after a different one, and changed nothing."""


class Transactions:
    """All transactions of one broker."""

    def __init__(
        self, runtime: Runtime, catalog: Catalog, ledger: Ledger, *, cluster: ClusterLink, clients: ConnectedClients
    ) -> None:
        settings = runtime.settings
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._cluster, self._clients = cluster, clients
        self.stats = TransactionStats()
        self.table = TransactionTable(
            open_max=settings.transactions_max,
            decisions_max=settings.transaction_decisions_max,
            checks_max=settings.transaction_checks_max,
            age_max_ms=settings.transaction_age_max_ms,
            users=runtime.users,
            name_of=catalog.topic_name,
        )
        ledger.keeps(dict.fromkeys((HalfPut, HalvesEnded), self.table.apply), self.table.dump)
        self._deciding: dict[int, asyncio.Task[None]] = {}
        self._relays: set[asyncio.Task[None]] = set()
        self._making: asyncio.Task[None] | None = None
        self._unasked: dict[int, dict[int, None]] = {}
        """Topic id -> open transactions whose last check met no producer."""

    # ------------------------------------------------------------------------------------------------ begin

    async def begin(self, timer: TimerAppend, client_id: str) -> str:
        """Store a half message; its transaction id when it is safe. Raises TooManyRequests and what a send raises."""
        now_ms = self._runtime.clock.now_ms()
        for number in self.table.make_room(now_ms, timer.topic_id):
            log.warning("transaction %d made room for others: its half message was never stored", number)
        timer.head = pack_half(HalfHeader(None, now_ms, 0, 0, client_id), timer.head)
        stored = self._ledger.store.append((), timers=(timer,))
        number = timer.log_offset
        self.table.begin(number, timer.topic_id, first_ms=now_ms, due_ms=timer.due_ms)
        recorded = self._record(number)
        try:
            await asyncio.shield(stored)
        except Error:
            self.table.forget(number)
            self._ledger.journal.record(HalvesEnded((number,), (TransactionOutcome.FORGOTTEN,)))
            raise
        await asyncio.shield(recorded)
        return self._ledger.transaction_ids.make(timer.topic_id, number)

    # ------------------------------------------------------------------------------------------------ decide

    async def end(self, number: int, outcome: TransactionOutcome) -> None:
        """Commit or roll back, once: the first decision stands, any other changes nothing. Returns when it is safe.

        Raises InvalidTransactionId for one that was given up, TopicNotFound, and what a send raises.
        """
        while (running := self._deciding.get(number)) is not None:
            await asyncio.wait({running})
        verdict = self.table.decide(number, outcome)
        match verdict:
            case DecisionStatus.FIRST:
                task = self._deciding[number] = spawn(self._carry_out(number, outcome), name="end a transaction")
                task.add_done_callback(lambda done: self._decided(number, done))
                # It goes on when its caller is gone: others may wait for it, and the producer may ask again.
                await asyncio.shield(task)
            case DecisionStatus.GIVEN_UP:
                raise InvalidTransactionId(
                    f"the transaction was given up after {self.table.checks_max} checks or "
                    f"{self.table.age_max_ms} ms; its message is in topic {GIVEN_UP_TOPIC}"
                )
            case DecisionStatus.OTHER | DecisionStatus.LONG_AGO:
                self.stats.conflicts += verdict is DecisionStatus.OTHER
                was = self.table.outcome(number)
                log.info(
                    "transaction %d: decision %s came too late, it is %s already",
                    number,
                    outcome.name,
                    "unknown" if was is None else was.name,
                    extra={"number": number},
                )
            case DecisionStatus.SAME:
                pass

    def _decided(self, number: int, task: asyncio.Task[None]) -> None:
        del self._deciding[number]
        if not task.cancelled():
            task.exception()  # its caller has it; a caller that went away does not want it

    async def _carry_out(self, number: int, outcome: TransactionOutcome) -> None:
        half = self.table.get(number)
        assert half is not None, "decided FIRST"
        try:
            frame = await self._frame(number, half)
            topic = self._catalog.topics.by_id(half.topic_id)
            if topic is None:
                raise TopicNotFound("the transaction's topic was deleted, and its half message with it")
            messages: list[Append] = []
            if outcome is TransactionOutcome.COMMITTED:
                if frame is None:
                    outcome = TransactionOutcome.TO_COMMIT
                    log.warning(
                        "topic %s: the half message %d cannot be read now; it is delivered later", topic.name, number
                    )
                else:
                    messages.append(_message(frame, topic))
            # A timer that was not read may be another transaction's by now; left alone, it finds the outcome when it
            # fires.
            ended = [frame.log_offset] if frame is not None else []
            self._ledger.journal.flush()  # what was recorded of it before must stand before its end
            record = encode([HalvesEnded((number,), (outcome,))])
            stored = self._ledger.store.append(messages, state=record, ended=ended)
        except BaseException:
            self.table.undo(number)
            raise
        # No await since the append: memory and log change in one turn, so a snapshot holds both or none (decision 15).
        self.table.settle(number, outcome)
        self._unasked.get(half.topic_id, {}).pop(number, None)
        try:
            await asyncio.shield(stored)
        except Error:
            self.table.reopen(number, half)
            self._record(number)
            raise
        self._count(half.topic_id, outcome, messages)

    async def _frame(self, number: int, half: Half) -> StoredTimer | None:
        """Its newest timer that the log has."""
        timer_ids = [timer_id for timer_id in (half.timer_id, half.previous_id) if timer_id >= 0]
        try:
            timers = await self._ledger.store.read_timers(timer_ids)
        except StoreCorrupted as error:
            log.warning("the half message of transaction %d cannot be read: %s", number, error.message)
            return None
        return next((timer for timer in timers if timer is not None and _number_of(timer) == number), None)

    # ------------------------------------------------------------------------------------------------ time

    def due(self, timer: StoredTimer) -> Append | TimerAppend | None:
        """What a half message becomes whose time has come: itself, to be checked again; what its decision says; or
        nothing.
        """
        header = unpack_half(timer.head)[0]
        number = timer.log_offset if header.number is None else header.number
        topic = self._catalog.topics.by_id(timer.topic_id)
        if topic is None:
            log.info("transaction %d is dropped: its topic, id %d, was deleted", number, timer.topic_id)
            self.table.forget(number)
            self._unasked.pop(timer.topic_id, None)
            self._ledger.journal.record(HalvesEnded((number,), (TransactionOutcome.FORGOTTEN,)))
            return None
        now_ms = self._runtime.clock.now_ms()
        match self.table.fire(number, timer.log_offset, header, timer.topic_id, now_ms=now_ms):
            case TimerAction.END:
                return None
            case TimerAction.DELIVER:
                message = _message(timer, topic)
                self._count_in([message])
                return message
            case TimerAction.GIVE_UP:
                self._unasked.get(timer.topic_id, {}).pop(number, None)
                return self._given_up(number, timer, header, topic)
            case TimerAction.WAIT:
                return self._again(number, timer, header, SOON_MS)
            case TimerAction.CHECK:
                wait_ms = self._ask(number, timer, header.client_id, topic)
                return self._again(number, timer, header, wait_ms)

    def _again(self, number: int, timer: StoredTimer, header: HalfHeader, wait_ms: int) -> TimerAppend:
        """The same half message, due again after a while, with its counts of now."""
        half = self.table.get(number)
        checks, missed = (half.checks, half.missed) if half is not None else (header.checks, header.missed)
        _, head = unpack_half(timer.head)
        fresh_header = HalfHeader(number, header.first_ms, checks, missed, header.client_id)
        renewed = TimerAppend(
            timer.topic_id, timer.queue_id, timer.tag_hash, due_ms=self._runtime.clock.now_ms() + wait_ms,
            kind=HALF_MESSAGE, born_ms=timer.born_ms, head=pack_half(fresh_header, head), system=timer.system,
        )  # fmt: skip
        asyncio.get_running_loop().call_soon(self._renewed, number, renewed)  # the store gives it its place right now
        return renewed

    def _renewed(self, number: int, timer: TimerAppend) -> None:
        if timer.log_offset >= 0 and self.table.get(number) is not None:
            self.table.renewed(number, timer.log_offset, timer.due_ms)
            self._record(number)

    def _given_up(
        self, number: int, timer: StoredTimer, header: HalfHeader, topic: TopicConfig
    ) -> Append | TimerAppend:
        target = self._catalog.topics.get(GIVEN_UP_TOPIC)
        if target is None:
            wait_ms = SOON_MS if self._making is None else self._runtime.settings.transaction_check_interval_ms
            if self._making is None or self._making.done():
                self._making = self._runtime.spawn(self._make_given_up_topic(), name="topic of given-up transactions")
            return self._again(number, timer, header, wait_ms)
        self.stats.given_up += 1
        log.warning(
            "transaction of topic %s given up after %d checks", topic.name, header.checks,
            extra={
                "topic": topic.name, "number": number, "checks": header.checks, "begun_ms": header.first_ms,
                "client_id": header.client_id,
            },
        )  # fmt: skip
        self._ledger.journal.record(HalvesEnded((number,), (TransactionOutcome.GIVEN_UP,)))
        return given_up_message(timer, header, topic, target)

    async def _make_given_up_topic(self) -> None:
        try:
            await self._catalog.create_topic(GIVEN_UP_TOPIC, queues=1, system=True)
        except Error as error:
            log.warning("topic %s for given-up transactions not created yet: %s", GIVEN_UP_TOPIC, error.message)

    # ------------------------------------------------------------------------------------------------ checks

    def _ask(self, number: int, timer: StoredTimer, client_id: str, topic: TopicConfig) -> int:
        """Ask a producer what became of it. Returns when to look again, ms from now."""
        settings = self._runtime.settings
        half = self.table.get(number)
        assert half is not None, "it is open"
        command = self._command(number, timer)
        wait_ms: int = settings.transaction_check_interval_ms
        peers, may_relay = self._cluster.peers.all(), len(self._relays) < RELAYS_MAX
        # Others know less of it than the sender, so they are asked at once only where the sender cannot be elsewhere,
        # or where no more relays may run.
        sent = self.push_check(topic.name, client_id, command, sender_only=bool(peers) and may_relay)
        if sent:
            self.table.checked(number)
            return wait_ms
        if sent is None:
            return SOON_MS  # there are producers; they have much to read
        backoff_ms = min(wait_ms << min(max(0, half.missed - 5), 16), max(wait_ms, MISSED_WAIT_MAX_MS))
        if not peers:
            self._missed(number)
        elif not may_relay:
            return SOON_MS
        else:
            task = spawn(self._relay(number, topic.name, client_id, command), name="relay a transaction check")
            self._relays.add(task)
            task.add_done_callback(self._relays.discard)
        return backoff_ms

    def producer_came(self, topics: Iterable[str]) -> None:
        """A producer of these topics is connected now: ask it about transactions for whose checks no producer was
        there.
        """
        for name in topics:
            topic = self._catalog.topics.get(name)
            numbers = None if topic is None else self._unasked.pop(topic.topic_id, None)
            if topic is not None and numbers and len(self._relays) < RELAYS_MAX:
                task = spawn(self._ask_again(topic, list(numbers)), name="ask about transactions")
                self._relays.add(task)
                task.add_done_callback(self._relays.discard)

    async def _ask_again(self, topic: TopicConfig, numbers: list[int]) -> None:
        for number in numbers:
            half = self.table.get(number)
            if half is None or half.deciding or half.missed == 0 or half.checks >= self.table.checks_max:
                continue
            timer = await self._frame(number, half)
            if timer is None or self.table.get(number) is not half:
                continue
            if not self.push_check(topic.name, unpack_half(timer.head)[0].client_id, self._command(number, timer)):
                return  # the others are asked when their time comes
            self._checked(number)

    def push_check(self, topic: str, client_id: str, command: bytes, *, sender_only: bool = False) -> bool | None:
        """Send the command to that client, or to another producer of the topic, if it is connected here. False: none
        is; None: none has room for it now.
        """
        streams = self._clients.streams.sender(client_id)
        if not sender_only:
            streams += self._clients.streams.producers(topic, but=client_id)
        if any(stream.push(command) for stream in streams):
            self.stats.checks += 1
            return True
        return None if streams else False

    async def _relay(self, number: int, topic: str, client_id: str, command: bytes) -> None:
        """Ask the sender at the other brokers, then another producer here, then one at the other brokers."""
        if (
            (client_id and await self._relayed(topic, client_id, command, sender_only=True))
            or (self.push_check(topic, client_id, command))
            or await self._relayed(topic, client_id, command, sender_only=False)
        ):
            self._checked(number)
        else:
            self._missed(number)

    async def _relayed(self, topic: str, client_id: str, command: bytes, *, sender_only: bool) -> bool:
        request = relay_check(topic, client_id, command, sender_only=sender_only)
        for peer in self._cluster.peers.all():
            try:
                sent = was_sent(await self._cluster.peers.ask(peer.name, RELAY, request))
            except Error as error:
                level = logging.DEBUG if isinstance(error, ConnectionFailed) else logging.WARNING
                log.log(level, "a transaction check was not relayed by broker %s: %s", peer.name, error.message)
                continue
            if sent:
                self.stats.relayed += 1
                return True
        return False

    def _checked(self, number: int) -> None:
        self.table.checked(number)
        if self.table.get(number) is not None:
            self._record(number)

    def _missed(self, number: int) -> None:
        self.stats.missed += 1
        self.table.missed(number)
        half = self.table.get(number)
        if half is not None:
            self._unasked.setdefault(half.topic_id, {})[number] = None

    def _command(self, number: int, timer: StoredTimer) -> bytes:
        """An encoded `TelemetryCommand` with RecoverOrphanedTransactionCommand (5): a full received message."""
        _, head = unpack_half(timer.head)
        name = self._ledger.transaction_ids.make(timer.topic_id, number)
        extra = extra_fields(max(0, timer.queue_id), 0, timer.store_ms, name, 1, 0)
        message = delivered(_Frame(head, timer.system), extra=extra)
        return field(5, field(1, message) + text_field(2, name))

    # ------------------------------------------------------------------------------------------------ inside

    async def close(self) -> None:
        """End the relays; decisions that are under way still get to the log."""
        tasks = [*self._relays, *self._deciding.values()]
        for task in self._relays:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _record(self, number: int) -> asyncio.Future[None]:
        op = self.table.op(number)
        assert op is not None, "it is open"
        return self._ledger.journal.record(op)

    def _count(self, topic_id: int, outcome: TransactionOutcome, messages: list[Append]) -> None:
        counts = self.stats.rolled_back if outcome is TransactionOutcome.ROLLED_BACK else self.stats.committed
        counts[topic_id] = counts.get(topic_id, 0) + 1
        self._count_in(messages)

    def _count_in(self, messages: list[Append]) -> None:
        for message in messages:
            self._runtime.stats.topic(message.topic_id).came([len(message.head) + len(message.system)])


class _Frame:
    """A stored message without its header."""

    __slots__ = ("head", "system")

    def __init__(self, head: bytes, system: bytes) -> None:
        self.head = head
        self.system = system


def _number_of(timer: StoredTimer) -> int | None:
    if timer.kind != HALF_MESSAGE:
        return None
    return number_of(timer.log_offset, timer.head)


def _message(timer: StoredTimer, topic: TopicConfig) -> Append:
    _, head = unpack_half(timer.head)
    queue_id = timer.queue_id % topic.write_queues
    return Append(timer.topic_id, queue_id, timer.tag_hash, timer.born_ms, head, timer.system)
