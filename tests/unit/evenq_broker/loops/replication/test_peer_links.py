"""Links between brokers of a group: in order, never waited for, ended and opened again."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from evenq_broker.core.replication.messages import Nomination, Records
from evenq_broker.loops.replication.outgoing_link import BYTES_MAX, MESSAGES_MAX
from evenq_broker.loops.wire.replication import PIECE_BYTES_MAX, RECORDS_BYTES_MAX, MalformedMessage
from link_stage import GROUP, Node, Stage, address

MIB = 1 << 20


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage(2)
    try:
        yield stage
    finally:
        for node in stage.nodes:
            await stage.clock.during(node.close())
        assert not any(node.runtime.failed for node in stage.nodes)


async def pair(stage: Stage, **options: Any) -> tuple[Node, Node]:
    """Brokers 0 and 1, connected; the options are those of broker 1."""
    a, b = stage.node(0), stage.node(1, **options)
    await stage.until(lambda: a.links.connected == {1} and b.links.connected == {0})
    return a, b


async def test_messages_of_each_sender_come_in_their_order_and_large_ones_whole(stage: Stage) -> None:
    a, b = await pair(stage)
    assert a.links.incoming.senders == {1}
    for number in range(20):
        assert a.say(1, number)
        assert b.say(0, number)
    assert a.send_records(1, 20, 3 * PIECE_BYTES_MAX + 5)
    assert a.say(1, 21)
    await stage.until(lambda: len(b.received) == 22 and len(a.received) == 20)
    assert b.numbers(0) == list(range(22))
    assert a.numbers(1) == list(range(20))
    assert b.received[20].body.payload == bytes([20]) * (3 * PIECE_BYTES_MAX + 5)  # type: ignore[union-attr]
    assert a.links.waiting_bytes == 0


async def test_a_peer_that_comes_later_gets_what_is_small_and_no_records(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a = stage.node(0)
    assert a.links.connected == set()
    await stage.clock.advance(5_000)
    assert not a.send_records(1, 1, 100)
    assert a.say(1, 2)
    assert a.links.dropped == 1
    b = stage.node(1)
    await stage.until(lambda: b.received)
    assert b.numbers(0) == [2]
    lines = [record.message for record in caplog.records if "to broker 1" in record.message]
    assert len(lines) == 2, lines
    assert lines[0] == (
        f"replication of {GROUP}: no link to broker 1 at {address(1)}: "
        f"no server answers /evenq.v1.Replication/Link at {address(1)}"
    )
    assert lines[1].startswith(f"replication of {GROUP}: the link to broker 1 at {address(1)} stands (")


async def test_tries_go_on_with_pauses_of_two_seconds_at_most(stage: Stage) -> None:
    stage.node(0)
    await stage.clock.advance(60_000)
    tries = len(stage.net.calls)
    assert 60_000 / 2_400 <= tries <= 60_000 / 1_600 + 8


async def test_a_peer_that_went_away_and_came_back_is_linked_again_at_once(stage: Stage) -> None:
    a, b = await pair(stage)
    for away_ms in (30_000, 30_400, 30_800, 31_200, 31_600, 32_000):
        await stage.clock.advance(20_000)
        stage.net.stop(address(1))
        await b.close()
        await stage.until(lambda: a.links.connected == set())
        await stage.clock.advance(away_ms)
        came = stage.clock.monotonic_ms()
        b = stage.node(1)
        await stage.until(lambda: a.links.connected == {1})
        assert stage.clock.monotonic_ms() - came <= 50, "it is heard of by its own link"
        a.say(1, 5)
        await stage.until(lambda b=b: b.numbers(0) == [5])


async def test_a_link_that_tells_nothing_is_lost_after_five_seconds(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a, b = await pair(stage)
    for link in b.links.incoming._links.values():  # its loop hangs: the link is open and nothing comes
        link.news = asyncio.Event().wait  # type: ignore[assignment,method-assign]
    await stage.clock.advance(1_100)
    began = stage.clock.monotonic_ms()
    await stage.until(lambda: a.links.connected == set())
    assert 3_500 <= stage.clock.monotonic_ms() - began <= 5_100
    assert any("it was silent for 5000 ms" in record.message for record in caplog.records)
    await stage.until(lambda: a.links.connected == {1})


async def test_after_a_failure_the_net_is_told_to_connect_anew(stage: Stage) -> None:
    renewed = list[str]()

    async def renew(where: str) -> None:
        renewed.append(where)

    stage.net.renew = renew
    a, b = await pair(stage)
    renewed.clear()
    b.links.incoming._links[0].close("another reason")
    await stage.until(lambda: a.links.connected == set())
    await stage.until(lambda: a.links.connected == {1})
    assert renewed == [], "a peer that says why has a good connection"
    stage.net.stop(address(1))
    await stage.until(lambda: a.links.connected == set())
    await stage.until(lambda: renewed)
    assert set(renewed) == {address(1)}


@pytest.mark.slow
async def test_a_peer_that_is_closed_is_left_alone_for_a_while_in_both_directions(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a, b = await pair(stage)
    a.links.close_peer(1, "its log ends beyond mine")
    await stage.until(lambda: not a.links.connected and not b.links.connected)
    began = stage.clock.monotonic_ms()
    assert a.links.incoming.senders == set()
    while stage.clock.monotonic_ms() < began + 750:
        await stage.clock.advance(10)
        assert a.links.connected == b.links.connected == set()
    await stage.until(lambda: a.links.connected == {1} and b.links.connected == {0})
    assert 800 <= stage.clock.monotonic_ms() - began <= 4_000
    first = stage.clock.monotonic_ms() - began
    for _ in range(7):
        a.links.close_peer(1, "its log ends beyond mine")
        began = stage.clock.monotonic_ms()
        await stage.until(lambda: a.links.connected == {1} and b.links.connected == {0})
    assert 10 * first < stage.clock.monotonic_ms() - began <= 76_000, "pauses grow, to a minute"
    assert any("its log ends beyond mine" in record.message for record in caplog.records)
    a.links.close_peer(9, "nobody")


async def test_a_slow_reader_makes_its_sender_drop_and_costs_it_eight_mebibytes(stage: Stage) -> None:
    a, b = await pair(stage, room_bytes=1)
    taken = sum(a.send_records(1, number, MIB) for number in range(200))
    assert taken <= 9
    most = a.links.waiting_bytes
    assert 6 * MIB <= most <= BYTES_MAX
    for number in range(200, 200 + 3 * MESSAGES_MAX):
        a.send_records(1, number, 100)
        assert len(a.links._links[1].outbox) <= MESSAGES_MAX + 1
        assert a.links.waiting_bytes <= BYTES_MAX
        await stage.clock.advance(1)
    assert len(b.received) == 1, "it is not read while the owner has more than its limit in hand"
    await stage.clock.advance(30_000)
    assert a.links.connected == {1}, "a slow reader is no dead one"

    def done() -> bool:
        if b.hand.bytes:
            b.hand.give(b.hand.bytes)
        return len(a.links._links[1].outbox) == 0

    await stage.until(done)
    numbers = b.numbers(0)
    assert numbers == sorted(numbers)
    assert numbers[:taken] == list(range(taken))


async def test_nothing_large_is_kept_for_a_peer_whose_link_broke(stage: Stage) -> None:
    a, _ = await pair(stage, room_bytes=1)
    for number in range(12):
        a.send_records(1, number, MIB)
    a.say(1, 50)
    assert a.links.waiting_bytes > 5 * MIB
    stage.net.stop(address(1))
    await stage.until(lambda: not a.links.connected)
    assert a.links.waiting_bytes == 0
    again = stage.node(1)
    await stage.until(lambda: again.received)
    assert again.numbers(0) == [50]


async def test_a_small_message_goes_out_although_records_are_dropped(stage: Stage) -> None:
    a, b = await pair(stage, room_bytes=1)
    for number in range(40):
        a.send_records(1, number, 3 * MIB)
    assert a.links.send(1, a.envelope(Nomination(7)))

    def came() -> bool:
        if b.hand.bytes:
            b.hand.give(b.hand.bytes)
        return any(isinstance(one.body, Nomination) for one in b.received)

    await stage.until(came)


async def test_a_broker_of_another_group_at_the_address_gets_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a, stranger = stage.node(0), stage.node(1, group="broker-b")
    await stage.clock.advance(10_000)
    a.say(1, 1)
    await stage.clock.advance(10_000)
    assert a.links.connected == stranger.links.connected == set()
    assert stranger.received == a.received == []
    lines = [record.message for record in caplog.records]
    assert sum("this is a broker of group 'broker-b', not of 'broker-a'" in line for line in lines) == 2
    assert len(lines) == 4, "one line on each side of each link, however often it is tried"
    stage.net.stop(address(1))
    await stage.clock.during(stranger.close())
    b = stage.node(1)
    await stage.until(lambda: b.received)
    assert b.numbers(0) == [1], "what was to be sent waits for a broker that takes it"


async def test_two_processes_with_one_id_take_the_link_from_each_other_and_both_are_told(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    a, _ = await pair(stage)
    twin = stage.node(1, serves=False)
    await stage.until(lambda: twin.links.connected == {0})
    await stage.clock.advance(60_000)
    calls = sum(call == (address(0), "/evenq.v1.Replication/Link") for call in stage.net.calls)
    assert calls <= 90, "they do not take it from each other without a pause"
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    both = [text for text in warnings if "a newer link of broker 1" in text]
    assert 1 <= len(both) <= 2, "each of the two says it once, however often it goes on"
    assert "two processes run as broker 1 (replication.broker_id)" in both[0]
    (seen,) = [text for text in warnings if "take each other's place" in text]
    assert "two processes run with replication.broker_id=1; stop one of them" in seen
    assert a.links.incoming.senders <= {1}


async def test_what_cannot_be_sent_is_an_error_or_a_line_and_ends_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await pair(stage)
    with pytest.raises(MalformedMessage, match="at most"):
        a.links.send(1, a.envelope(Records(0, 1, 1, (), 0, 0, bytes(RECORDS_BYTES_MAX + 1))))
    assert a.links.send(1, a.envelope(Nomination(1 << 70)))
    a.say(1, 3)
    await stage.until(lambda: b.received)
    assert b.numbers(0) == [3]
    assert "cannot be sent" in caplog.text
    caplog.clear()
    assert not a.say(8, 1)
    assert not a.say(8, 2)
    assert [record.message for record in caplog.records] == [
        f"replication of {GROUP}: broker 8 is in the group record and has no address here; known are [1]"
    ]


async def test_a_broker_that_ends_tells_its_peers_and_takes_nothing_more(stage: Stage) -> None:
    a, b = await pair(stage)
    await stage.clock.during(b.links.close())
    await stage.until(lambda: not a.links.connected)
    assert b.links.connected == set()
    assert not b.say(0, 1)
    a.say(1, 1)
    await stage.clock.advance(10_000)
    assert b.received == []
    assert a.links.connected == set()
    await b.links.close()


async def test_three_brokers_have_six_links(stage: Stage) -> None:
    stage.members[2] = address(2)
    nodes = [stage.node(number) for number in range(3)]
    await stage.until(lambda: all(len(node.links.connected) == 2 for node in nodes))
    assert [node.links.incoming.senders for node in nodes] == [{1, 2}, {0, 2}, {0, 1}]
    for node in nodes:
        for to in node.links.connected:
            node.say(to, node.id)
    await stage.until(lambda: all(len(node.received) == 2 for node in nodes))
    assert nodes[0].numbers(2) == [2]


async def test_links_follow_the_members(stage: Stage) -> None:
    a, b = await pair(stage)
    c = stage.node(2, starts=False)
    assert not a.say(2, 1)
    members = {0: address(0), 1: address(1), 2: address(2)}
    c.links.set_members(members)
    c.links.start()
    a.links.set_members(members)
    await stage.until(lambda: a.links.connected == {1, 2} and 0 in c.links.connected)
    assert a.say(2, 2)
    await stage.until(lambda: c.numbers(0) == [2])
    a.links.set_members({0: address(0), 2: address(2)})
    assert a.links.connected == {2}
    assert not a.say(1, 3)
    await stage.until(lambda: b.links.connected == set() and a.links.incoming.senders == {2})
    await stage.until(lambda: b.links.incoming.senders == set())
    a.links.set_members({0: address(0), 2: ""})
    assert a.links.connected == set(), "a member whose address is not known may come by itself"
    assert a.links.incoming.senders == {2}
    a.links.set_members({})
    assert a.links.incoming.senders != {0, 1, 2}
