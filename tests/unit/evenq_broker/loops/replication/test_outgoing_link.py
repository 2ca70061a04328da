"""The link to one peer, message by message: what leaves when, what ends a call, and what the log says of an outage."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from evenq_broker.core.replication.messages import Envelope, FollowerProgress, Records
from evenq_broker.loops.replication.outgoing_link import RETRY_MAX_MS, SILENT_MS, OutgoingLink
from evenq_broker.loops.wire.replication import (
    PIECE_BYTES_MAX,
    STANDS,
    LinkEnd,
    LinkOpening,
    MalformedMessage,
    MessageReader,
    closed_event,
)
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings

from evenq.errors import ConnectionFailed, Error
from evenq.runtime.clock import FakeClock

ADDRESS = "host-1:8081"


class Call:
    """One call of a net without sockets: the test plays the peer."""

    def __init__(self) -> None:
        self.on_room: Callable[[], None] = lambda: None
        self.room = 0
        self.sent: list[bytes] = []
        self.ended = False
        self._events: asyncio.Queue[bytes | Error | None] = asyncio.Queue()

    @property
    def has_room(self) -> bool:
        return self.room > 0

    def send(self, message: bytes) -> None:
        assert self.room > 0
        self.room -= 1
        self.sent.append(message)

    async def answers(self) -> AsyncGenerator[bytes, None]:
        try:
            while (event := await self._events.get()) is not None:
                if isinstance(event, Error):
                    raise event
                yield event
        finally:
            self.ended = True

    def give_room(self, messages: int = 1_000) -> None:
        self.room = messages
        self.on_room()

    def says(self, event: bytes | Error | None) -> None:
        self._events.put_nowait(event)

    def envelopes(self) -> list[Any]:
        """Bodies of what was sent and is whole."""
        incoming = MessageReader()
        whole = [incoming.feed(message) for message in self.sent]
        return [one.body for one in whole if one is not None]


class Net:
    """Makes calls, or refuses them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.renewed = 0

    def duplex(self, address: str, _method: str, *, metadata: Mapping[str, str] | None = None) -> Call:
        assert (address, metadata) == (ADDRESS, None)
        self.calls.append(Call())
        return self.calls[-1]

    async def renew(self, _address: str) -> None:
        self.renewed += 1


class Stage:
    def __init__(self) -> None:
        self.clock, self.net = FakeClock(), Net()
        net: Any = self.net
        settings = BrokerSettings(broker_name="broker-a", cluster="c")
        self.runtime = Runtime(settings, clock=self.clock, rng=random.Random(1), net=net)
        self.link = OutgoingLink(self.runtime, LinkOpening("c", "broker-a", 0, 1), ADDRESS)

    @property
    def call(self) -> Call:
        return self.net.calls[-1]

    async def stand(self) -> Call:
        """A call that the peer took."""
        before = len(self.net.calls)
        await self.clock.until(lambda: len(self.net.calls) > before - (not self.call.ended if before else 0))
        self.call.give_room()
        self.call.says(STANDS)
        await self.clock.until(lambda: self.link.connected)
        return self.call


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    task = asyncio.ensure_future(stage.link.run())
    await stage.clock.advance(1)
    try:
        yield stage
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stage.clock.during(stage.runtime.close())


def progress(number: int) -> Envelope:
    return Envelope("c", 0, "0" * 32, 7, 1, FollowerProgress(number, 0, wants=False))


def records(number: int, size: int) -> Envelope:
    return Envelope("c", 0, "0" * 32, 7, 1, Records(number, number + 1, 1, (), 0, 0, bytes(size)))


def ends(call: Call) -> list[int]:
    return [body.end for body in call.envelopes()]


async def test_the_opening_leaves_first_and_nothing_else_before_the_peer_takes_the_link(stage: Stage) -> None:
    assert stage.link.send(progress(5))
    stage.call.give_room()
    incoming = MessageReader()
    assert [incoming.feed(message) for message in stage.call.sent] == [None]
    assert incoming.opening == LinkOpening("c", "broker-a", 0, 1)
    assert not stage.link.connected
    stage.call.says(STANDS)
    await stage.clock.until(lambda: stage.link.connected)
    assert ends(stage.call) == [5]


async def test_records_are_dropped_and_counted_while_the_link_does_not_stand(stage: Stage) -> None:
    assert not stage.link.send(records(1, 100))
    assert stage.link.outbox.dropped == 1
    await stage.stand()
    assert stage.link.send(records(1, 100))
    assert [type(body) for body in stage.call.envelopes()] == [Records]


async def test_pieces_of_one_message_wait_for_room_with_nothing_between_them(stage: Stage) -> None:
    call = await stage.stand()
    call.room = 1
    assert stage.link.send(records(1, 2 * PIECE_BYTES_MAX + 1))
    assert stage.link.send(progress(9))
    assert (len(call.sent), call.envelopes()) == (2, [])
    call.give_room(1)
    call.give_room(1)
    assert [type(body) for body in call.envelopes()] == [Records]
    assert len(call.envelopes()[0].payload) == 2 * PIECE_BYTES_MAX + 1
    call.give_room(1)
    assert [type(body) for body in call.envelopes()] == [Records, FollowerProgress]


async def test_a_message_that_was_broken_off_leaves_whole_on_the_next_call_if_it_is_small(stage: Stage) -> None:
    first = await stage.stand()
    first.room = 0
    assert stage.link.send(progress(5))
    assert stage.link.send(records(6, 100))
    first.says(ConnectionFailed("reset"))
    await stage.clock.until(lambda: len(stage.net.calls) == 2)
    second = await stage.stand()
    assert ends(second) == [5], "records are asked for again by the peer"
    assert stage.link.outbox.dropped == 1


async def test_a_peer_that_is_silent_loses_the_link_after_five_seconds_and_one_that_speaks_does_not(
    stage: Stage,
) -> None:
    call = await stage.stand()
    for _ in range(4):
        await stage.clock.advance(SILENT_MS - 500)
        call.says(STANDS)
        await stage.clock.advance(0)
    assert stage.link.connected
    await stage.clock.advance(SILENT_MS - 1)
    assert stage.link.connected
    await stage.clock.advance(2)
    assert not stage.link.connected
    assert call.ended


async def test_a_connection_that_failed_is_made_anew_and_one_that_the_peer_closed_is_not(stage: Stage) -> None:
    (await stage.stand()).says(closed_event(LinkEnd("another broker has this id")))
    await stage.clock.until(lambda: len(stage.net.calls) == 2)
    assert stage.net.renewed == 0
    (await stage.stand()).says(ConnectionFailed("reset"))
    await stage.clock.until(lambda: len(stage.net.calls) == 3)
    assert stage.net.renewed == 1
    (await stage.stand()).says(None)
    await stage.clock.until(lambda: len(stage.net.calls) == 4)
    assert stage.net.renewed == 2, "an end without a reason is a failure of the connection"


async def test_pauses_grow_to_two_seconds_and_begin_anew_after_a_link_that_lasted(stage: Stage) -> None:
    for _ in range(12):
        stage.call.says(ConnectionFailed("refused"))
        count = len(stage.net.calls)
        began_ms = stage.clock.monotonic_ms()
        await stage.clock.until(lambda count=count: len(stage.net.calls) > count)
        pause_ms = stage.clock.monotonic_ms() - began_ms
        assert pause_ms <= RETRY_MAX_MS * 1.3
    assert pause_ms >= 1_000
    call = await stage.stand()
    for _ in range(6):
        await stage.clock.advance(2_000)
        call.says(STANDS)
    began_ms = stage.clock.monotonic_ms()
    call.says(ConnectionFailed("reset"))
    await stage.clock.until(lambda: stage.call is not call)
    assert stage.clock.monotonic_ms() - began_ms <= 300


async def test_news_of_the_peer_end_the_pause(stage: Stage) -> None:
    for _ in range(10):
        stage.call.says(ConnectionFailed("refused"))
        count = len(stage.net.calls)
        await stage.clock.until(lambda count=count: len(stage.net.calls) > count)
    call = stage.call
    call.says(ConnectionFailed("refused"))
    await stage.clock.until(lambda: call.ended)
    stage.link.hurry()
    await stage.clock.advance(1)
    assert stage.call is not call


async def test_a_link_that_is_closed_for_a_fault_sends_nothing_more_and_opens_none_for_its_pause(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    call = await stage.stand()
    stage.link.close("it is of another cluster", 30_000)
    sent = len(call.sent)
    assert not stage.link.connected
    assert not stage.link.send(records(1, 10))
    stage.link.send(progress(1))
    assert len(call.sent) == sent
    stage.link.hurry()
    await stage.clock.advance(29_990)
    assert stage.net.calls == [call]
    assert any(line.endswith("it is of another cluster") for line in caplog.messages)
    await stage.clock.advance(20)
    assert len(stage.net.calls) == 2


async def test_a_message_that_cannot_be_said_is_refused_and_later_ones_leave(stage: Stage) -> None:
    call = await stage.stand()
    with pytest.raises(MalformedMessage):
        stage.link.send(Envelope("c", 0, "0" * 32, 7, 1, Records(1, 2, 1, (), 0, 0, "no bytes")))
    call.room = 0
    assert stage.link.send(Envelope("c", 0, "0" * 32, 7, 1, FollowerProgress(1 << 64, 0, wants=False)))
    assert stage.link.send(progress(2))
    call.give_room()
    assert ends(call) == [2]


async def test_an_outage_is_a_line_for_each_kind_of_trouble_and_one_at_its_end(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await stage.stand()
    caplog.clear()
    for _ in range(5):
        stage.call.says(ConnectionFailed("refused"))
        count = len(stage.net.calls)
        await stage.clock.until(lambda count=count: len(stage.net.calls) > count)
    await stage.clock.advance(SILENT_MS + 2_500)
    await stage.stand()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    lost, silent, stands = caplog.messages
    assert lost == f"replication of broker-a: no link to broker 1 at {ADDRESS}: refused"
    assert silent.endswith("it was silent for 5000 ms")
    assert f"the link to broker 1 at {ADDRESS} stands" in stands
    assert "6 failed tries" in stands
    assert stage.link.tries == 0
    stage.call.says(ConnectionFailed("refused"))
    await stage.clock.until(lambda: not stage.link.connected)
    assert caplog.messages[3:] == [lost], "another outage has lines of its own"


@pytest.mark.parametrize(
    ("end", "lines"),
    [(LinkEnd("a newer link came", taken_over=True), 1), (LinkEnd("broker 0 took its place"), 4)],
    ids=["by its cause", "never by its text"],
)
async def test_a_link_that_another_process_takes_again_and_again_is_one_line(
    stage: Stage, caplog: pytest.LogCaptureFixture, end: LinkEnd, lines: int
) -> None:
    for _ in range(4):
        (await stage.stand()).says(closed_event(end))
        await stage.clock.until(lambda: not stage.link.connected)
    assert len([text for text in caplog.messages if end.reason in text]) == lines
