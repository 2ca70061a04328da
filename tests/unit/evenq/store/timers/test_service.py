"""Firing: batches, retries, and what the owner cannot take does not hold the others up."""

from __future__ import annotations

import asyncio

import pytest

from evenq.errors import BadRequest, PreconditionFailed, StoreCorrupted, TooManyRequests
from evenq.store import StoredTimer
from evenq.store.timers import service as service_module
from evenq.store.timers.service import RETRY_MS, TimerService, deliver


def test_a_delayed_message_becomes_the_same_message_of_its_topic_and_queue():
    (message,) = deliver([StoredTimer(1, 2, 300, 4, 5, -6, 7, 1, b"head", b"system")])
    assert (message.topic_id, message.queue_id, message.tag_hash, message.born_ms) == (1, 2, -6, 4)
    assert (message.head, message.system, message.log_offset) == (b"head", b"system", -1)


@pytest.fixture
def fire(make_ground):
    """Fires timers through a log that is a list; `refuse` sees each batch and may raise. Gives batches and pending."""

    def play(dues, refuse, *, batch_max=4, milliseconds=1_000):
        async def scenario():
            context, batches = make_ground(), []

            def append(entries, *, timers, ended):
                refuse(entries, batches)
                batches.append([message.head for message in entries])
                return context.append(entries, timers=timers, ended=ended)

            await context.put(*dues)
            for timer in context.log.values():
                timer.head = b"%d" % timer.due_ms
            service = TimerService(context.keeper, context.clock, append, batch_max=batch_max)
            service.start()
            await context.clock.advance(milliseconds)
            left = context.keeper.stats.pending
            await service.stop()
            await context.keeper.close()
            return batches, left

        return asyncio.run(scenario())

    return play


def test_due_timers_fire_in_order_of_due_time_in_bounded_batches(fire):
    batches, left = fire([1_010, 1_009, 1_002, 1_003, 900, 901], lambda *_: None)
    assert [head for batch in batches for head in batch] == [b"900", b"901", b"1002", b"1003", b"1009", b"1010"]
    assert max(map(len, batches)) <= 4
    assert left == 0


def test_all_of_a_burst_fire_with_their_files_on_disk(fire):
    batches, left = fire([1_500] * 45, lambda *_: None)
    assert left == 0
    assert sum(map(len, batches)) == 45


def test_an_overloaded_store_is_asked_again_and_nothing_fires_twice(fire):
    refusals = iter([True, False, True, True])

    def refuse(entries, batches):
        if next(refusals, False):
            raise TooManyRequests("later")

    batches, left = fire([1_000 + n for n in range(9)], refuse)
    fired = [head for batch in batches for head in batch]
    assert sorted(fired) == sorted(b"%d" % (1_000 + n) for n in range(9))
    assert left == 0


async def test_while_all_is_refused_nothing_is_tried_and_no_timer_is_to_blame(make_ground, caplog):
    context, tries, refused = make_ground(), [], [False]

    def append(entries, *, timers, ended):
        tries.append(len(ended))
        if len(tries) == 1:  # it begins between the look and the append
            refused[0] = True
        if refused[0]:
            raise PreconditionFailed("this broker hands over")
        return context.append(entries, timers=timers, ended=ended)

    await context.put(1_001, 1_002)
    service = TimerService(context.keeper, context.clock, append, refused=lambda: refused[0])
    service.start()
    await context.clock.advance(60_000)
    assert (len(tries), context.keeper.stats.aside, context.keeper.stats.pending) == (1, 0, 2)
    refused[0] = False
    await context.clock.advance(RETRY_MS)
    assert (tries[1:], context.keeper.stats.fired) == ([2], 2)
    await service.stop()
    await context.keeper.close()
    assert "one by one" not in caplog.text


def test_one_message_that_the_store_refuses_does_not_hold_the_others_up(fire):
    def refuse(entries, batches):
        if any(message.head == b"1002" for message in entries):
            raise BadRequest("never")

    batches, left = fire([1_000, 1_001, 1_002, 1_003, 1_004], refuse, milliseconds=5_000)
    assert sorted(head for batch in batches for head in batch) == [b"1000", b"1001", b"1003", b"1004"]
    assert left == 1


async def test_thousands_that_the_owner_refuses_hold_no_other_up_and_are_tried_less_and_less(make_ground):
    tries = []

    def on_due(timers):
        if any(timer.due_ms < 2_000 for timer in timers):
            tries.extend(timer.log_offset for timer in timers if len(timers) == 1)
            raise RuntimeError("never")
        return deliver(timers)

    context = make_ground(table_max=10_000)
    bad = await context.put(*[1_000] * 5_000)
    await context.put(*[2_000] * 50)
    service = TimerService(context.keeper, context.clock, context.append, on_due)
    service.start()
    await context.clock.advance(1_500)
    stats = context.keeper.stats
    assert (stats.fired, stats.pending, stats.aside) == (50, 5_000, 5_000)
    assert stats.late_ms == 0
    await context.clock.advance(9_000)
    assert sorted(tries) == sorted(bad * 2)
    await context.clock.advance(19_000)
    assert len(tries) == 10_000, "the second pause is twice as long"
    ended = await context.keeper.cancel(bad[:10])
    assert ended == bad[:10]
    await context.clock.advance(1_700_000)
    assert 9 * 4_990 >= len(tries) - 20 >= 7 * 4_990
    await service.stop()
    await context.keeper.close()


async def test_damaged_timers_are_set_aside_and_named_once_and_the_others_fire(make_ground, caplog):
    context = make_ground(table_max=10_000)
    put = await context.put(*range(900, 1_000))
    for timer_id in put[20:60]:
        del context.log[timer_id]
    context.log[put[70]].kind = 2  # whole, but another one
    service = TimerService(context.keeper, context.clock, context.append, deliver)
    service.start()
    await context.clock.advance(60_000)
    stats = context.keeper.stats
    assert (stats.fired, stats.damaged, stats.pending, stats.late_ms) == (59, 41, 41, 0)
    assert not context.failures
    named = [record.getMessage() for record in caplog.records if "no whole timer at" in record.getMessage()]
    assert len(named) == 32
    assert f"{'0' * 20} byte {put[20]}: timer {put[20]}, due at 920 ms" in named[0]
    assert "evenq store verify" in named[0]
    await service.stop()
    assert context.keeper.pinned_before() == put[20]
    await context.keeper.roll_forward(put[50])
    assert context.keeper.stats.pending == 11, "given up: the file with them goes"
    assert context.keeper.pinned_before() == put[50]
    await context.keeper.close()


async def test_what_the_disk_cannot_read_is_damaged_too(make_ground):
    context = make_ground()
    put = await context.put(1_000, 1_001, 1_002)

    async def read(timer_ids, bytes_max):
        if put[1] in timer_ids:
            raise StoreCorrupted("a rotten sector")
        return [context.log[timer_id] for timer_id in timer_ids]

    context.keeper._read_timers = read
    service = TimerService(context.keeper, context.clock, context.append, deliver)
    service.start()
    await context.clock.advance(5_000)
    stats = context.keeper.stats
    assert (stats.fired, stats.damaged, stats.pending) == (2, 1, 1)
    await service.stop()
    await context.keeper.close()


async def test_a_damaged_timer_that_was_mended_fires_and_one_that_is_not_stays(make_ground):
    context = make_ground()
    put = await context.put(1_000, 1_001, 1_002)
    kept = context.log.pop(put[1])
    del context.log[put[2]]
    service = TimerService(context.keeper, context.clock, context.append, deliver)
    service.start()
    await context.clock.advance(5_000)
    stats = context.keeper.stats
    assert (stats.fired, stats.damaged, stats.aside) == (1, 2, 2)
    context.log[put[1]] = kept  # as when another copy answered at last
    await context.clock.advance(10_000)
    stats = context.keeper.stats
    assert (stats.fired, stats.pending, stats.damaged, stats.aside) == (2, 1, 2, 1)
    await service.stop()
    await context.keeper.close()


async def test_more_damaged_timers_than_are_remembered_hold_no_other_up(make_ground, monkeypatch):
    monkeypatch.setattr(service_module, "DAMAGED_MAX", 8)
    monkeypatch.setattr(service_module, "ASIDE_MAX", 16)
    context = make_ground(table_max=10_000)
    put = await context.put(*[1_000] * 30, *[1_001] * 30)
    for timer_id in put[:30]:
        del context.log[timer_id]
    service = TimerService(context.keeper, context.clock, context.append, deliver)
    service.start()
    await context.clock.advance(60_000)
    stats = context.keeper.stats
    assert (stats.fired, stats.pending, stats.damaged, stats.aside) == (30, 30, 30, 8)
    await service.stop()
    await context.keeper.close()
