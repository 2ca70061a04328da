"""Push consumers over a broker in memory that can break: hand-over, fencing, restarts, start policies, server's
assignment."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from evenq_proofs.received import received_message
from evenq_proofs.waiting import until_async

from evenq.allocation import by_name
from evenq.client.core.calls import (
    Assignment,
    GroupTerms,
    Join,
    Leave,
    LockAnswer,
    MemberInfo,
    Pulled,
    QueueRange,
    SessionEvent,
    Welcome,
)
from evenq.client.core.routes.route import Route
from evenq.client.loops.consumers.pushing import PushLoop, PushPlan
from evenq.client.options import PushOptions
from evenq.errors import ConnectionFailed, IllegalOffset, PreconditionFailed, QueueReplaced, TopicNotFound
from evenq.model import (
    FilterExpression,
    Generation,
    MessageModel,
    MessageQueue,
    QueueOffset,
    ReceivedMessage,
    StartFrom,
    StartPolicy,
)
from evenq.model.session_events import AssignmentChanged, BrokerLeaving, MembersChanged, QueueWanted, SettingsChanged
from evenq.runtime.clock import SystemClock

QUEUES = [MessageQueue("t", "b", number) for number in range(4)]


class Broker:
    """One broker: queues, members, locks, offsets; `fail` makes the next calls of a name raise."""

    def __init__(self) -> None:
        self.queues: dict[MessageQueue, list[bytes]] = {queue: [] for queue in QUEUES}
        self.route = QUEUES
        self.minimum = 0
        self.strategy = ""
        self.committed: dict[MessageQueue, int] = {}
        self.holders: dict[MessageQueue, str] = {}
        self.mail: dict[str, asyncio.Queue[SessionEvent | None]] = {}
        self.assignments: dict[str, Assignment] = {}
        self.fail: dict[str, list[Exception]] = {}
        self.dead_letters: list[tuple[int, int]] = []
        self.sent_back: list[tuple[int, int]] = []
        self.pulls: list[tuple[str, MessageQueue, int, Generation]] = []
        self.asked = 0
        """Answers about assignments."""
        self.changed = asyncio.Event()
        self.uid = "first"
        """What the offsets of all queues count."""
        self.decided: int | None = None
        """Where it lets groups begin; None: it is too old for that."""
        self.begun: list[StartPolicy] = []

    def make_anew(self, *bodies: bytes) -> None:
        """The topic is deleted and created again, with these messages in its first queue."""
        self.uid = "second"
        self.committed.clear()
        self.holders.clear()
        for queue in self.queues:
            self.queues[queue] = []
        self.store(*bodies)

    def must_be(self, uid: str) -> None:
        if uid not in {"", self.uid}:
            raise QueueReplaced("made anew", uid=self.uid)

    def store(self, *bodies: bytes, queue: MessageQueue = QUEUES[0]) -> None:
        self.queues[queue] += bodies
        self.wake()

    def configure(self, strategy: str) -> None:
        """The group gets this strategy, or loses its own."""
        self.strategy = strategy
        for mailbox in self.mail.values():
            mailbox.put_nowait(SettingsChanged(GroupTerms(17, "LAST", strategy)))

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def tell_members(self) -> None:
        members = tuple(MemberInfo(client_id, "evenq", frozenset()) for client_id in self.mail)
        for mailbox in self.mail.values():
            mailbox.put_nowait(MembersChanged(members))

    def restart(self) -> None:
        """Locks and members are forgotten, streams break, stored things stay."""
        self.holders.clear()
        mailboxes, self.mail = list(self.mail.values()), {}
        for mailbox in mailboxes:
            mailbox.put_nowait(None)
        self.wake()


class Calls:
    """What one member calls (`rpc.sessions.RpcConsumerCalls`)."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        self.broker = broker
        self.client_id = client_id

    def trip(self, call: str) -> None:
        if self.broker.fail.get(call):
            raise self.broker.fail[call].pop(0)

    def turn_away(self) -> None:
        pass

    async def query_route(self, topic: str) -> Route:
        if topic != "t":
            raise TopicNotFound(topic)
        route = tuple(self.broker.route)
        return Route(topic=topic, writable=route, readable=route, addresses={"b": "b:1"})

    async def session(self, address: str, requests: AsyncIterator[Join | Leave | None]) -> AsyncIterator[SessionEvent]:
        self.trip("session")
        broker, me = self.broker, self.client_id
        assert isinstance(await anext(requests), Join)
        mailbox = broker.mail[me] = asyncio.Queue()
        members = tuple(MemberInfo(client_id, "evenq", frozenset()) for client_id in broker.mail)
        yield Welcome(1_000, members, GroupTerms(17, "LAST", broker.strategy))
        broker.tell_members()
        reader = asyncio.ensure_future(self.read(requests, mailbox))
        try:
            while (event := await mailbox.get()) is not None:
                yield event
        finally:
            reader.cancel()
            if broker.mail.get(me) is mailbox:
                del broker.mail[me]
                for queue in [queue for queue, holder in broker.holders.items() if holder == me]:
                    del broker.holders[queue]
                broker.tell_members()
                broker.wake()

    @staticmethod
    async def read(requests: AsyncIterator[Join | Leave | None], mailbox: asyncio.Queue[SessionEvent | None]) -> None:
        async for request in requests:
            if isinstance(request, Leave):
                mailbox.put_nowait(None)

    async def lock(
        self,
        address: str,
        group: str,
        queues: Sequence[MessageQueue],
        *,
        wait_ms: int,
        generation: Generation,
        anew: bool = False,
    ) -> list[LockAnswer]:
        self.trip("lock")
        held = self.broker.holders
        while wait_ms > 0 and any(held.get(queue, self.client_id) != self.client_id for queue in queues):
            await asyncio.sleep(0.005)
            wait_ms -= 5
        answers = []
        for queue in queues:
            granted = held.setdefault(queue, self.client_id) == self.client_id
            answers.append(
                LockAnswer(queue, granted, held[queue], self.broker.committed.get(queue, -1), uid=self.broker.uid)
            )
        return answers

    async def count_deliveries(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        counts: Mapping[int, int],
        *,
        given_until: int,
        generation: Generation,
        uid: str = "",
    ) -> None:
        self.trip("count")
        self.broker.must_be(uid)

    async def unlock(self, address: str, group: str, queues: Sequence[MessageQueue]) -> None:
        for queue in queues:
            if self.broker.holders.get(queue) == self.client_id:
                del self.broker.holders[queue]

    async def pull(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: QueueOffset,
        *,
        batch_max: int,
        bytes_max: int,
        wait_ms: int,
        expression: FilterExpression,
        generation: Generation,
        committed: int,
        owner: bool = False,
        any_copy: bool = False,
        uid: str = "",
    ) -> Pulled:
        assert owner, "a member of a group reads what it holds, and nothing else"
        self.broker.pulls.append((self.client_id, queue, offset, generation))
        self.trip("pull")
        self.broker.must_be(uid)
        bodies = self.broker.queues[queue]
        if offset < self.broker.minimum:
            raise IllegalOffset("too small", min_offset=self.broker.minimum, max_offset=len(bodies))
        while offset >= len(bodies):
            await self.broker.changed.wait()
            self.broker.must_be(uid)
        some = bodies[offset : offset + batch_max]
        return Pulled([received(queue, offset + n, body) for n, body in enumerate(some)], offset + len(some))

    async def commit(
        self,
        address: str,
        group: str,
        offsets: Mapping[MessageQueue, QueueOffset],
        *,
        generation: Generation,
        uids: Mapping[MessageQueue, str] | None = None,
    ) -> None:
        self.trip("commit")
        for queue, offset in offsets.items():
            self.broker.must_be((uids or {}).get(queue, ""))
            assert self.broker.holders.get(queue) == self.client_id, "commit by a client who does not hold the queue"
            self.broker.committed[queue] = max(offset, self.broker.committed.get(queue, -1))

    async def reset(
        self,
        address: str,
        group: str,
        offsets: Mapping[MessageQueue, QueueOffset],
        *,
        generation: Generation,
        uids: Mapping[MessageQueue, str] | None = None,
    ) -> None:
        self.broker.committed.update(offsets)

    async def query_offsets(
        self, address: str, group: str, queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange:
        self.trip("query_offsets")
        end, committed = len(self.broker.queues[queue]), self.broker.committed.get(queue, -1)
        return QueueRange(self.broker.minimum, end, committed, 2 if timestamp_ms else -1, uid=self.broker.uid)

    async def begin(
        self, address: str, group: str, queue: MessageQueue, start: StartPolicy, *, generation: Generation, uid: str
    ) -> None:
        self.trip("begin")
        self.broker.must_be(uid)
        if self.broker.decided is None:
            raise IllegalOffset("offset -1 is outside")
        self.broker.begun.append(start)
        for one, bodies in self.broker.queues.items():
            self.broker.committed.setdefault(one, min(self.broker.decided, len(bodies)))

    async def send_back(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: QueueOffset,
        *,
        delay_level: int,
        attempts: int,
        uid: str = "",
    ) -> None:
        self.trip("send_back")
        self.broker.must_be(uid)
        (self.broker.dead_letters if delay_level < 0 else self.broker.sent_back).append((offset, attempts))

    async def query_assignment(self, group: str, topic: str, strategy: str, model: MessageModel) -> Assignment:
        self.trip("query_assignment")
        self.broker.asked += 1
        return self.broker.assignments.get(self.client_id, Assignment(False, ()))


def received(queue: MessageQueue, offset: int, body: bytes) -> ReceivedMessage:
    return received_message(offset, body=body, message_id=body.decode(), queue=queue)


class Group:
    """Members of one group, what they got, what they were answered."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.seen: Counter[bytes] = Counter()
        self.notices: list[tuple[str, list[int], list[int]]] = []
        self.handle: Callable[[ReceivedMessage], Awaitable[bool]] | None = None

    def member(
        self,
        name: str,
        *,
        start: StartFrom | None = StartFrom.FIRST,
        ask_server: bool | None = False,
        **options: int | str,
    ) -> PushLoop:
        async def listen(messages: Sequence[ReceivedMessage]) -> bool:
            for message in messages:
                self.seen[message.body] += 1
                if self.handle is not None and not await self.handle(message):
                    return False
            return True

        async def tell(gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
            self.notices.append((name, [q.queue_id for q in gained], [q.queue_id for q in lost]))

        settings = {"retry_first_ms": 5, "retry_max_ms": 10, "lock_retry_ms": 20, "lock_wait_ms": 500, **options}
        plan = PushPlan(
            group="g",
            subscriptions={"t": FilterExpression()},
            model=MessageModel.CLUSTERING,
            strategy=by_name("AVG"),
            ask_server=ask_server,
            slots=4,
            start_from=start,
            start_timestamp_ms=0,
            options=PushOptions(**settings),  # type: ignore[arg-type]  # as tests name them
        )
        member = PushLoop(
            Calls(self.broker, name),
            plan=plan,
            client_id=name,
            clock=SystemClock(),
            rng=random.Random(3),
            run_listener=listen,
            tell=tell,
        )
        member.start()
        return member


async def turns() -> None:
    """Whatever can go on now has gone on: nothing of it waits for another process or the disk."""
    for _ in range(100):
        await asyncio.sleep(0)


def owned(member: PushLoop) -> list[int]:
    return [queue.queue_id for queue in member.owned()]


async def test_a_topic_that_was_made_anew_is_read_whole_and_nothing_of_the_old_one_is_committed() -> None:
    """The new topic has more messages than were read of the old one, so no offset tells them apart."""
    broker = Broker()
    group = Group(broker)
    broker.store(*(b"old %d" % number for number in range(20)))
    old_runs, finished = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> bool:
        if message.body == b"old 19":
            old_runs.set()
            await finished.wait()
        return True

    group.handle = handle
    one = group.member("one")
    await until_async(old_runs.is_set)
    broker.make_anew(*(b"new %d" % number for number in range(50)))
    await turns()
    finished.set()
    await until_async(lambda: sum(body.startswith(b"new") for body in group.seen) == 50)
    assert set(group.seen.values()) == {1}
    await until_async(lambda: broker.committed.get(QUEUES[0]) == 50)
    await one.close()
    assert broker.committed[QUEUES[0]] == 50


async def test_a_message_of_a_deleted_topic_is_not_given_back_for_the_one_at_its_offset_now() -> None:
    broker = Broker()
    group = Group(broker)
    broker.store(b"old")
    old_runs, fails = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> bool:
        if message.body == b"old":
            old_runs.set()
            await fails.wait()
            return False
        return True

    group.handle = handle
    one = group.member("one")
    await until_async(old_runs.is_set)
    broker.make_anew(b"new")
    await turns()
    fails.set()
    await until_async(lambda: broker.committed.get(QUEUES[0]) == 1)
    assert group.seen == {b"old": 1, b"new": 1}
    assert not broker.sent_back
    await one.close()


async def test_rb_42_the_broker_decides_where_a_group_begins_and_the_members_policy_goes_along() -> None:
    """A member that began each new queue by its policy would skip what was sent before it had it."""
    broker = Broker()
    broker.decided = 1
    broker.store(b"before", b"since the group began")
    group = Group(broker)
    one = group.member("one", start=StartFrom.LAST)
    await until_async(lambda: len(owned(one)) == len(QUEUES))
    broker.store(b"after")
    await until_async(lambda: len(group.seen) == 2)
    assert group.seen == {b"since the group began": 1, b"after": 1}
    assert set(broker.begun) == {StartPolicy(StartFrom.LAST, broker.begun[0].timestamp_ms)}
    await one.close()


async def test_a_join_and_a_leave_in_the_middle_repeat_and_lose_nothing() -> None:
    broker = Broker()
    group = Group(broker)

    async def slow(_: ReceivedMessage) -> bool:
        await asyncio.sleep(0.0005)
        return True

    group.handle = slow
    one = group.member("one")
    await until_async(lambda: owned(one) == [0, 1, 2, 3])
    for number in range(400):
        broker.store(b"%d" % number, queue=QUEUES[number % 4])
    await until_async(lambda: len(group.seen) > 50)
    two = group.member("two")
    await until_async(lambda: (owned(one), owned(two)) == ([0, 1], [2, 3]))
    for number in range(400, 600):
        broker.store(b"%d" % number, queue=QUEUES[number % 4])
    await until_async(lambda: len(group.seen) > 420)
    await one.close()
    await until_async(lambda: owned(two) == [0, 1, 2, 3])
    await until_async(lambda: len(group.seen) == 600)
    await two.close()
    assert set(group.seen.values()) == {1}
    assert broker.committed == dict.fromkeys(QUEUES, 150)
    assert not broker.holders


async def test_the_callback_hears_of_a_loss_before_the_next_owner_hears_of_the_gain() -> None:
    broker = Broker()
    group = Group(broker)
    one = group.member("one")
    await until_async(lambda: group.notices == [("one", [0, 1, 2, 3], [])])
    two = group.member("two")
    await until_async(lambda: sum(len(gained) for name, gained, _ in group.notices if name == "two") == 2)
    lost_at = [index for index, (name, _, lost) in enumerate(group.notices) if name == "one" and lost]
    gained_at = [index for index, (name, gained, _) in enumerate(group.notices) if name == "two" and gained]
    assert min(lost_at) < min(gained_at)
    await asyncio.gather(one.close(), two.close())


async def test_queues_that_come_later_are_read_as_soon_as_a_broker_tells_of_a_change() -> None:
    """NS-8: also when the change came between the first route and the first word with the broker."""
    broker = Broker()
    broker.route = QUEUES[:1]
    group = Group(broker)
    one = group.member("one")
    await until_async(lambda: owned(one) == [0])
    broker.route = QUEUES[:2]
    broker.mail["one"].put_nowait(AssignmentChanged("t"))
    await until_async(lambda: owned(one) == [0, 1])
    broker.fail["session"] = [ConnectionFailed("starting")]
    broker.restart()
    broker.route = QUEUES
    await until_async(lambda: owned(one) == [0, 1, 2, 3])
    await one.close()


async def test_a_broker_restart_moves_no_queue_and_repeats_nothing() -> None:
    broker = Broker()
    group = Group(broker)
    one, two = group.member("one"), group.member("two")
    await until_async(lambda: (owned(one), owned(two)) == ([0, 1], [2, 3]))
    for queue in QUEUES:
        broker.store(*(b"%d-%d" % (queue.queue_id, n) for n in range(10)), queue=queue)
    await until_async(lambda: len(group.seen) == 40)
    broker.restart()
    broker.fail["session"] = [ConnectionFailed("starting")]  # one of the two comes back later
    await until_async(lambda: set(broker.mail) == {"one", "two"} and len(broker.holders) == 4)
    assert (owned(one), owned(two)) == ([0, 1], [2, 3])
    broker.store(b"after", queue=QUEUES[3])
    await until_async(lambda: group.seen[b"after"] == 1)
    assert set(group.seen.values()) == {1}
    await asyncio.gather(one.close(), two.close())


async def test_a_broker_that_leaves_gets_its_queues_back_with_all_progress_and_nothing_comes_twice() -> None:
    broker = Broker()
    group = Group(broker)
    one, two = group.member("one"), group.member("two")
    await until_async(lambda: (owned(one), owned(two)) == ([0, 1], [2, 3]))
    for queue in QUEUES:
        broker.store(*(b"%d-%d" % (queue.queue_id, n) for n in range(10)), queue=queue)
    await until_async(lambda: len(group.seen) == 40)
    for mailbox in broker.mail.values():
        mailbox.put_nowait(BrokerLeaving(5_000))
    await until_async(lambda: not broker.holders)
    assert broker.committed == dict.fromkeys(QUEUES, 10)
    one.pause(paused=False)  # a round: nothing is asked of a broker that goes
    await until_async(lambda: owned(one) == owned(two) == [])
    assert not broker.holders
    broker.restart()
    await until_async(lambda: (owned(one), owned(two)) == ([0, 1], [2, 3]))
    broker.store(b"after", queue=QUEUES[3])
    await until_async(lambda: group.seen[b"after"] == 1)
    assert set(group.seen.values()) == {1}
    await asyncio.gather(one.close(), two.close())


async def test_a_member_whose_lock_went_to_another_stops_without_a_commit() -> None:
    broker = Broker()
    group = Group(broker)
    one = group.member("one")
    await until_async(lambda: len(owned(one)) == 4)
    broker.holders[QUEUES[0]] = "stranger"
    broker.fail["pull"] = [PreconditionFailed("somebody else holds the queue")]
    broker.store(b"x", queue=QUEUES[0])
    await until_async(lambda: owned(one) == [1, 2, 3])
    await one.close()


async def test_a_queue_that_another_member_wants_is_kept_while_it_is_assigned() -> None:
    """Members may see the group differently for a moment. The lock is released after the last commit only."""
    broker = Broker()
    group = Group(broker)
    one = group.member("one")
    await until_async(lambda: len(owned(one)) == 4)
    broker.mail["one"].put_nowait(QueueWanted(QUEUES[0]))
    await turns()
    assert broker.holders.get(QUEUES[0]) == "one"
    await one.close()


async def test_a_queue_that_is_granted_while_its_broker_leaves_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker waits for its holders, and would wait for its whole drain time."""
    broker, answered = Broker(), asyncio.Event()
    group, lock = Group(broker), Calls.lock

    async def slowly(calls: Calls, *args: Any, **options: Any) -> list[LockAnswer]:
        answers = await lock(calls, *args, **options)
        await answered.wait()
        return answers

    monkeypatch.setattr(Calls, "lock", slowly)
    one = group.member("one")
    await until_async(lambda: len(broker.holders) == 4)
    broker.mail["one"].put_nowait(BrokerLeaving(5_000))
    await turns()
    answered.set()
    await until_async(lambda: not broker.holders)
    assert owned(one) == []
    await one.close()


async def test_last_starts_at_the_end_and_commits_that_at_once() -> None:
    broker = Broker()
    broker.store(b"old", b"older")
    group = Group(broker)
    one = group.member("one", start=None)
    await until_async(lambda: broker.committed.get(QUEUES[0]) == 2)
    broker.store(b"new")
    await until_async(lambda: group.seen == {b"new": 1})
    await one.close()


async def test_timestamp_starts_where_the_broker_says() -> None:
    broker = Broker()
    broker.store(b"0", b"1", b"2")
    group = Group(broker)
    one = group.member("one", start=StartFrom.TIMESTAMP)
    await until_async(lambda: group.seen == {b"2": 1})
    await one.close()


async def test_rb_30_a_queue_whose_start_is_unknown_is_unlocked_and_tried_again() -> None:
    broker = Broker()
    broker.fail["query_offsets"] = [ConnectionFailed("down")] * 2
    group = Group(broker)
    one = group.member("one", start=StartFrom.LAST)
    await until_async(lambda: owned(one) == [0, 1, 2, 3])
    await one.close()


async def test_rb_48_an_offset_below_the_smallest_one_goes_on_there() -> None:
    broker = Broker()
    broker.store(b"0", b"1", b"2")
    broker.minimum = 1
    for queue in QUEUES[1:]:
        broker.store(b"", queue=queue)
    group = Group(broker)
    one = group.member("one")
    await until_async(lambda: group.seen[b"1"] == group.seen[b"2"] == 1)
    assert group.seen[b"0"] == 0
    await one.close()


async def test_failed_messages_come_again_and_end_as_dead_letters_even_if_sending_back_fails_first() -> None:
    broker = Broker()
    broker.fail["send_back"] = [ConnectionFailed("down")]
    group = Group(broker)

    async def picky(message: ReceivedMessage) -> bool:
        if message.body == b"odd":
            raise ValueError("odd")
        return message.body != b"bad"

    group.handle = picky
    one = group.member("one", max_attempts=3, consume_batch=1, retry="local")
    broker.store(b"bad", b"good", b"odd")
    await until_async(lambda: sorted(broker.dead_letters) == [(0, 3), (2, 3)])
    assert group.seen[b"good"] == 1
    await one.close()
    assert broker.committed[QUEUES[0]] == 3


async def test_lost_commits_go_again() -> None:
    broker = Broker()
    group = Group(broker)
    one = group.member("one", commit_interval_ms=100)
    broker.store(b"x")
    await until_async(lambda: group.seen[b"x"] == 1)
    broker.fail["commit"] = [ConnectionFailed("down")]
    broker.store(b"y")
    await until_async(lambda: broker.committed.get(QUEUES[0]) == 2)
    await one.close()


async def test_a_commit_that_is_lost_while_a_member_leaves_is_tried_again() -> None:
    """The next owner begins where it is committed, and would be given finished messages."""
    broker = Broker()
    group = Group(broker)
    one = group.member("one", commit_interval_ms=60_000)
    await until_async(lambda: len(owned(one)) == 4)
    broker.store(b"x")
    await until_async(lambda: group.seen[b"x"] == 1)
    broker.fail["commit"] = [ConnectionFailed("down"), ConnectionFailed("down")]
    await one.close()
    assert (broker.fail["commit"], broker.committed.get(QUEUES[0])) == ([], 1)


async def test_pulls_are_put_off_while_a_listener_is_slow_and_go_on_after() -> None:
    broker = Broker()
    group = Group(broker)
    gate = asyncio.Event()

    async def hold(_: ReceivedMessage) -> bool:
        await gate.wait()
        return True

    group.handle = hold
    one = group.member("one", pull_threshold_queue=10, pull_batch=5)
    broker.store(*(b"%d" % n for n in range(50)))
    await until_async(
        lambda: max((offset for _, queue, offset, _ in broker.pulls if queue == QUEUES[0]), default=0) == 5
    )
    await turns()
    assert max(offset for _, queue, offset, _ in broker.pulls if queue == QUEUES[0]) == 5
    gate.set()
    await until_async(lambda: len(group.seen) == 50)
    await one.close()


async def test_the_servers_assignment_is_followed_with_its_generation_and_an_unknown_or_late_one_changes_nothing() -> (
    None
):
    broker = Broker()
    group = Group(broker)
    broker.assignments["one"] = Assignment(True, (QUEUES[1], QUEUES[3]), Generation(1, 5))
    one = group.member("one", ask_server=True)
    await until_async(lambda: owned(one) == [1, 3])
    await until_async(lambda: (("one", QUEUES[1], 0, Generation(1, 5))) in broker.pulls)
    for value in (Assignment(False, ()), Assignment(True, (), Generation(1, 4))):
        broker.assignments["one"] = value
        asked = broker.asked
        broker.mail["one"].put_nowait(AssignmentChanged("t"))
        await until_async(lambda: broker.asked > asked)  # noqa: B023 - of this turn
        await turns()
        assert owned(one) == [1, 3]
    broker.assignments["one"] = Assignment(True, (), Generation(1, 6))
    broker.mail["one"].put_nowait(AssignmentChanged("t"))
    await until_async(lambda: owned(one) == [])  # XO-3: an empty set drops everything
    await one.close()


async def test_a_server_that_will_decide_in_a_moment_is_asked_again_soon_even_if_it_tells_nothing() -> None:
    broker = Broker()
    group = Group(broker)
    broker.assignments["one"] = Assignment(False, ())
    one = group.member("one", ask_server=True)
    await asyncio.sleep(0.05)
    assert owned(one) == []
    broker.assignments["one"] = Assignment(True, (QUEUES[2],), Generation(1, 5))
    await until_async(lambda: owned(one) == [2])
    await one.close()


async def test_a_groups_new_strategy_switches_its_living_members_and_back_without_a_repeat() -> None:
    broker = Broker()
    group = Group(broker)
    one, two = group.member("one", ask_server=None), group.member("two", ask_server=None)
    await until_async(lambda: (owned(one), owned(two)) == ([0, 1], [2, 3]))
    assert broker.asked == 0
    for number in range(200):
        broker.store(b"%d" % number, queue=QUEUES[number % 4])
    await until_async(lambda: len(group.seen) > 20)
    broker.assignments = {
        "one": Assignment(True, (QUEUES[0], QUEUES[2]), Generation(1, 5)),
        "two": Assignment(True, (QUEUES[1], QUEUES[3]), Generation(1, 5)),
    }
    broker.configure("STICKY")
    await until_async(lambda: (owned(one), owned(two)) == ([0, 2], [1, 3]))
    three = group.member("three", ask_server=None)  # hears of it in its welcome
    broker.assignments["three"] = Assignment(True, (), Generation(1, 5))
    await until_async(lambda: three.balanced)
    assert owned(three) == []
    for number in range(200, 400):
        broker.store(b"%d" % number, queue=QUEUES[number % 4])
    broker.configure("")
    await until_async(lambda: (owned(one), owned(three), owned(two)) == ([0, 1], [2], [3]))
    await until_async(lambda: len(group.seen) == 400)
    await asyncio.gather(one.close(), two.close(), three.close())
    assert set(group.seen.values()) == {1}


async def test_a_server_that_shares_whole_brokers_leaves_the_dividing_to_the_members() -> None:
    broker = Broker()
    group = Group(broker)
    whole = Assignment(True, (MessageQueue("t", "b", -1),))
    broker.assignments = {"one": whole, "two": whole}
    one, two = group.member("one", ask_server=True), group.member("two", ask_server=True)
    await until_async(lambda: (owned(one), owned(two)) == ([0, 1], [2, 3]))
    await asyncio.gather(one.close(), two.close())


async def test_rb_5_an_unsubscribed_topic_is_handed_over() -> None:
    broker = Broker()
    group = Group(broker)
    one = group.member("one")
    await until_async(lambda: len(owned(one)) == 4)
    one.unsubscribe("t")
    await until_async(lambda: not broker.holders)
    assert owned(one) == []
    await one.close()


async def test_closing_does_not_wait_longer_than_the_drain_time_for_a_stuck_listener() -> None:
    broker = Broker()
    group = Group(broker)

    async def stuck(_: ReceivedMessage) -> bool:
        await asyncio.Event().wait()
        return True

    group.handle = stuck
    one = group.member("one", drain_ms=50)
    broker.store(b"x")
    await until_async(lambda: group.seen[b"x"] == 1)
    async with asyncio.timeout(60):  # the listener never ends
        await one.close()
    assert broker.committed.get(QUEUES[0], 0) == 0


@pytest.mark.parametrize("count", [1, 3])
async def test_any_number_of_members_starting_together_settle_without_repeats(count: int) -> None:
    broker = Broker()
    for number in range(200):
        broker.store(b"%d" % number, queue=QUEUES[number % 4])
    group = Group(broker)
    members = [group.member(f"m{number}") for number in range(count)]
    await until_async(lambda: sum(len(owned(member)) for member in members) == 4)
    await until_async(lambda: len(group.seen) == 200)
    await asyncio.gather(*(member.close() for member in members))
    assert set(group.seen.values()) == {1}
