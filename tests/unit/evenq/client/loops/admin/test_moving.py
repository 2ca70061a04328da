"""Letting another copy lead: what is asked, what is waited for, and answers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from evenq.client.core.admin.broker_group_views import BrokerCopyView, BrokerGroupView, LeaderMoveView, MoveAnswer
from evenq.client.core.admin.views import ClusterView
from evenq.client.loops.admin.moving import LOST_MS, leader_moved
from evenq.errors import ConnectionFailed, Error, NotFound, PreconditionFailed
from evenq.runtime.clock import FakeClock


def group(leader: int | None, epoch: int, *, state: str = "LEADER") -> BrokerGroupView:
    copies = tuple(
        BrokerCopyView(
            copy=number, address="", state=state if number == leader else "IN_SYNC", may_lead=True, log_end=1,
            lag_bytes=0, lag_ms=0, away_since_ms=0,
        )
        for number in range(3)
    )  # fmt: skip
    return BrokerGroupView(broker_name="g", mode="sync", epoch=epoch, leader=leader, in_sync_min=2, copies=copies)


class Wire:
    """Answers in turn, the last one again and again."""

    def __init__(self, seen: Sequence[BrokerGroupView | Error | None], answer: MoveAnswer | Error) -> None:
        self.seen, self.answer = list(seen), answer
        self.asked: list[tuple[str, int | None, int]] = []

    async def describe_cluster(self) -> ClusterView:
        one = self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]
        if isinstance(one, Error):
            raise one
        return ClusterView(
            cluster="c", brokers=(), nameservers=(), rebalancer="", rebalancer_answers=False, topics=0, groups=0,
            broker_groups=() if one is None else (one,),
        )  # fmt: skip

    async def move_leader(self, broker: str, *, to: int | None, epoch: int) -> MoveAnswer:
        self.asked.append((broker, to, epoch))
        if isinstance(self.answer, Error):
            raise self.answer
        return self.answer


def moved(wire: Wire, *, to: int | None = None, wait_ms: int = 1_000) -> tuple[LeaderMoveView, int]:
    """And how long it took."""

    async def main() -> tuple[LeaderMoveView, int]:
        clock = FakeClock()
        task: asyncio.Future[Any] = asyncio.ensure_future(leader_moved(wire, clock, "g", to=to, wait_ms=wait_ms))
        await clock.until(task.done)
        done: Awaitable[Any] = task
        return await done, clock.monotonic_ms()

    return asyncio.run(main())


GONE = ConnectionFailed("no server answers")


def test_it_waits_until_the_new_leader_serves() -> None:
    wire = Wire([group(0, 4), GONE, None, group(None, 5), group(1, 5, state="STARTING"), group(1, 5)], MoveAnswer(1, 5))
    view, _ = moved(wire, to=1)
    assert (view.before, view.leader, view.epoch, view.served) == (0, 1, 5, True)
    assert view.took_ms >= 200, "four looks were in vain"
    assert wire.asked == [("g", 1, 4)], "with the epoch from before, so that a repeat changes nothing"


def test_a_leader_that_leads_already_is_told_at_once() -> None:
    view, _ = moved(Wire([group(0, 4), GONE], MoveAnswer(0, 4)), to=0)
    assert (view.before, view.leader, view.served, view.took_ms) == (0, 0, True, 0)


def test_a_lost_answer_is_made_up_for_by_who_is_seen_to_lead() -> None:
    view, _ = moved(Wire([group(0, 4), group(0, 4), group(2, 5)], GONE))
    assert (view.leader, view.epoch, view.served) == (2, 5, True)


def test_a_lost_answer_after_which_nobody_else_leads_is_the_error() -> None:
    with pytest.raises(ConnectionFailed, match="no server answers"):
        moved(Wire([group(0, 4)], GONE), wait_ms=10 * LOST_MS)


def test_an_answer_is_believed_where_the_new_leader_cannot_be_reached() -> None:
    view, _ = moved(Wire([group(0, 4), GONE], MoveAnswer(2, 5)))
    assert (view.leader, view.epoch, view.served) == (2, 5, False)


def test_another_copy_that_took_over_is_said() -> None:
    with pytest.raises(PreconditionFailed, match="copy 2 of broker group g took over, not copy 1"):
        moved(Wire([group(0, 4), group(2, 5)], MoveAnswer(2, 5)), to=1)


def test_refusals_come_as_they_are_for_groups_that_nobody_tells_of_too() -> None:
    with pytest.raises(NotFound, match="no broker group"):
        moved(Wire([None], NotFound("no broker group is named 'g'")))
    with pytest.raises(ConnectionFailed):
        moved(Wire([None], GONE))
