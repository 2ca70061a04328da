"""A leader's answers to followers that ask where logs part: one read for each peer, the newest question is answered."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "core" / "replication"))

from evenq_broker.core.replication.actions import SendEpochs
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.messages import Envelope, EpochsReply, LastRecord
from evenq_broker.loops.replication.epoch_replies import EpochReplies
from group import envelope, ready, seen

from evenq.errors import StoreError
from evenq.runtime.tasks import spawn

TABLE = EpochTable(0, (EpochStart(1, 0),))


class Stage:
    """A leader of epoch 1 whose reads wait."""

    def __init__(self) -> None:
        self.leader = ready()
        self.sent: list[tuple[int, LastRecord | None, int]] = []
        """To whom, with what, and the number of the question."""
        self.reads: list[asyncio.Future[LastRecord | None]] = []
        self.places: list[int] = []
        self.replies = EpochReplies(self.leader, begin=self._begin)

    async def last_record(self, end: int) -> LastRecord | None:
        self.places.append(end)
        self.reads.append(asyncio.get_running_loop().create_future())
        return await self.reads[-1]

    def _begin(self, coroutine, *, name: str) -> None:  # type: ignore[no-untyped-def]
        self.task = spawn(coroutine, name=name)

    def send(self, to: int, one: Envelope) -> None:
        assert isinstance(one.body, EpochsReply)
        self.sent.append((to, one.body.last, one.body.number))

    async def ask(self, number: int, match: int, *, to: int = 1) -> None:
        self.replies.send(SendEpochs(to, envelope(0, EpochsReply(number, 11, TABLE, 10)), match), log=self, peers=self)  # type: ignore[arg-type]
        await asyncio.sleep(0)

    async def read(self, last: LastRecord | Exception | None, nth: int = -1) -> None:
        if isinstance(last, Exception):
            self.reads[nth].set_exception(last)
        else:
            self.reads[nth].set_result(last)
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def stage() -> Stage:
    return Stage()


LAST = LastRecord(3, 10, 99)


async def test_a_reply_leaves_with_the_record_once_that_was_read(stage: Stage) -> None:
    await stage.ask(1, 10)
    assert (stage.places, stage.sent) == ([10], [])
    await stage.read(LAST)
    assert stage.sent == [(1, LAST, 1)]


async def test_a_record_that_cannot_be_read_holds_no_reply_up(stage: Stage) -> None:
    for number, outcome in enumerate((None, StoreError("its file is not there"))):
        await stage.ask(number, 10)
        await stage.read(outcome)
    assert stage.sent == [(1, None, 0), (1, None, 1)]


async def test_of_one_peer_one_record_is_read_at_a_time_and_the_newest_question_is_answered(stage: Stage) -> None:
    await stage.ask(1, 10)
    await stage.ask(2, 10)
    await stage.ask(8, 7, to=2)
    assert stage.places == [10, 7]
    await stage.read(LAST, 0)
    assert stage.sent == [(1, LAST, 2)]
    await stage.ask(3, 10)
    await stage.ask(4, 8)
    await stage.read(LAST)
    assert stage.sent[1:] == [(1, None, 4)], "the record that was read is of another place"


async def test_what_was_read_of_a_log_that_may_have_been_cut_since_is_not_sent(stage: Stage) -> None:
    """A follower that has not heard of the next epoch would take another log's record for this one's, and end."""
    await stage.ask(1, 10)
    stage.leader.observed(seen(3, epoch=2, leader=1), 0)
    stage.leader.epoch_persisted(2)
    await stage.read(LAST)
    assert stage.sent == []
