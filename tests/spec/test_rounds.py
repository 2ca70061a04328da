"""Promises about what a rebalance round changes, says and leaves alone, in each of their parts: semantics section 9."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
from evenq_broker.metrics.broker_metrics import broker_metrics

import evenq
from evenq.allocation import Config
from evenq.client.core.calls import QueueRange
from evenq.client.core.groups.rebalance import FindStart, RebalanceTable, RetrySoon, Unlock
from evenq.client.loops.reading.starting import StartOffsets
from evenq.errors import BadRequest, ConnectionFailed, RequestTimeout
from evenq.model import QueueOffset, StartFrom
from evenq.runtime.clock import FakeClock
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2

QUIET = {"retry": "local"}
RETRY = "%RETRY%g"
T0 = evenq.MessageQueue("t", "a", 0)


def member_of(consumer):
    return consumer._pushing._member


def said(caplog, *words: str) -> list[logging.LogRecord]:
    """Records whose text has all these words."""
    return [record for record in caplog.records if all(word in record.message for word in words)]


class Dividing:
    """A strategy that does `odd` with one topic and gives all queues of the others."""

    name = "ODD"

    def __init__(self, topic: str, odd) -> None:
        self.topic, self.odd = topic, odd

    def allocate(self, group, own_id, queues, ids):
        return self.odd(list(queues), list(ids)) if queues[0].topic == self.topic else list(queues)


@pytest.mark.parametrize(("error", "logged"), [(BadRequest("cannot"), False), (RuntimeError("a bug"), True)])
async def test_rb_2_rb_3_a_retry_topic_that_cannot_be_divided_is_no_imbalance_and_only_a_bug_is_logged(
    world, caplog, error, logged
):
    """Its queues are not read, and the others go on."""

    def fail(queues, ids):
        raise error

    await world.start(delay_levels="1s")
    await world.create("t")

    async def listener(messages):
        return messages[0].delivery_attempt > 1

    one = await world.push(listener=listener, strategy=Dividing(RETRY, fail))
    await world.ready(one)
    await world.publish("x")
    await world.until(lambda: world.has(RETRY))
    await world.clock.advance(25_000)
    assert world.saw() == ["x"], "no member reads the retry topic"
    assert one.balanced
    assert any(record.levelno >= logging.WARNING for record in said(caplog, RETRY)) is logged
    await world.publish("y")
    await world.until(lambda: world.saw() == ["x", "y"])


@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
async def test_rb_9_rb_18_a_topic_that_has_no_queues_any_more_keeps_those_that_are_read_and_is_warned_of(
    world, caplog, tmp_path, model
):
    await world.start()
    await world.create("t", 2)
    options = evenq.PushOptions(offsets_folder=tmp_path, route_refresh_ms=1_000, **QUIET)
    events = []
    one = await world.push(model=model, options=options, on_rebalance=lambda *change: events.append(change))
    await world.slow_until(lambda: sum(len(gained) for gained, _ in events) == 2)
    assert len(one.queues) == 2
    assert not said(caplog, "no assignment for topic t now: it has no readable queue")
    before = len(events)
    assignment = member_of(one).ownership._assignment
    routes = assignment._routes

    async def empty(topic):
        return replace(await routes.get(topic), readable=())

    assignment._routes = SimpleNamespace(get=empty)
    await world.clock.advance(25_000)
    assert len(one.queues) == 2, "nothing is changed"
    assert len(events) == before, "and none is reported"
    assert not one.balanced
    assert said(caplog, "no assignment for topic t now: it has no readable queue")


async def test_rb_11_every_member_divides_the_same_sorted_queues_and_ids_whatever_order_it_heard_them_in(world):
    for name in "ab":
        await world.start(name)
    await world.create("t", 2)
    given = []

    def note(queues, ids):
        given.append((queues, ids))
        return queues

    members = [await world.push(name, group=name, strategy=Dividing("t", note)) for name in ("one", "two")]
    await world.ready(*members, queues=8)
    membership = [member_of(member) for member in members]
    known = tuple(member.sessions.members()[0] for member in membership)
    route = await membership[0].ownership._routes.get("t")
    assert len(route.readable) == 4
    for member, backward in zip(membership, (False, True), strict=True):
        queues = sorted(route.readable, reverse=backward)

        async def heard(_topic, queues=queues):
            return replace(route, readable=tuple(queues))

        member.ownership._assignment._routes = SimpleNamespace(get=heard)
        member.sessions.members = lambda backward=backward: known[::-1] if backward else known
    given.clear()
    for member in membership:
        await member.ownership._assignment.assigned("t")
    assert given == [(sorted(route.readable), ["one", "two"])] * 2


async def test_rb_13_no_result_at_all_is_an_empty_one_and_drops_all(world):
    await world.start()
    await world.create("t", 2)
    strategy = Dividing("t", lambda queues, _ids: queues + queues)
    one = await world.push(strategy=strategy, options=evenq.PushOptions(**QUIET))
    await world.ready(one, queues=2)
    await world.clock.advance(500)
    assert world.calls("/LockQueues") == 1, "what stands there twice is taken once"
    strategy.odd = lambda _queues, _ids: None
    member_of(one).ownership.wake()
    await world.until(lambda: one.queues == [])
    assert one.balanced


async def test_rb_14_rb_38_what_is_lost_is_logged_and_told_to_the_user_and_every_broker_hears_of_it_at_once(
    world, caplog
):
    caplog.set_level(logging.INFO, "evenq")
    brokers = [await world.start(name, session_beat_interval_ms=60_000, session_timeout_ms=200_000) for name in "ab"]
    await world.create("t", 1)
    events = []

    async def on_rebalance(gained, lost):
        events.append((list(gained), list(lost)))

    one = await world.push("one", on_rebalance=on_rebalance, options=evenq.PushOptions(**QUIET))
    await world.ready(one, queues=2)
    await world.clock.advance(100)
    mine = one.queues
    assert sorted(queue for gained, _ in events for queue in gained) == mine
    beats = {broker.runtime.settings.broker_name: [] for broker in brokers}
    for name, broker in world.brokers.items():

        def counted(group, client_id, now_ms, renew=broker.membership.members.renew, name=name):
            beats[name].append(client_id)
            renew(group, client_id, now_ms)

        broker.membership.members.renew = counted
    events.clear()
    caplog.clear()
    two = await world.push("two", options=evenq.PushOptions(**QUIET))
    await world.until(lambda: len(one.queues) == len(two.queues) == 1)
    await world.clock.advance(100)
    (lost,) = set(mine) - set(one.queues)
    assert events == [([], [lost])]
    assert len(said(caplog, f"group g: released 1 queues: {lost}")) == 1
    assert len(said(caplog, "group g: 1 queues of topic t assigned to this member")) == 2, "both shares"
    assert all("one" in heard for heard in beats.values()), beats


async def test_rb_20_rb_21_a_queue_whose_pulls_do_not_end_is_taken_anew_after_two_minutes_and_said_to_be(world, caplog):
    """It goes on at the stored offset, and no sooner than that."""
    await world.start()
    await world.create("t")
    options = evenq.PushOptions(commit_interval_ms=100, **QUIET)
    assert options.pull_idle_ms == 120_000
    one = await world.push(options=options)
    await world.ready(one)
    await world.publish("a")
    await world.until(lambda: world.saw() == ["a"])
    await world.clock.advance(500)
    (first,) = member_of(one).held.processes()
    calls = one._pushing._member._calls
    pull, hangs = calls.pull, True

    async def hanging(*result, **rest):
        return await (asyncio.Event().wait() if hangs else pull(*result, **rest))

    calls.pull = hanging
    await world.publish("b")  # brought by the pull that is parked already
    await world.until(lambda: world.saw() == ["a", "b"])
    await world.clock.advance(118_000)
    assert member_of(one).held.processes() == [first]
    assert not said(caplog, "queue t@a:0 was not pulled for 120000 ms, it is locked anew")
    hangs = False
    await world.publish("c")
    await world.clock.advance(30_000)
    (record,) = said(caplog, "queue t@a:0 was not pulled for 120000 ms, it is locked anew")
    assert record.levelno == logging.ERROR
    (second,) = member_of(one).held.processes()
    assert second is not first
    assert world.saw() == ["a", "b", "c"]


async def test_al_14_better_two_lists_that_name_one_queue_are_warned_of_once_and_only_one_member_reads_it(
    world, caplog
):
    """And counted by the broker."""

    def wanted(broker):
        (metric,) = [one for one in broker_metrics(broker) if one.name == "evenq_broker_wanted_queues"]
        return dict(metric.read())

    broker = await world.start()
    await world.create("t", 2)
    both, options = (T0, evenq.MessageQueue("t", "a", 1)), evenq.PushOptions(**QUIET)
    one = await world.push("one", strategy=Config(both), options=options)
    await world.ready(one, queues=2)
    assert wanted(broker) == {("g",): 0}
    two = await world.push("two", strategy=Config((T0,)), options=options)
    await world.clock.advance(115_000)
    assert not said(caplog, "another member has held it")
    await world.clock.advance(15_000)
    (record,) = said(
        caplog, "queue t@a:0 is assigned to this member", "CONFIG, client two", "another member has held it for"
    )
    assert record.levelno == logging.WARNING
    await world.clock.advance(130_000)
    assert len(said(caplog, "another member has held it")) == 1
    assert wanted(broker) == {("g",): 1}
    assert (len(one.queues), two.queues, two.balanced) == (2, [], False)
    await world.during(one.close())
    await world.until(lambda: two.queues == [T0])
    assert wanted(broker) == {("g",): 0}


@pytest.mark.parametrize("in_hand", [False, True])
async def test_rb_20_nothing_happens_to_a_pull_consumer_whose_user_does_not_pull(world, caplog, in_hand):
    """For as long as it likes, with messages in hand or without."""
    await world.start()
    await world.create("t")
    events = []
    options = evenq.PullOptions(pull_threshold_queue=2, pull_batch=2)
    one = await world.pull(on_rebalance=lambda gained, lost: events.append((gained, lost)), options=options)
    await world.ready(one)
    await world.until(lambda: len(events) == 1)
    if in_hand:
        await world.publish(*range(5))
    (first,) = one._polling._member.held.processes()
    await world.clock.advance(400_000)
    assert one._polling._member.held.processes() == [first]
    assert (one.queues, len(events)) == ([T0], 1)
    assert not said(caplog, "was not pulled for")
    if not in_hand:
        await world.publish(*range(5))
    got = []
    while len(got) < 5:
        got += [message.body for message in await world.during(one.poll(5, wait_ms=1_000))]
    assert got == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.spec("OC-13")
async def test_rb_25_an_ordered_listener_that_never_ends_gives_its_queue_up_after_revoke_ms_and_is_warned_of(
    world, caplog
):
    await world.start(revoke_ms=2_000)
    await world.create("t")

    async def stuck(messages):
        await asyncio.Event().wait()

    options = evenq.PushOptions(drain_ms=500, lock_wait_ms=500, **QUIET)
    one = await world.push("zzz", listener=stuck, ordered=True, options=options)
    await world.ready(one)
    await world.publish("x")
    await world.until(lambda: world.saw() == ["x"])
    began_ms = world.clock.monotonic_ms()
    two = await world.push("aaa", ordered=True, options=options)
    await world.until(lambda: two.queues == [T0])
    assert 2_000 <= world.clock.monotonic_ms() - began_ms <= 5_000
    assert said(caplog, "messages of t@a:0 were not finished within 2000 ms")
    await world.until(lambda: world.saw() == ["x", "x"])


@pytest.mark.parametrize("offset", [None, -1, -2])
def test_rb_30_rb_31_no_start_offset_or_a_negative_one_adds_nothing_in_this_round(offset):
    table = RebalanceTable()
    table.assign("t", [T0])
    assert table.locked(T0, granted=True, committed=-1) == [FindStart(T0)]
    assert table.start_found(T0, offset if offset is None else QueueOffset(offset)) == [Unlock(T0), RetrySoon()]
    assert table.working() == set()
    assert not table.balanced()


async def test_rb_33_after_a_refused_lock_another_round_comes_in_500_ms(world):
    broker = await world.start()
    await world.create("t")
    await world.publish("x")
    options = evenq.PushOptions(drain_ms=60_000, **QUIET)
    holder = await world.push("zzz", listener=lambda _: asyncio.Event().wait(), options=options)
    await world.ready(holder)
    await world.until(lambda: len(world.seen) == 1)
    # the broker refuses at once, whatever a member would wait for
    one = await world.push("aaa", options=evenq.PushOptions(lock_wait_ms=0, **QUIET))
    await world.until(lambda: member_of(one).ownership._rounds > 0)
    await world.clock.advance(600)
    ownership, locks, times = member_of(one).ownership, member_of(one).ownership.locks, []
    take = locks.take

    async def noted(*result):
        times.append(world.clock.monotonic_ms())
        await take(*result)

    locks.take = noted
    await world.clock.advance(5_000)
    assert broker.membership.locks.holder("g", T0) == "zzz"
    assert ownership._plan.options.lock_retry_ms == 500
    assert 8 <= len(times) <= 10
    assert {after - before for before, after in itertools.pairwise(times)} <= set(range(500, 601)), times


async def test_rb_34_by_default_the_first_pull_comes_at_once(world):
    await world.start()
    await world.create("t")
    one = await world.push(options=evenq.PushOptions(**QUIET))
    await world.ready(one)
    await world.clock.advance(20)
    assert world.calls("Data/Pull") == 1


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(-1, [500, 0, 0, 0, 120, 0]), (77, [77] * 6), (0, [0] * 6), (-2, [None] * 6)],
)
async def test_rb_43_rb_41_rb_47_the_six_cases_with_each_stored_offset_as_a_member_finds_them(stored, expected):
    """The stored offset is read from the store, and asked for before any policy counts."""

    async def find(policy: StartFrom, topic: str) -> QueueOffset | None:
        async def report(*_told, **_rest):
            return QueueRange(0, 500, stored, 120)

        async def begin(*_told, **_rest):
            raise evenq.errors.IllegalOffset("an older broker does not decide")

        async def address(_queue):
            return "b:1"

        reading = SimpleNamespace(
            clustering=False,
            start_policy=lambda: policy,
            start_timestamp_ms=9,
            group="g",
            options=SimpleNamespace(young_from_first=False),
            table_of=lambda _topic: None,
        )
        starting = StartOffsets(
            reading,
            calls=SimpleNamespace(query_offsets=report, begin=begin),
            progress=SimpleNamespace(
                store=SimpleNamespace(at_brokers=True), table=SimpleNamespace(identify=lambda *_: None)
            ),
            address=address,
            generation=lambda _topic: None,
            routes=SimpleNamespace(was_missing=lambda _topic: False),
            troubles=SimpleNamespace(),
            clock=FakeClock(),
        )
        return (await starting.find(evenq.MessageQueue(topic, "b", 0)))[0]

    cases = [(policy, topic) for policy in StartFrom for topic in ("t", RETRY)]
    assert [(policy.value, topic) for policy, topic in cases][::2] == [
        ("LAST", "t"),
        ("FIRST", "t"),
        ("TIMESTAMP", "t"),
    ]
    assert [await find(policy, topic) for policy, topic in cases] == expected


async def test_rb_45_without_a_time_it_is_half_an_hour_ago_and_the_first_message_stored_since_then_is_the_start(world):
    await world.start()
    await world.create("t")
    for body, pause_ms in (("31 min ago", 2 * 60_000), ("29 min ago", 1_000), ("later", 29 * 60_000 - 1_000)):
        await world.publish(body)
        world.clock.jump_wall(pause_ms)
    one = await world.push(start_from="TIMESTAMP", options=evenq.PushOptions(**QUIET))
    await world.ready(one)
    await world.until(lambda: len(world.seen) == 2)
    assert world.saw() == ["29 min ago", "later"]


@pytest.mark.parametrize("kind", ["ordered", "pull"])
async def test_xo_1_ordered_and_pull_consumers_may_ask_the_server_too(world, kind):
    await world.start()
    await world.create("t", 4)
    await world.group("g", strategy="AVG")
    rest = {"ordered": True, "options": evenq.PushOptions(**QUIET)} if kind == "ordered" else {}
    make = world.push if kind == "ordered" else world.pull
    members = [await make(name, assignment="server", **rest) for name in ("one", "two")]
    await world.until(lambda: [len(member.queues) for member in members] == [2, 2])
    assert [[queue.queue_id for queue in member.queues] for member in members] == [[0, 1], [2, 3]]
    assert world.calls("Assignment/Query") > 0


def answering(world, change):
    """Let `change` edit each answer about the topic `t`."""
    ask = world.net.unary

    async def changed(address, method, request, **rest):
        answer = await ask(address, method, request, **rest)
        if not method.endswith("Assignment/Query"):
            return answer
        if assignment_pb2.AssignmentRequest.FromString(request).topic != "t":
            return answer
        response = assignment_pb2.AssignmentResponse.FromString(answer)
        change(response)
        return response.SerializeToString()

    world.net.unary = changed


async def test_xo_2_better_a_question_that_fails_changes_nothing_and_is_asked_again_in_each_round(world):
    """However often and in whatever way: no topic is pinned to the member's own dividing."""
    await world.start()
    await world.create("t", 2)
    await world.group("g", strategy="AVG")
    options = evenq.PushOptions(rebalance_interval_ms=1_000, route_refresh_ms=1_000, **QUIET)
    one = await world.push(assignment="server", options=options)
    await world.ready(one, queues=2)
    failing = []

    def fail(_told):
        if failing:
            raise failing[0]

    answering(world, fail)
    for error in (ConnectionFailed("no line"), RequestTimeout("no answer"), BadRequest("cannot")):
        failing[:] = [error]
        asked = world.calls("Assignment/Query")
        await world.create("t", len(one.queues) * 2)
        await world.clock.advance(6_000)
        assert world.calls("Assignment/Query") - asked >= 5, "in each round"
        mine = [queue.queue_id for queue in one.queues]
        assert not one.balanced
        failing.clear()
        await world.until(lambda mine=mine: len(one.queues) == 2 * len(mine))
        assert mine == list(range(len(one.queues) // 2)), "it had gone on with what it had"
        await world.until(lambda: one.balanced)


async def test_xo_5_what_is_not_assigned_is_dropped_what_is_new_is_locked_and_read_and_pop_is_nobodys_own(world):
    await world.start()
    await world.create("t", 4)
    await world.group("g", strategy="AVG")
    events, assigned, pop = [], [0, 1, 2, 3], set()

    def change(answer):
        del answer.queues[:]
        for number in [*assigned, *pop]:
            mode = assignment_pb2.POP if number in pop else assignment_pb2.PULL
            answer.queues.add(mode=mode).queue.CopyFrom(common_pb2.Queue(topic="t", broker_name="a", queue_id=number))

    answering(world, change)
    options = evenq.PushOptions(rebalance_interval_ms=1_000)
    one = await world.push(
        assignment="server",
        options=options,
        on_rebalance=lambda *news: events.append([[queue.queue_id for queue in part] for part in news]),
    )
    await world.ready(one, queues=4)
    subscribed = dict(member_of(one).subscriptions)
    assert RETRY in subscribed
    await world.clock.advance(500)
    events.clear()
    locks, pulled = (
        world.calls("/LockQueues"),
        {process.queue: process for process in member_of(one).held.processes()},
    )
    assigned[:] = [0, 1]
    pop.add(2)
    await world.until(lambda: [queue.queue_id for queue in one.queues] == [0, 1])
    await world.until(lambda: sorted(number for _, lost in events for number in lost) == [2, 3])
    assert all(not gained for gained, _ in events)
    assert world.calls("/LockQueues") == locks, "what stays is not taken anew"
    assert {process.queue: process for process in member_of(one).held.processes()}.items() <= pulled.items()
    assert one.balanced
    assert member_of(one).subscriptions == subscribed, "the mode changes no retry topic"
    await world.publish("dropped", queue=3)
    await world.publish("in mode pop", queue=2)
    await world.publish("kept", queue=1)
    await world.until(lambda: world.saw() == ["kept"])
    await world.clock.advance(5_000)
    assert world.saw() == ["kept"]
    assigned[:] = [0, 1, 3]
    await world.until(lambda: world.saw() == ["kept", "dropped"])
    assert world.calls("/LockQueues") == locks + 1
    assert world.brokers["a"].membership.locks.holder("g", one.queues[2]) == "me"
    assert events[-1] == [[3], []]


async def test_xo_4_an_assigned_entry_without_a_queue_is_ignored(world):
    await world.start()
    await world.create("t", 2)
    await world.group("g", strategy="AVG")
    ask = world.net.unary

    async def adding(address, method, request, **rest):
        answer = await ask(address, method, request, **rest)
        if not method.endswith("Assignment/Query"):
            return answer
        response = assignment_pb2.AssignmentResponse.FromString(answer)
        response.queues.add(mode=assignment_pb2.PULL)
        return response.SerializeToString()

    world.net.unary = adding
    one = await world.push(assignment="server", options=evenq.PushOptions(**QUIET))
    await world.ready(one, queues=2)
    await world.clock.advance(1_000)
    assert world.calls("Assignment/Query") > 0
    assert one.balanced
    assert one.queues == [T0, evenq.MessageQueue("t", "a", 1)]
