"""Promises about a consumer's start, its rebalance rounds and where it begins to read: semantics sections 8 and 9."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

import pytest

import evenq
from evenq.client.core.groups.rebalance import RebalanceTable, Stop
from evenq.client.core.reading.start_offset import start_policy, timestamp_of
from evenq.errors import BadRequest, ConnectionFailed
from evenq.model import QueueOffset, StartFrom

QUIET = {"retry": "local"}
T0 = evenq.MessageQueue("t", "a", 0)


def member_of(consumer):
    return consumer._pushing._member


# --- CS: start and triggers


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"group": ""}, "consumer group name is empty"),
        ({"subscriptions": {}}, "subscribes to nothing"),
        ({"subscriptions": {"a b": "*"}}, "a b"),
        ({"model": "SHARED"}, "SHARED"),
    ],
)
def test_cs_1_a_consumer_needs_a_group_and_a_subscription(changed, says):
    """And a listener, which Python itself asks for."""
    fields = {"group": "g", "subscriptions": {"t": "*"}, "listener": print, **changed}
    with pytest.raises(evenq.Error, match=says):
        evenq.PushConsumer(**fields)
    with pytest.raises(TypeError, match="listener"):
        evenq.PushConsumer(group="g", subscriptions={"t": "*"})


async def test_cs_2_cs_5_the_first_rebalance_comes_right_after_the_start(world):
    """CS-7: the first trigger."""
    await world.start()
    await world.create("t", 4)
    began_ms = world.clock.monotonic_ms()
    one = await world.push(options=evenq.PushOptions(**QUIET))
    await world.ready(one, queues=4)
    assert world.clock.monotonic_ms() - began_ms <= 100
    assert one.balanced


async def test_cs_4_cs_7_the_timer_is_a_setting_and_finds_what_nobody_told(world):
    await world.start()
    await world.create("t", 2)
    assert evenq.PushOptions().rebalance_interval_ms == 20_000
    one = await world.push(options=evenq.PushOptions(rebalance_interval_ms=7_000, **QUIET))
    await world.ready(one, queues=2)
    await world.clock.advance(7_500)
    rounds = member_of(one).ownership._rounds
    await world.clock.advance(21_000)
    assert member_of(one).ownership._rounds == rounds + 3


async def test_cs_7_a_notice_of_a_joined_or_left_member_and_of_new_queues_brings_a_round_at_once(world):
    """RG-5, NS-8: three causes, each within two seconds, not twenty."""
    await world.start()
    await world.create("t", 2)
    one = await world.push("one", options=evenq.PushOptions(**QUIET))
    await world.ready(one, queues=2)
    two = await world.push("two", options=evenq.PushOptions(**QUIET))
    await world.until(lambda: len(one.queues) == len(two.queues) == 1, limit_ms=2_000)
    await world.during(two.close())
    await world.until(lambda: len(one.queues) == 2, limit_ms=2_000)
    await world.create("t", 4)
    await world.until(lambda: len(one.queues) == 4, limit_ms=2_000)


class Odd:
    """A strategy that cannot divide one topic."""

    name = "ODD"

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def allocate(self, group, own_id, queues, ids):
        if queues[0].topic == self.wrong:
            raise RuntimeError("no idea")
        return list(queues)


@pytest.mark.parametrize("wrong", ["t", "u"])
async def test_cs_8_rb_2_rb_3_rb_12_a_topic_that_cannot_be_divided_stays_as_it_is_and_the_next_goes_on(
    world, wrong, caplog
):
    """RB-3: not balanced then, also if the wrong topic is not the last one (RB-4)."""
    await world.start()
    await world.create("t")
    await world.create("u")
    strategy = Odd("")
    one = await world.push(subscriptions={"t": "*", "u": "*"}, strategy=strategy, options=evenq.PushOptions(**QUIET))
    await world.ready(one, queues=2)
    assert one.balanced
    strategy.wrong = wrong
    other = "u" if wrong == "t" else "t"
    await world.create(other, 2)
    await world.until(lambda: len(one.queues) == 3)
    assert {queue.topic for queue in one.queues} == {"t", "u"}
    assert not one.balanced
    (line,) = {
        record.message for record in caplog.records if f"the assignment of topic {wrong} failed" in record.message
    }
    assert line.endswith("its queues stay as they are (client me, strategy ODD)")
    assert all("no idea" in str(record.exc_info) for record in caplog.records if record.message == line)


async def test_cs_8_a_consumer_that_cannot_be_rebalanced_does_not_stop_the_others_of_its_process(world, caplog):
    """Whatever its strategy raises, in whatever order they started, and it gets well by itself."""
    await world.start()
    await world.create("t")
    wrong = Odd("t")
    options = evenq.PushOptions(rebalance_interval_ms=1_000, **QUIET)
    before = await world.push("before", group="before", options=options)
    failing = await world.push("failing", group="failing", strategy=wrong, options=options)
    behind = await world.push("behind", group="behind", options=options)
    await world.ready(before, behind, queues=2)
    await world.clock.advance(5_000)
    assert [member.balanced for member in (before, failing, behind)] == [True, False, True]
    rounds = [member_of(member).ownership._rounds for member in (before, failing, behind)]
    assert min(rounds) >= 5, "each goes on with its rounds"
    assert "the assignment of topic t failed" in caplog.text
    await world.create("t", 2)
    await world.until(lambda: len(before.queues) == len(behind.queues) == 2)
    assert failing.queues == []
    wrong.wrong = ""
    await world.until(lambda: len(failing.queues) == 2)


async def test_rb_12_a_strategy_that_refuses_is_named_with_its_reason_and_leaves_the_queues_as_they_are(world, caplog):
    class Refusing(Odd):
        def allocate(self, group, own_id, queues, ids):
            if self.wrong:
                raise BadRequest("no room is known")
            return list(queues)

    await world.start()
    await world.create("t")
    strategy = Refusing("")
    one = await world.push(strategy=strategy, options=evenq.PushOptions(**QUIET))
    await world.ready(one)
    strategy.wrong = "t"
    member_of(one).ownership.wake()
    await world.until(lambda: not one.balanced)
    assert len(one.queues) == 1
    assert "topic t is refused, trying again until it is allowed: allocate strategy 'ODD': no room" in caplog.text


async def test_cs_9_a_paused_consumer_pulls_nothing_until_it_is_resumed(world):
    await world.start()
    await world.create("t")
    one = await world.push(options=evenq.PushOptions(rebalance_interval_ms=1_000, **QUIET))
    await world.ready(one)
    await world.publish("a")
    await world.until(lambda: world.saw() == ["a"])
    one.pause()
    await world.publish("b")  # a pull that was parked before brings it, and it is not taken
    await world.clock.advance(20_000)
    before = world.calls("Data/Pull")
    await world.publish("c")
    await world.clock.advance(20_000)
    assert world.calls("Data/Pull") == before
    assert world.saw() == ["a"]
    one.resume()
    await world.until(lambda: world.saw() == ["a", "b", "c"])


async def test_cs_10_the_servers_division_and_the_members_own_are_the_same(world):
    """Better: thin clients may ask."""
    await world.start("a")
    await world.start("b")
    await world.create("t", 3)
    shares = {}
    for assignment in ("client", "server"):
        await world.group(f"g-{assignment}", strategy="AVG")
        members = [
            await world.push(name, group=f"g-{assignment}", assignment=assignment, options=evenq.PushOptions(**QUIET))
            for name in ("x", "y")
        ]
        await world.until(lambda: [len(m.queues) for m in members] == [3, 3])  # noqa: B023 - waited for at once
        shares[assignment] = [member.queues for member in members]
    assert shares["client"] == shares["server"]


async def test_cs_13_from_assignment_to_reported_progress_in_eight_steps(world):
    await world.start()
    await world.create("t", 2)

    async def listener(messages):
        if messages[0].body == b"bad" and messages[0].delivery_attempt == 1:
            return False
        return None

    one = await world.push(listener=listener, options=evenq.PushOptions(consume_batch=1))
    await world.ready(one, queues=2)  # 1 assigned
    processes = member_of(one).held.processes()
    assert all(process.count == 0 for process in processes)  # 2 an empty process queue per new queue
    await world.publish("good", "bad", queue=1)  # 3, 4 pulled, and pulled again
    await world.until(lambda: len(world.seen) == 2)  # 5, 6 in hand, and run by the listener
    await world.until(lambda: world.calls("SendBack") == 1)  # 7 failure is sent back
    await world.clock.advance(5_100)
    assert await world.committed("g", queue=1) == 2  # 8 reported
    await world.until(lambda: world.saw() == ["good", "bad", "bad"], step_ms=50)


# --- RB: rounds


@pytest.mark.spec("RB-5", "RB-7", "SR-3")
@pytest.mark.parametrize("assignment", ["client", "server"])
async def test_rb_6_a_push_consumer_may_unsubscribe_and_subscribe_while_it_runs(world, assignment):
    """The offset is stored and the lock is let go, no matter what divides."""
    await world.start()
    await world.create("t")
    await world.create("u")
    await world.group("g", strategy="AVG")
    options = evenq.PushOptions(commit_interval_ms=60_000, **QUIET)
    one = await world.push(assignment=assignment, options=options)
    await world.ready(one)
    await world.publish("a")
    await world.until(lambda: len(world.seen) == 1)
    one.subscribe("u")
    await world.ready(one, queues=2)
    one.unsubscribe("t")
    await world.until(lambda: [queue.topic for queue in one.queues] == ["u"])
    await world.until(lambda: world.brokers["a"].membership.locks.holder("g", T0) == "")
    assert await world.committed("g") == 1


async def test_rb_9_rb_18_a_topic_without_queues_changes_nothing_and_is_reported_but_for_retry_topics(world, caplog):
    caplog.set_level(logging.INFO, logger="evenq.client")
    await world.start(auto_create_topics=False)
    await world.create("t")
    one = await world.push(subscriptions={"t": "*", "missing": "*"})
    await world.ready(one)
    await world.clock.advance(2_000)
    assert len(one.queues) == 1
    assert not one.balanced
    [lines] = [record for record in caplog.records if "waits for" in record.getMessage()]  # once, not once a round
    assert "topic missing" in lines.getMessage()
    assert "%RETRY%g" not in caplog.text
    await world.create("missing")
    await world.ready(one, queues=2)
    assert one.balanced


async def test_rb_10_without_a_member_list_nothing_changes_it_is_not_balanced_and_warned_of_once(world, caplog):
    await world.start()
    await world.create("t", 2)
    one = await world.push(options=evenq.PushOptions(**QUIET))
    await world.ready(one, queues=2)
    sessions = member_of(one).sessions
    sessions.members = lambda: None
    member_of(one).ownership.wake()
    await world.clock.advance(100)
    assert len(one.queues) == 2
    assert not one.balanced
    assert "no broker tells" not in caplog.text, "for a moment it is so after each start"
    for _ in range(2):
        await world.clock.advance(2_000)
        member_of(one).ownership.wake()
        await world.clock.advance(100)
    warned = [record for record in caplog.records if "no broker reports the members of the group" in record.message]
    assert [(record.levelno, record.message) for record in warned] == [
        (logging.WARNING, "group g: no assignment for topic t now: no broker reports the members of the group")
    ]
    del sessions.members
    member_of(one).ownership.wake()
    await world.until(lambda: one.balanced)


def test_rb_13_rb_22_an_empty_result_drops_all_and_duplicates_vanish():
    """RB-22: what is dropped is reported at once, in one list."""
    queues = [evenq.MessageQueue("t", "a", number) for number in range(2)]
    table = RebalanceTable(locks=False)
    assert len(table.assign("t", queues + queues)) == 2
    for queue in queues:
        table.start_found(queue, QueueOffset(0))
    assert table.assign("t", []) == [Stop(queue) for queue in queues]


async def test_rb_14_rb_38_a_change_is_logged_told_to_the_user_and_to_all_brokers(world, caplog):
    """RB-36: and a round without one is not."""
    caplog.set_level(logging.INFO, "evenq")
    await world.start("a")
    await world.start("b")
    await world.create("t")
    events, beats = [], 0

    async def on_rebalance(gained, lost):
        events.append((sorted(queue.broker_name for queue in gained), list(lost)))

    one = await world.push(on_rebalance=on_rebalance, options=evenq.PushOptions(**QUIET))
    sessions = member_of(one).sessions
    beat = sessions.beat

    def counting():
        nonlocal beats
        beats += 1
        beat()

    sessions.beat = counting
    await world.ready(one, queues=2)
    await world.clock.advance(100)
    assert sorted(name for gained, _ in events for name in gained) == ["a", "b"]
    assert beats >= 1
    logged = [record for record in caplog.records if "assigned to this member" in record.message]
    assert {record.message for record in logged} == {
        "group g: 2 queues of topic t assigned to this member: a/0, b/0 (2 queues among 1 members, strategy AVG, client me)"
    }
    quiet = (len(events), beats, len(logged))
    for _ in range(3):
        member_of(one).ownership.wake()
        await world.clock.advance(100)
    logged = [record for record in caplog.records if "assigned to this member" in record.message]
    assert (len(events), beats, len(logged)) == quiet


async def test_rb_29_rb_32_a_gained_queue_gets_one_new_process_queue_at_its_start_offset(world):
    await world.start()
    await world.create("t")
    await world.publish(*range(5))
    one = await world.push(start_from="LAST", options=evenq.PushOptions(**QUIET))
    await world.ready(one)
    (process,) = member_of(one).held.processes()
    assert (process.queue, process.next, process.count) == (T0, 5, 0)
    member_of(one).ownership.wake()
    await world.clock.advance(100)
    assert member_of(one).held.processes() == [process], "RB-23, RB-32: it is added once"


async def test_rb_34_the_first_pull_waits_for_a_setting(world):
    await world.start()
    await world.create("t")
    one = await world.push(options=evenq.PushOptions(first_pull_delay_ms=500, **QUIET))
    await world.ready(one)
    await world.clock.advance(450)
    assert world.calls("Data/Pull") == 0
    await world.clock.advance(100)
    assert world.calls("Data/Pull") == 1


async def test_rb_30_rb_50_a_start_that_cannot_be_found_says_why_and_is_tried_again(world, caplog):
    await world.start()
    await world.create("t")
    rpcs = world.net._hosts["a:8081"].rpcs
    query = rpcs.pop("/evenq.v1.Data/QueryOffsets")
    one = await world.push(start_from="LAST", options=evenq.PushOptions(lock_retry_ms=100, **QUIET))
    await world.clock.advance(2_000)
    assert one.queues == []
    assert "QueryOffsets" in caplog.text
    rpcs["/evenq.v1.Data/QueryOffsets"] = query
    await world.ready(one)


# --- RB: where a new queue starts


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("LAST", "new"),
        ("FIRST", "0"),
        ("CONSUME_FROM_LAST_OFFSET", "new"),
        ("CONSUME_FROM_FIRST_OFFSET", "0"),
        ("TIMESTAMP", "2"),
        ("CONSUME_FROM_TIMESTAMP", "2"),
    ],
)
async def test_rb_42_rb_45_a_group_that_never_read_starts_by_its_policy(world, start, first):
    """TIMESTAMP without a time is half an hour ago. RB-41: with a stored offset no policy counts."""
    await world.start()
    await world.create("t")
    await world.publish(0, 1)
    world.clock.jump_wall(31 * 60_000)
    await world.publish(2)
    one = await world.push(start_from=start, options=evenq.PushOptions(**QUIET))
    await world.ready(one)
    await world.publish("new")
    await world.until(lambda: world.saw()[-1:] == ["new"])
    assert world.saw()[0] == first
    await world.during(one.close())
    seen = len(world.seen)
    await world.publish("later")
    await world.push("two", start_from="FIRST", options=evenq.PushOptions(**QUIET))
    await world.until(lambda: len(world.seen) > seen)
    assert world.saw()[seen:] == ["later"]


@pytest.mark.parametrize(
    "name",
    ["CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET"],
)
def test_rb_44_three_old_names_mean_last(name):
    assert start_policy(name) is StartFrom.LAST
    with pytest.raises(BadRequest, match="LAST, FIRST"):
        start_policy("EARLIEST")


def test_rb_45_the_time_is_a_text_of_fourteen_digits():
    assert timestamp_of("20240229143000") == int(datetime(2024, 2, 29, 14, 30).timestamp() * 1_000)  # noqa: DTZ001
    for wrong in ("2024022914300", "20240230000000", "yesterday00000"):
        with pytest.raises(BadRequest, match="yyyyMMddHHmmss"):
            timestamp_of(wrong)


@pytest.mark.parametrize(("young_from_first", "seen"), [(False, ["new"]), (True, ["young", "new"])])
async def test_rb_46_whether_last_reads_a_young_topic_is_a_setting(world, young_from_first, seen):
    """The original starts at 0 while the messages are still in memory. Here LAST means what comes from now on, unless
    asked for; with a stored offset, and in a topic that has lost its first messages, the setting means nothing.
    """
    await world.start()
    await world.create("t")
    await world.publish("young")
    options = evenq.PushOptions(young_from_first=young_from_first, **QUIET)
    one = await world.push(start_from="LAST", options=options)
    await world.ready(one)
    await world.publish("new")
    await world.until(lambda: world.saw() == seen)
    await world.during(one.close())
    await world.publish("later")
    await world.push("two", start_from="LAST", options=options)
    await world.until(lambda: world.saw() == [*seen, "later"])


@pytest.mark.parametrize("gone", ["from memory", "the first ones"])
async def test_rb_46_a_topic_that_is_not_young_any_more_is_read_from_its_end_whatever_was_asked_for(world, gone):
    """Its messages are not in the broker's memory any more, or it has lost its first ones."""
    broker = await world.start(store={"cache_bytes": 0}) if gone == "from memory" else await world.start()
    await world.create("t")
    await world.create("other")
    await world.publish("old", "older")
    await world.publish("x" * 200, topic="other")
    topic_id = broker.catalog.topics.get("t").topic_id
    if gone == "the first ones":
        broker.ledger.store._queues[topic_id, 0].min_offset = 1
    assert broker.ledger.store.queue_range(topic_id, 0)[1] == 2
    options = evenq.PushOptions(young_from_first=True, **QUIET)
    one = await world.push(start_from="LAST", options=options)
    await world.ready(one)
    await world.publish("new")
    await world.until(lambda: bool(world.seen))
    assert world.saw() == ["new"]


async def test_rb_47_no_policy_skips_a_retry_that_came_before_the_retry_topic_was_read(world):
    await world.start(delay_levels="1s")
    await world.create("t")

    async def listener(messages):
        return messages[0].delivery_attempt > 1

    one = await world.push(listener=listener, start_from="TIMESTAMP")
    await world.ready(one)
    await world.publish("x")
    await world.until(lambda: world.saw() == ["x", "x"], step_ms=50)


async def test_rb_31_a_lock_that_was_granted_without_our_hearing_of_it_is_let_go_for_the_next_owner(world):
    """Both the grant's answer and the unlock were lost, and the session lives on: found by random stories."""
    await world.start()
    await world.create("t", 2)
    ask, cut = world.net.unary, True

    async def losing(address, method, request, **rest):
        if cut and rest["metadata"]["x-mq-client-id"] == "one" and "Queues" in method:
            if method.endswith("/LockQueues"):
                await ask(address, method, request, **rest)
            raise ConnectionFailed("cut")
        return await ask(address, method, request, **rest)

    world.net.unary = losing
    one = await world.push("one", options=evenq.PushOptions(**QUIET))
    await world.until(lambda: world.brokers["a"].membership.locks.holder("g", T0) == "one")
    others = [await world.push(name, options=evenq.PushOptions(**QUIET)) for name in ("aaa", "aab")]
    await world.clock.advance(3_000)
    assert not any(other.queues for other in others)
    cut = False
    await world.ready(*others, queues=2)
    assert one.queues == []


@pytest.mark.parametrize("face", ["push", "pull", "pull that commits by hand"])
async def test_rb_42_where_a_group_begins_is_stored_before_anybody_hears_that_a_queue_is_read(world, face):
    """LAST: a member that dies in that moment has reported to no broker a start that the next one does not know."""
    broker = await world.start()
    await world.create("t")
    await world.publish("before")
    host = world.net._hosts["a:8081"]
    commit = host.rpcs.pop("/evenq.v1.Data/CommitOffsets")
    if face == "push":
        one = await world.push(start_from="LAST")
    else:
        options = evenq.PullOptions(auto_commit=face == "pull")
        one = await world.pull(start_from="LAST", options=options)
    pulls = world.calls("/Pull")
    await world.clock.advance(2_000)
    assert one.queues == []
    assert world.calls("/Pull") == pulls
    await world.publish("while it could not begin")
    host.rpcs["/evenq.v1.Data/CommitOffsets"] = commit
    await world.until(lambda: len(one.queues) == 1)
    assert broker.ledger.progress.committed(1, 1, 0) == 2
    await world.publish("after")
    assert await world.committed("g") == 2


async def test_cs_9_rb_20_a_queue_that_was_paused_for_long_is_not_taken_for_stalled(world, caplog):
    await world.start()
    await world.create("t")
    one = await world.push(options=evenq.PushOptions(pull_idle_ms=20_000, **QUIET))
    await world.ready(one)
    one.pause()
    await world.clock.advance(60_000)
    one.resume()
    await world.publish("a")
    await world.until(lambda: world.saw() == ["a"], limit_ms=1_000)
    assert "not pulled for long" not in caplog.text


@pytest.mark.parametrize("face", ["push", "pull"])
async def test_cs_9_a_paused_member_hands_over_what_others_get_and_keeps_the_rest_unread(world, face):
    """The joiner has its share within a second or two, and what the paused member had in hand is finished first."""
    await world.start()
    await world.create("t", 4)
    options = {"options": evenq.PushOptions(**QUIET)} if face == "push" else {}
    one = await getattr(world, face)("one", **options)
    await world.ready(one, queues=4)
    if face == "push":
        one.pause()
    else:
        one.pause(one.queues)
    two = await world.push("two", options=evenq.PushOptions(**QUIET))
    await world.until(lambda: len(one.queues) == len(two.queues) == 2, limit_ms=3_000)
    for queue in range(4):
        await world.publish(f"m{queue}", queue=queue)
    await world.clock.advance(3_000)
    assert {f"m{queue.queue_id}" for queue in two.queues} == set(world.saw()), "what is paused stays unread"
    await world.during(two.close())
    await world.until(lambda: len(one.queues) == 4, limit_ms=30_000)
    await world.clock.advance(1_000)
    if face == "push":
        assert len(world.saw()) == 2, "also what it got back while it was paused stays unread"
        one.resume()
        await world.until(lambda: len(set(world.saw())) == 4, limit_ms=3_000)


@pytest.mark.parametrize("ordered", [False, True])
async def test_cs_9_a_paused_member_whose_listener_never_returns_hands_over_in_the_end(world, ordered):
    """After `drain_ms`, or the broker's `revoke_ms` if it is ordered."""
    await world.start(revoke_ms=1_000)
    await world.create("t", 2)

    async def stuck(messages):
        await asyncio.Event().wait()

    options = evenq.PushOptions(drain_ms=1_000, lock_wait_ms=500, **QUIET)
    one = await world.push("one", listener=stuck, ordered=ordered, options=options)
    await world.ready(one, queues=2)
    await world.publish("x", queue=0)
    await world.publish("y", queue=1)
    await world.until(lambda: len(world.seen) == 2)
    one.pause()
    two = await world.push("two", ordered=ordered, options=options)
    await world.until(lambda: len(two.queues) == 1, limit_ms=4_000)
    await world.until(lambda: len(world.seen) == 3, limit_ms=1_000)
    assert world.seen[-1].delivery_attempt == 2
