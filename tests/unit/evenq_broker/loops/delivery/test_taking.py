"""What one receive takes: retries before fresh messages, never more than asked, and nothing that was not seen is lost."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from evenq_broker.core.polls.poll_table import ANY

from evenq.errors import StoreCorrupted
from evenq.model import StartFrom
from evenq.store import Append
from tests.unit.evenq_broker.takers import taker_of


class Reader:
    """A group on a topic with `queues` queues of three messages each."""

    def __init__(self, stage: Any, broker: Any, group: Any, topic: Any) -> None:
        self.stage, self.broker, self.group, self.topic = stage, broker, group, topic
        self.popping = taker_of(broker)

    async def pop(self, *, queue_id: int = ANY, count: int = 32, invisible_ms: int = 1_000, client: str = "") -> Any:
        return await self.stage.during(
            self.popping.pop(
                self.group, self.topic, queue_id=queue_id, count=count, invisible_ms=invisible_ms,
                client_id=client,
            )
        )  # fmt: skip

    async def add(self, count: int) -> None:
        """More messages in the first queue."""
        entries = [Append(self.topic.topic_id, 0, 0, 0, b"", b"") for _ in range(count)]
        await self.stage.during(self.broker.ledger.store.append(entries))

    def poll(self, wait_ms: int) -> asyncio.Future[str | None]:
        """A long poll of the group."""
        deadline_ms = self.broker.runtime.now_ms() + wait_ms
        ids = self.group.group_id, self.topic.topic_id
        return asyncio.ensure_future(
            self.broker.long_polls.for_messages(*ids, deadline_ms=deadline_ms, client_id="waiting")
        )

    async def waited_ms(self, poll: asyncio.Future[str | None]) -> int:
        """Waits until a poll is woken; the time from now until then."""
        began_ms = self.stage.clock.monotonic_ms()
        assert await self.stage.during(poll) == ""
        return int(self.stage.clock.monotonic_ms() - began_ms)

    def places(self, batch: Any) -> list[tuple[int, int]]:
        return [(queue.queue_id, offset) for queue, offset, _ in batch.held]


async def reader(stage: Any, *, queues: int = 1, start: StartFrom = StartFrom.FIRST, **settings: Any) -> Reader:
    broker = await stage.broker(**settings)
    topic = await stage.during(broker.catalog.create_topic("t", queues=queues))
    group = await stage.during(broker.catalog.create_group("g", start_from=start))
    for queue_id in range(queues):
        entries = [Append(topic.topic_id, queue_id, 0, 0, b"\x1a\x00"[:0], b"") for _ in range(3)]
        await stage.during(broker.ledger.store.append(entries))
    return Reader(stage, broker, group, topic)


async def test_never_more_than_asked_and_each_message_once(stage: Any) -> None:
    one = await reader(stage, queues=2)
    batches = [await one.pop(count=4), await one.pop(count=4)]
    assert [len(batch.frames) for batch in batches] == [4, 2]
    assert len({place for batch in batches for place in one.places(batch)}) == 6
    assert await one.pop() is None


async def test_retries_come_before_fresh_messages_with_the_next_attempt(stage: Any) -> None:
    one = await reader(stage)
    first = await one.pop(count=2, invisible_ms=100)
    await stage.clock.advance(101)
    again = await one.pop(count=3)
    assert one.places(first) == [(0, 0), (0, 1)]
    assert one.places(again) == [(0, 0), (0, 1), (0, 2)]
    queue = one.broker.ledger.progress.queue(one.group.group_id, one.topic.topic_id, 0)
    assert [queue.pending[offset].attempt for offset in range(3)] == [2, 2, 1]
    assert one.broker.runtime.stats.group_topic(one.group.group_id, one.topic.topic_id).redeliveries == 2


async def test_what_is_given_back_comes_again_as_if_it_had_not_been_seen(stage: Any) -> None:
    one = await reader(stage)
    one.popping.give_back(await one.pop())
    queue = one.broker.ledger.progress.queue(one.group.group_id, one.topic.topic_id, 0)
    again = await one.pop()
    assert one.places(again) == [(0, 0), (0, 1), (0, 2)]
    assert {entry.attempt for entry in queue.pending.values()} == {1}


async def test_what_is_given_back_wakes_a_waiting_poll(stage: Any) -> None:
    one = await reader(stage)
    batch = await one.pop(invisible_ms=60_000)
    poll = one.poll(60_000)
    await stage.clock.advance(10)
    one.popping.give_back(batch)
    assert await one.waited_ms(poll) < 1_000


async def test_a_full_batch_wakes_the_next_poll_for_the_rest(stage: Any) -> None:
    one = await reader(stage, start=StartFrom.LAST, young_from_first=False)
    assert await one.pop() is None
    first, second = one.poll(60_000), one.poll(60_000)
    await stage.clock.advance(10)
    await one.add(3)
    assert await one.waited_ms(first) < 1_000
    assert not second.done(), "one poll for one growth of the queue"
    assert one.places(await one.pop(count=1, invisible_ms=60_000)) == [(0, 3)]
    assert await one.waited_ms(second) < 1_000


async def test_a_delivery_that_ends_before_all_polls_wakes_one_at_its_end(stage: Any) -> None:
    """The timer sleeps until the end of a poll that was answered early. The delivery must wake it before that."""
    one = await reader(stage, start=StartFrom.LAST, young_from_first=False)
    assert await one.pop() is None
    first = one.poll(60_000)
    await stage.clock.advance(10)
    await one.add(1)
    await one.waited_ms(first)
    assert one.places(await one.pop(invisible_ms=1_000)) == [(0, 3)]
    assert 500 < await one.waited_ms(one.poll(70_000)) < 2_000


@pytest.mark.parametrize("gone", ["group", "topic"])
async def test_deliveries_of_a_group_or_topic_that_was_deleted_are_not_repeated(stage: Any, gone: str) -> None:
    one = await reader(stage)
    batch = await one.pop()
    catalog = one.broker.catalog
    await stage.during(catalog.delete_group("g") if gone == "group" else catalog.delete_topic("t"))
    again = one.popping.again(one.group, one.topic, batch.held, invisible_ms=1_000, client_id="")
    assert await stage.during(again) is None


async def test_a_take_that_breaks_off_leaves_nothing_behind(stage: Any) -> None:
    one = await reader(stage, queues=2)
    hot, calls = one.broker.ledger.store.read_hot, []

    def breaks(*place: Any, **how: Any) -> Any:
        calls.append(place)
        if len(calls) == 2:
            raise asyncio.CancelledError
        return hot(*place, **how)

    one.broker.ledger.store.read_hot = breaks
    with pytest.raises(asyncio.CancelledError):
        await one.popping.pop(one.group, one.topic, queue_id=ANY, count=32, invisible_ms=1_000, client_id="")
    one.broker.ledger.store.read_hot = hot
    assert len((await one.pop()).frames) == 6, "what the first queue gave was not seen"


async def test_a_group_that_begins_at_the_end_sees_what_comes_later_only(stage: Any) -> None:
    one = await reader(stage, start=StartFrom.LAST, young_from_first=False)
    assert await one.pop() is None
    await one.add(1)
    assert one.places(await one.pop()) == [(0, 3)]


async def test_a_message_over_its_attempts_is_buried_and_the_rest_goes_on(stage: Any) -> None:
    one = await reader(stage, default_group_max_attempts=1)
    await one.pop(count=1, invisible_ms=100)
    await stage.clock.advance(101)
    rest = await one.pop()
    assert one.places(rest) == [(0, 1), (0, 2)]
    await stage.until(lambda: one.broker.catalog.topics.get("%DLQ%g") is not None)
    await stage.until(lambda: one.broker.runtime.stats.group_topic(1, 1).dead_letters == 1)


async def test_the_groups_limit_of_unfinished_messages_is_reached_and_holds(stage: Any) -> None:
    one = await reader(stage, inflight_max=2)
    assert len((await one.pop()).frames) == 2
    assert await one.pop() is None
    queue = one.broker.ledger.progress.queue(one.group.group_id, one.topic.topic_id, 0)
    one.broker.ledger.progress.finish(queue, 0)
    assert one.places(await one.pop()) == [(0, 2)]


async def test_a_record_that_cannot_be_read_keeps_the_other_queues_from_nobody(stage: Any) -> None:
    one = await reader(stage, queues=2)
    store = one.broker.ledger.store
    hot = store.read_hot

    def damaged(topic_id: int, queue_id: int, *args: Any, **options: Any) -> Any:
        if queue_id == 1:
            raise StoreCorrupted("a file is damaged")
        return hot(topic_id, queue_id, *args, **options)

    store.read_hot = damaged  # the disk's fault, where the store would tell it
    got: list[tuple[int, int]] = []
    for _ in range(2):  # the turn begins with either queue
        try:
            batch = await one.pop()
        except StoreCorrupted:
            continue
        got += one.places(batch) if batch is not None else []
    assert got == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(StoreCorrupted):
        await one.pop(queue_id=1)


async def test_two_receives_at_once_after_a_restart_leave_no_message_of_an_ordered_group_in_no_lane(stage: Any) -> None:
    """The second one had read what waits before the first one handed out more."""
    one = await reader(stage)
    one.group = await stage.during(one.broker.catalog.create_group("ordered", ordered=True, start_from=StartFrom.FIRST))  # fmt: skip
    assert one.places(await one.pop()) == [(0, 0)]
    queue, store = one.broker.ledger.progress.queue(one.group.group_id, one.topic.topic_id, 0), one.broker.ledger.store  # fmt: skip
    queue.unkeyed = True  # as after a restart
    await stage.during(store.append([Append(one.topic.topic_id, 0, 0, 0, b"", b"") for _ in range(2)]))
    read_at, both, first = store.read_at, asyncio.Event(), asyncio.Event()

    async def later(*place: Any) -> Any:
        messages = await read_at(*place)
        calls.append(place)
        if len(calls) == 2:
            both.set()
        await (both if len(calls) == 1 else first).wait()
        return messages

    calls: list[Any] = []

    async def then(taken: Awaitable[Any]) -> None:
        await taken
        first.set()

    store.read_at = later
    takes = [one.popping.pop(one.group, one.topic, queue_id=0, count=32, invisible_ms=1_000, client_id="") for _ in range(2)]  # fmt: skip
    await stage.during(asyncio.gather(then(takes[0]), takes[1]))
    assert len(calls) == 2
    assert [list(lane) for lane in queue.lanes.values()] == [[0, 1, 2, 3, 4]]
    assert sorted(queue.pending) == [0, 1, 2, 3, 4]
