"""Half messages: stored, checked, committed or rolled back (wire contract 3.7, 3.13, 4.5).

A half message is a timer of the store (`core.transactions.half_messages`), due for its next check. A decision ends the
timer, appends the message if it is a commit, and records the outcome: one group of the log, all or nothing. A check
goes to the sender's stream, here or at another broker. If the sender is nowhere, it goes to another live producer of
the topic; without one, it counts as not made. After the last check the message goes to `TRANS_CHECK_MAX_TIME_TOPIC`.
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
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.copies import given_up_message
from evenq_broker.loops.wire.peers import relay_check, was_sent

log = logging.getLogger(__name__)

RELAYS_MAX = 64
SOON_MS = 1_000
# Each check writes the message again, so checks that find no producer get growing pauses (decision 15).
MISSED_WAIT_MAX_MS = 600_000
RELAY = "/evenq.v1.Data/RelayCheck"


class TransactionStats:
    """Counters since the start."""

    __slots__ = ("checks", "committed", "conflicts", "given_up", "missed", "relayed", "rolled_back")

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        """By topic id, as `rolled_back`."""
        self.rolled_back: dict[int, int] = {}
        self.checks = 0
        """Sent on streams of this broker, for itself and for other brokers."""
        self.relayed = 0
        """Checks of this broker that another broker sent."""
        self.missed = 0
        """Checks that found no producer."""
        self.given_up = 0
        self.conflicts = 0
        """Decisions after a different one; they changed nothing."""


class Transactions:
    """All transactions of one broker."""

    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, clients: ConnectedClients) -> None:
        settings = kernel.runtime.settings
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._clients = cluster, clients
        self.stats = TransactionStats()
        self.table = TransactionTable(
            open_max=settings.transactions_max,
            decisions_max=settings.transaction_decisions_max,
            checks_max=settings.transaction_checks_max,
            age_max_ms=settings.transaction_age_max_ms,
            users=kernel.runtime.users,
            name_of=kernel.catalog.topic_name,
        )
        kernel.ledger.keeps(dict.fromkeys((HalfPut, HalvesEnded), self.table.apply), self.table.dump)
        self._deciding: dict[int, asyncio.Task[None]] = {}
        self._relays: set[asyncio.Task[None]] = set()
        self._making: asyncio.Task[None] | None = None
        self._unasked: dict[int, dict[int, None]] = {}
        """Topic id -> open transactions whose last check met no producer."""

    # ------------------------------------------------------------------------------------------------ begin

    async def begin(self, timer: TimerAppend, client_id: str) -> str:
        """Stores a half message durably; returns its transaction id. Raises TooManyRequests and errors of a send."""
        now_ms = self._runtime.clock.now_ms()
        for number in self.table.make_room(now_ms, timer.topic_id):
            log.warning("transaction %d was removed to free space: its half message was never stored", number)
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
        """Commits or rolls back, durably; only the first decision counts. Raises InvalidTransactionId for a transaction
        that was given up, TopicNotFound, and errors of a send.
        """
        while (running := self._deciding.get(number)) is not None:
            await asyncio.wait({running})
        verdict = self.table.decide(number, outcome)
        match verdict:
            case DecisionStatus.FIRST:
                task = self._deciding[number] = spawn(self._carry_out(number, outcome), name="end a transaction")
                task.add_done_callback(lambda done: self._decided(number, done))
                # It continues without its caller: other calls may wait for it, and the producer may repeat its own.
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
                    "transaction %d: decision %s came too late, it is already %s",
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
            task.exception()  # its caller has it; without a caller it is not reported

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
            # An unread timer may be another transaction's by now; it finds the outcome when it fires.
            ended = [frame.log_offset] if frame is not None else []
            self._ledger.journal.flush()  # earlier records of the transaction must precede its end
            record = encode([HalvesEnded((number,), (outcome,))])
            stored = self._ledger.store.append(messages, state=record, ended=ended)
        except BaseException:
            self.table.undo(number)
            raise
        # No await since the append: memory and log change in one step, so a snapshot holds both or none (decision 15).
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
        """Returns its newest timer in the log."""
        timer_ids = [timer_id for timer_id in (half.timer_id, half.previous_id) if timer_id >= 0]
        try:
            timers = await self._ledger.store.read_timers(timer_ids)
        except StoreCorrupted as error:
            log.warning("the half message of transaction %d cannot be read: %s", number, error.message)
            return None
        return next((timer for timer in timers if timer is not None and _number_of(timer) == number), None)

    # ------------------------------------------------------------------------------------------------ time

    def due(self, timer: StoredTimer) -> Append | TimerAppend | None:
        """Returns the successor of a due half message: its next check, its message if it is committed, or None."""
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
        """Returns the same half message, due again after `wait_ms`, with its present counts."""
        half = self.table.get(number)
        checks, missed = (half.checks, half.missed) if half is not None else (header.checks, header.missed)
        _, head = unpack_half(timer.head)
        fresh_header = HalfHeader(number, header.first_ms, checks, missed, header.client_id)
        renewed = TimerAppend(
            timer.topic_id,
            timer.queue_id,
            timer.tag_hash,
            due_ms=self._runtime.clock.now_ms() + wait_ms,
            kind=HALF_MESSAGE,
            born_ms=timer.born_ms,
            head=pack_half(fresh_header, head),
            system=timer.system,
        )
        asyncio.get_running_loop().call_soon(self._renewed, number, renewed)  # the store sets its offset in this step
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
            "transaction of topic %s given up after %d checks",
            topic.name,
            header.checks,
            extra={
                "topic": topic.name,
                "number": number,
                "checks": header.checks,
                "begun_ms": header.first_ms,
                "client_id": header.client_id,
            },
        )
        self._ledger.journal.record(HalvesEnded((number,), (TransactionOutcome.GIVEN_UP,)))
        return given_up_message(timer, header, topic, target)

    async def _make_given_up_topic(self) -> None:
        try:
            await self._catalog.create_topic(GIVEN_UP_TOPIC, queues=1, system=True)
        except Error as error:
            log.warning("topic %s for given-up transactions not created yet: %s", GIVEN_UP_TOPIC, error.message)

    # ------------------------------------------------------------------------------------------------ checks

    def _ask(self, number: int, timer: StoredTimer, client_id: str, topic: TopicConfig) -> int:
        """Sends a check to a producer. Returns the time until the next one, ms."""
        settings = self._runtime.settings
        half = self.table.get(number)
        assert half is not None, "it is open"
        command = self._command(number, timer)
        wait_ms: int = settings.transaction_check_interval_ms
        peers, may_relay = self._cluster.peers.all(), len(self._relays) < RELAYS_MAX
        # The sender knows most: others get the check only if it cannot be elsewhere, or no more relays may run.
        sent = self.push_check(topic.name, client_id, command, sender_only=bool(peers) and may_relay)
        if sent:
            self.table.checked(number)
            return wait_ms
        if sent is None:
            return SOON_MS  # there are producers; their streams are full
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
        """Repeats checks that found no producer: a producer of these topics is connected now."""
        for name in topics:
            topic = self._catalog.topics.get(name)
            numbers = None if topic is None else self._unasked.pop(topic.topic_id, None)
            if topic is not None and numbers and len(self._relays) < RELAYS_MAX:
                task = spawn(self._ask_again(topic, list(numbers)), name="repeat transaction checks")
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
                return  # the other transactions are checked when they are due
            self._checked(number)

    def push_check(self, topic: str, client_id: str, command: bytes, *, sender_only: bool = False) -> bool | None:
        """Sends a check to the client, or another producer here. False: none is connected; None: all are full."""
        streams = self._clients.streams.sender(client_id)
        if not sender_only:
            streams += self._clients.streams.producers(topic, but=client_id)
        if any(stream.push(command) for stream in streams):
            self.stats.checks += 1
            return True
        return None if streams else False

    async def _relay(self, number: int, topic: str, client_id: str, command: bytes) -> None:
        """Checks the sender at the other brokers, then another producer here, then one at the other brokers."""
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
        """Returns an encoded `TelemetryCommand` with RecoverOrphanedTransactionCommand (5): a full received message."""
        _, head = unpack_half(timer.head)
        name = self._ledger.transaction_ids.make(timer.topic_id, number)
        extra = extra_fields(max(0, timer.queue_id), 0, timer.store_ms, name, 1, 0)
        message = delivered(_Frame(head, timer.system), extra=extra)
        return field(5, field(1, message) + text_field(2, name))

    # ------------------------------------------------------------------------------------------------ inside

    async def close(self) -> None:
        """Ends the relays; running decisions still reach the log."""
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
