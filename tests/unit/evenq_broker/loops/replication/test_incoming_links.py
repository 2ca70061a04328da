"""One link for each sender, refusals by name, and pauses after faults."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

import pytest
from evenq_broker.loops.replication.incoming_links import (
    BEAT_MS,
    OPENING_MS,
    PAUSE_FIRST_MS,
    PAUSE_MAX_MS,
    UNOPENED_MAX,
    IncomingLink,
    IncomingLinks,
    LinkRefused,
)
from evenq_broker.loops.wire.replication import LinkEnd, LinkOpening

from evenq.runtime.clock import FakeClock

OPENING = LinkOpening("c", "broker-a", 1, 0)


def table(clock: FakeClock, **options: object) -> IncomingLinks:
    return IncomingLinks(  # type: ignore[arg-type]
        cluster="c", group="broker-a", own_id=0, members=(0, 1, 2), clock=clock, rng=random.Random(1), **options
    )


def opened(links: IncomingLinks, opening: LinkOpening = OPENING) -> IncomingLink:
    link = links.arrived("127.0.0.1:1")
    links.opened(link, opening)
    return link


def test_a_newer_link_of_a_sender_ends_the_older_one_and_no_other() -> None:
    clock, heard = FakeClock(), list[int]()
    links = table(clock, on_opened=heard.append)
    older, other = opened(links), opened(links, replace(OPENING, sender=2))
    newer = opened(links)
    assert older.end is not None
    assert older.end.taken_over
    assert "newer link of broker 1" in older.end.reason
    assert (newer.end, other.end) == (None, None)
    links.left(older)
    assert links.senders == {1, 2}, "the end of the older link takes nothing from the newer one"
    links.left(newer)
    assert links.senders == {2}
    assert heard == [1, 2, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster": "other"}, "this is cluster 'c', not 'other'"),
        ({"broker_name": "broker-b"}, "group 'broker-a', not of 'broker-b'"),
        ({"receiver": 2}, "this is broker 0 of group 'broker-a', not 2"),
        ({"sender": 7}, "broker 7 is not another member"),
        ({"sender": 0}, "broker 0 is not another member"),
    ],
)
def test_who_means_somebody_else_is_refused_by_name(change: dict[str, object], words: str) -> None:
    links = table(FakeClock())
    with pytest.raises(LinkRefused, match=words):
        opened(links, replace(OPENING, **change))  # type: ignore[arg-type]
    assert links.senders == set()


async def test_a_sender_waits_longer_after_each_fault_and_is_forgiven_after_two_minutes() -> None:
    clock = FakeClock()
    links = table(clock)
    pauses = []
    for _ in range(12):
        link = opened(links)
        links.refuse(link, "it sent nonsense")
        assert link.end == LinkEnd("it sent nonsense")
        links.left(link)
        pause_ms = links.pause(1, "asked again within the pause")
        pauses.append(pause_ms)
        with pytest.raises(LinkRefused, match="closed for a while: it sent nonsense"):
            opened(links)
        await clock.advance(pause_ms)
    assert pauses[0] <= PAUSE_FIRST_MS * 1.2
    assert PAUSE_MAX_MS * 0.8 <= pauses[-1] <= PAUSE_MAX_MS * 1.2
    opened(links, replace(OPENING, sender=2))
    await clock.advance(120_000)
    assert links.pause(1, "once more") <= PAUSE_FIRST_MS * 1.2


def test_a_pause_ends_the_link_that_stands() -> None:
    links = table(FakeClock())
    link = opened(links)
    links.pause(1, "a confirmation over the log's end")
    assert link.end == LinkEnd("a confirmation over the log's end")


async def test_a_link_tells_each_second_that_it_stands_and_at_once_why_it_is_closed() -> None:
    clock = FakeClock()
    link = opened(table(clock))
    assert await link.news() is None  # it was opened
    began_ms = clock.monotonic_ms()
    assert await clock.during(link.news()) is None
    assert BEAT_MS <= clock.monotonic_ms() - began_ms <= BEAT_MS + 10
    waiting = asyncio.ensure_future(link.news())
    await clock.advance(10)
    link.close("first")
    link.close("second")
    assert await clock.during(waiting) == LinkEnd("first")
    assert await link.news() == LinkEnd("first")


async def test_a_call_without_an_opening_ends_and_there_are_not_many_of_them() -> None:
    clock = FakeClock()
    links = table(clock)
    silent = [links.arrived(f"127.0.0.1:{number}") for number in range(UNOPENED_MAX)]
    with pytest.raises(LinkRefused, match="the maximum"):
        links.arrived("127.0.0.1:99")
    while (end := await clock.during(silent[0].news())) is None:
        assert clock.monotonic_ms() < OPENING_MS
    assert "no opening" in end.reason
    links.left(silent[0])
    opened(links)


def test_after_the_end_nobody_is_taken() -> None:
    links = table(FakeClock())
    link, waiting = opened(links), links.arrived("127.0.0.1:5")
    links.close("broker 0 ends")
    assert link.end == waiting.end == LinkEnd("broker 0 ends")
    with pytest.raises(LinkRefused, match="broker 0 ends"):
        links.arrived("127.0.0.1:6")


def test_a_refusal_is_one_line_until_its_reason_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    links = table(FakeClock())
    for reason in ("this is group a", "this is group a", "this is group b"):
        for _ in range(5):
            links.refuse(links.arrived("10.0.0.9:1234"), reason)
    assert [record.message for record in caplog.records] == [
        "replication of broker-a: a link from 10.0.0.9:1234 is rejected: this is group a",
        "replication of broker-a: a link from 10.0.0.9:1234 is rejected: this is group b",
    ]
    caplog.clear()
    links.refuse(opened_after(links), "nonsense")
    links.pause(1, "nonsense again")
    [line] = [record.message for record in caplog.records]
    assert line.startswith("replication of broker-a: links with broker 1 are closed for ")
    assert line.endswith(" ms: nonsense")


def opened_after(links: IncomingLinks) -> IncomingLink:
    """A link although earlier ones were refused and never left."""
    links._unopened.clear()
    return opened(links)


def test_the_link_of_a_copy_that_was_removed_ends_with_words_and_its_pause_is_forgotten() -> None:
    links = table(FakeClock())
    link, other = opened(links), opened(links, replace(OPENING, sender=2))
    links.set_members((0, 2, 3))
    assert "broker 1 is not another member of group 'broker-a' (others of broker 0: 2, 3)" in str(link.end)
    assert "evenq broker add-replica" in str(link.end)
    assert other.end is None
    links.left(link)
    with pytest.raises(LinkRefused, match="broker 1 is not another member"):
        opened(links)
    opened(links, replace(OPENING, sender=3))
    links.pause(2, "nonsense")
    links.set_members((0, 3))
    links.set_members((0, 2, 3))
    opened(links, replace(OPENING, sender=2))


def test_all_copies_read_crc32_once_the_newest_link_of_each_said_so() -> None:
    links = table(FakeClock())
    assert not links.all_read_crc32(), "no other copy has connected"
    new, other = replace(OPENING, reads_crc32=True), replace(OPENING, sender=2, reads_crc32=True)
    link = opened(links, new)
    assert not links.all_read_crc32(), "broker 2 is not known"
    opened(links, other)
    assert links.all_read_crc32()
    links.left(link)
    assert links.all_read_crc32(), "a copy that is away comes back as it was, or says otherwise when it does"
    opened(links, OPENING)
    assert not links.all_read_crc32(), "it was replaced by an older version"
    links.set_members((0, 2))
    assert links.all_read_crc32(), "it is not a copy any more"
    links.set_members((0, 1, 2))
    assert not links.all_read_crc32(), "it counts again when it has connected"
    opened(links, new)
    assert links.all_read_crc32()


def test_a_copy_that_is_alone_reads_crc32() -> None:
    links = table(FakeClock())
    links.set_members((0,))
    assert links.all_read_crc32()
