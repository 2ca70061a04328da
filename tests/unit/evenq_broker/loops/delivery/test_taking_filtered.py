"""Receives with a filter: what is left out is passed over for the group, in turns, and none sleeps before a match."""

from itertools import pairwise
from typing import Any

import pytest
from evenq_broker.core.delivery.filters import LOOK_AHEAD, TURNS_MIN
from evenq_broker.core.delivery.tags import tag_hash
from evenq_broker.loops.wire.stored_messages import message_filter

from evenq.errors import TopicNotFound
from evenq.model import StartFrom
from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from tests.unit.evenq_broker.takers import taker_of

LONG_MS = 60_000


class Numbers:
    """A topic with one queue of messages whose property `n` is their offset, and a group that began at its start."""

    def __init__(self, stage: Any, broker: Any, topic: Any, group: Any) -> None:
        self.stage, self.broker, self.topic, self.group = stage, broker, topic, group
        self.popping = taker_of(broker)

    @classmethod
    async def of(cls, stage: Any, count: int, *, ordered: bool = False, **settings: Any) -> "Numbers":
        broker = await stage.broker(**settings)
        topic = await stage.during(broker.catalog.create_topic("t", queues=1))
        group = await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST, ordered=ordered))
        made = cls(stage, broker, topic, group)
        await made.add(range(count))
        return made

    async def add(self, numbers: range, *, tag: str = "", hashed: str | None = None) -> None:
        system = definition_pb2.SystemProperties(message_id="m", message_group="one")
        if tag:
            system.tag = tag
        entries = [
            Append(
                self.topic.topic_id, 0, tag_hash(tag if hashed is None else hashed), 0,
                definition_pb2.Message(user_properties={"n": str(number)}, body=b"b").SerializeToString(),
                system.SerializeToString(),
            )
            for number in numbers
        ]  # fmt: skip
        for at in range(0, len(entries), 1_000):
            await self.stage.during(self.broker.ledger.store.append(entries[at : at + 1_000]))

    def popped(self, expression: str, *, count: int = 32, wait_ms: int = 0, is_sql: bool = True) -> Any:
        return self.popping.pop(
            self.group,
            self.topic,
            queue_id=-1,
            count=count,
            message_filter=message_filter(expression, is_sql=is_sql),
            invisible_ms=10_000,
            client_id="",
            until_ms=self.broker.runtime.now_ms() + wait_ms,
        )

    async def pop(self, expression: str, **options: Any) -> list[int]:
        batch = await self.stage.during(self.popped(expression, **options))
        return [] if batch is None else [offset for _, offset, _ in batch.held]

    @property
    def queue(self) -> Any:
        return self.broker.ledger.progress.queue(self.group.group_id, self.topic.topic_id, 0)


async def test_what_is_filtered_out_is_passed_over_for_the_group(stage: Any) -> None:
    one = await Numbers.of(stage, 100)
    assert await one.pop("n IN (3, 50, 60)", count=2) == [3, 50]
    assert (one.queue.next, one.queue.committed) == (51, 3)
    assert await one.pop("n IN (3, 50, 60)") == [60]
    assert one.queue.next == 100
    assert one.broker.runtime.stats.group_topic(1, 1).filtered == 97
    one.broker.ledger.progress.check()


async def test_each_receive_is_served_by_its_own_expression(stage: Any) -> None:
    one = await Numbers.of(stage, 10)
    assert await one.pop("n < 3") == [0, 1, 2], "and everything behind is passed over, too"
    assert await one.pop("n >= 3") == []


async def test_a_redelivery_is_not_filtered_again(stage: Any) -> None:
    """RocketMQ filters retries by `*`: a message once delivered to the group stays the group's."""
    one = await Numbers.of(stage, 3)
    assert await one.pop("n = 1") == [1]
    await stage.clock.advance(10_001)
    assert await one.pop("n = 2") == [1]


async def test_a_match_far_behind_the_look_ahead_is_found_by_one_receive(stage: Any) -> None:
    count = 3 * TURNS_MIN * LOOK_AHEAD
    one = await Numbers.of(stage, count + 1)
    assert await one.pop(f"n = {count}", wait_ms=LONG_MS) == [count]


async def test_one_who_does_not_wait_gets_so_many_turns_and_the_next_goes_on(stage: Any) -> None:
    count = TURNS_MIN * LOOK_AHEAD
    one = await Numbers.of(stage, count + 1)
    assert await one.pop(f"n = {count}") == []
    assert one.queue.next == count
    assert await one.pop(f"n = {count}") == [count]


async def test_others_have_their_turns_while_a_filter_looks(stage: Any) -> None:
    one = await Numbers.of(stage, 20 * LOOK_AHEAD)
    seen = []

    async def other() -> None:
        while not seen or seen[-1] < 20 * LOOK_AHEAD:
            seen.append(one.queue.next if one.queue is not None else 0)
            await stage.clock.sleep_ms(0)

    task = one.broker.runtime.spawn(other(), name="other")
    assert await one.pop("n = -1", wait_ms=LONG_MS) == []
    await stage.during(task)
    assert max(after - before for before, after in pairwise(seen)) <= 2 * LOOK_AHEAD


async def test_a_parked_poll_is_woken_for_what_is_behind_a_found_batch(stage: Any) -> None:
    one = await Numbers.of(stage, 0)
    assert await one.pop("n = -1") == []
    until_ms = one.broker.runtime.now_ms() + LONG_MS
    polls = [
        one.broker.runtime.spawn(
            one.broker.long_polls.for_messages(1, 1, deadline_ms=until_ms, client_id=""), name="poll"
        )
        for _ in range(2)
    ]
    await stage.clock.advance(1)
    await one.add(range(2 * LOOK_AHEAD))
    await stage.until(polls[0].done)
    assert not polls[1].done(), "one arrival wakes one"
    assert await one.pop(f"n IN (1, {LOOK_AHEAD})") == [1]
    await stage.until(polls[1].done, limit_ms=100)


async def test_ordered_groups_skip_what_does_not_match_and_keep_their_order(stage: Any) -> None:
    one = await Numbers.of(stage, 2 * LOOK_AHEAD + 10, ordered=True)
    expression = f"n IN (5, {LOOK_AHEAD + 5}, {2 * LOOK_AHEAD + 5})"
    assert await one.pop(expression) == [5]
    assert await one.pop(expression) == [], "one message group: the next waits for the first"
    one.broker.ledger.progress.finish(one.queue, 5)
    assert await one.pop(expression, wait_ms=100) == [LOOK_AHEAD + 5]
    one.broker.ledger.progress.check()


async def test_a_tag_that_only_shares_the_hash_is_not_delivered(stage: Any) -> None:
    one = await Numbers.of(stage, 0)
    await one.add(range(3), tag="blue", hashed="red")
    await one.add(range(1), tag="red")
    assert await one.pop("red", is_sql=False) == [3]
    assert one.queue.committed == 3


@pytest.mark.parametrize("begun", [True, False])
async def test_a_topic_deleted_under_a_filter_that_looks_is_told(stage: Any, begun: bool) -> None:
    one = await Numbers.of(stage, 40 * LOOK_AHEAD)
    if begun:
        assert await one.pop("n = 0", count=1) == [0]
    task = one.broker.runtime.spawn(one.popped("n = -1", wait_ms=LONG_MS), name="pop")
    deleting = one.broker.runtime.spawn(one.broker.catalog.delete_topic("t"), name="delete")
    await stage.during(deleting)
    with pytest.raises(TopicNotFound, match="was deleted"):
        await stage.during(task)
    assert not list(one.broker.ledger.progress.queues()), "the group did not begin on it again"
