"""Telemetry streams: nothing waits for a client, and the newest stream of a client gets the commands."""

from __future__ import annotations

import asyncio

from evenq_broker.loops.clients.streams import DEAF_MS, STREAMS_PER_CLIENT, Streams, TelemetryStream

from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import spawn


def made(commands_max: int = 2) -> tuple[Streams, FakeClock]:
    clock = FakeClock()
    return Streams(clock, commands_max=commands_max), clock


def publishing(streams: Streams, client_id: str, *topics: str) -> TelemetryStream:
    stream = streams.open(client_id)
    assert streams.publish(stream, topics) == sorted(topics)
    return stream


async def test_commands_come_in_order_and_what_is_left_comes_after_the_end() -> None:
    stream = made()[0].open("c")
    assert stream.push(b"1")
    assert stream.push(b"2")
    assert not stream.push(b"3"), "no room"
    stream.end()
    assert not stream.push(b"4")
    assert await stream.take() == [b"1", b"2"]
    assert await stream.take() == []


async def test_a_client_that_does_not_read_loses_its_stream() -> None:
    streams, clock = made(commands_max=1)
    stream = streams.open("c")
    stream.push(b"1")
    await clock.advance(DEAF_MS)
    assert not stream.push(b"2")
    assert not stream.ended
    await clock.advance(1)
    assert not stream.push(b"2")
    assert stream.ended


async def test_an_answer_waits_until_the_last_one_was_taken() -> None:
    stream = made()[0].open("c")
    await stream.answer(b"1")
    second = spawn(stream.answer(b"2"), name="second")
    await asyncio.sleep(0)
    assert not second.done()
    assert await stream.take() == [b"1"]
    await second
    assert await stream.take() == [b"2"]


def test_a_sender_is_found_by_its_newest_stream_and_other_producers_take_turns() -> None:
    streams, _ = made()
    old = publishing(streams, "sender", "t")
    new = publishing(streams, "sender", "t")
    others = [publishing(streams, name, "t", "u") for name in ("x", "y")]
    publishing(streams, "stranger", "u")
    assert streams.sender("sender") == [new, old]
    assert streams.producers("t", but="sender") in (others, others[::-1])
    firsts = [streams.producers("t")[0] for _ in range(8)]
    assert {stream.client_id for stream in firsts} == {"sender", "x", "y"}
    assert old not in firsts, "each with its newest stream"
    streams.close(new)
    assert streams.sender("sender") == [old]


def test_a_sender_need_not_have_declared_the_topic_and_is_no_consumer() -> None:
    streams, _ = made()
    producer, consumer = streams.open("c"), streams.open("c")
    producer.client_type, consumer.client_type = 1, 2
    assert streams.sender("c") == [producer]
    streams.retire("c")
    assert streams.sender("c") == []


def test_a_client_that_said_goodbye_is_not_asked_until_it_speaks_again() -> None:
    streams, _ = made()
    stream = publishing(streams, "c", "t")
    streams.retire("c")
    assert streams.producers("t") == []
    assert streams.publish(stream, ["t"]) == ["t"]
    assert streams.publish(stream, ["t", "u"]) == ["u"]
    assert streams.publish(stream, ["t"]) == []
    assert streams.producers("u") == []
    assert streams.producers("t") == [stream]


def test_a_client_has_a_few_streams_at_most_and_a_closed_one_leaves_nothing() -> None:
    streams, _ = made()
    opened = [streams.open("c") for _ in range(STREAMS_PER_CLIENT + 1)]
    assert opened[0].ended
    assert len(streams) == STREAMS_PER_CLIENT
    assert streams.push("c", b"1")
    assert not streams.push("nobody", b"1")
    for stream in opened:
        streams.close(stream)
    assert len(streams) == 0


async def test_streams_on_trial_that_are_still_open_are_told_once_when_it_is_over() -> None:
    streams, clock = made()
    first, closed = (streams.open("c", on_trial=True) for _ in range(2))
    streams.open("c")
    streams.close(closed)
    await clock.advance(50)
    second = streams.open("d", on_trial=True)
    await clock.advance(50)
    assert streams.tried(101) == []
    assert streams.tried(100) == [first]
    assert streams.tried(100) == []
    await clock.advance(50)
    assert streams.tried(100) == [second]
