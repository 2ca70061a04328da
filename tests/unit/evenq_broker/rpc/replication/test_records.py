"""Records are given to the other copies of the group and to nobody else, a few answers at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from evenq_broker.loops.replication.incoming_links import IncomingLinks
from evenq_broker.loops.replication.record_repair import fetch_records
from evenq_broker.loops.wire.records import WantedRecords
from evenq_broker.loops.wire.replication import LinkOpening
from evenq_broker.rpc.replication.replication import FETCHES_MAX, record_rpcs
from evenq_proofs.loop_net import LoopNet

from evenq.errors import BadRequest, HaNotAvailable, NotFound, TooManyRequests
from evenq.runtime.clock import FakeClock

ADDRESS = "host-0:8081"
WHO = LinkOpening("c", "broker-a", 1, 0)
LOG = bytes(range(256)) * 20_000


class Source:
    """A log in memory."""

    def __init__(self) -> None:
        self.trouble: Exception | None = None
        self.wanted: list[WantedRecords] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def given(self, wanted: WantedRecords) -> bytes:
        self.wanted.append(wanted)
        await self.hold.wait()
        if self.trouble is not None:
            raise self.trouble
        return LOG[wanted.start : wanted.end]


Ask = Callable[..., Awaitable[bytes]]


@pytest.fixture
def running() -> tuple[Source, Ask]:
    clock, source = FakeClock(), Source()
    links = IncomingLinks(cluster="c", group="broker-a", own_id=0, members=(0, 1), clock=clock, rng=random.Random(1))
    net = LoopNet(clock)
    net.serve(ADDRESS, record_rpcs(links, source))

    def ask(start: int, end: int, who: LinkOpening = WHO) -> Awaitable[bytes]:
        return fetch_records(net, ADDRESS, who, WantedRecords(start, end, 3), clock=clock)

    return source, ask


async def test_what_the_source_gives_comes_whole(running: tuple[Source, Ask]) -> None:
    source, ask = running
    assert await ask(7, 3_000_000) == LOG[7:3_000_000]
    assert source.wanted == [WantedRecords(7, 3_000_000, 3)]


@pytest.mark.parametrize(
    "who",
    [
        LinkOpening("other", "broker-a", 1, 0), LinkOpening("c", "broker-b", 1, 0), LinkOpening("c", "broker-a", 2, 0),
        LinkOpening("c", "broker-a", 1, 1), LinkOpening("c", "broker-a", 0, 0),
    ],
)  # fmt: skip
async def test_who_is_no_other_copy_of_this_group_gets_nothing(running: tuple[Source, Ask], who: LinkOpening) -> None:
    source, ask = running
    with pytest.raises(BadRequest):
        await ask(0, 9, who)
    assert source.wanted == []


@pytest.mark.parametrize("trouble", [BadRequest("no"), NotFound("gone"), HaNotAvailable("not known")])
async def test_a_refusal_of_the_source_is_told(running: tuple[Source, Ask], trouble: Exception) -> None:
    source, ask = running
    source.trouble = trouble
    with pytest.raises(type(trouble), match=str(trouble)):
        await ask(0, 9)


async def test_only_a_few_answers_are_read_at_once(running: tuple[Source, Ask]) -> None:
    source, ask = running
    source.hold.clear()
    held = [asyncio.ensure_future(ask(0, 9)) for _ in range(FETCHES_MAX)]
    while len(source.wanted) < FETCHES_MAX:  # noqa: ASYNC110  # the source's own list is looked at
        await asyncio.sleep(0)
    with pytest.raises(TooManyRequests, match=f"{FETCHES_MAX} answers"):
        await ask(0, 9)
    source.hold.set()
    assert await asyncio.gather(*held) == [LOG[:9]] * FETCHES_MAX
    assert await ask(0, 9) == LOG[:9]
