"""Removing a copy that leads, replacing one, and growing: what is asked in which order, and what is refused before anything."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from test_moving import GONE, Wire, group

from evenq.client.core.admin.broker_group_views import BrokerGroupView, MoveAnswer
from evenq.client.loops.admin.changing_copies import copies_grown, copy_removed, copy_replaced
from evenq.errors import BadRequest, NotFound, PreconditionFailed, RequestTimeout
from evenq.runtime.clock import FakeClock


class Copies(Wire):
    """Notes the changes."""

    def __init__(self, *seen: Any, move: Any = None) -> None:
        super().__init__(seen, move or MoveAnswer(1, 5))
        self.changes: list[tuple[object, ...]] = []

    async def add_copy(self, broker: str, copy: int, address: str) -> BrokerGroupView:
        self.changes.append(("add", broker, copy, address))
        return group(0, 4, state="STARTING")

    async def set_in_sync_min(self, broker: str, copies: int) -> BrokerGroupView:
        self.changes.append(("need", broker, copies))
        return group(0, 4)

    async def remove_copy(self, broker: str, copy: int) -> BrokerGroupView:
        self.changes.append(("remove", broker, copy, *self.asked))
        return group(1, 5)


def play(work: Callable[[FakeClock], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        clock = FakeClock()
        task = asyncio.ensure_future(work(clock))  # type: ignore[arg-type]
        await clock.until(task.done)
        return await task

    return asyncio.run(main())


def test_a_copy_that_leads_hands_over_before_it_is_removed() -> None:
    wire = Copies(group(0, 4), group(0, 4), group(1, 5))
    play(lambda clock: copy_removed(wire, clock, "g", 0))
    assert wire.changes == [("remove", "g", 0, ("g", None, 4))]


def test_another_copy_is_removed_at_once_also_if_nobody_tells_who_leads() -> None:
    for seen in (group(0, 4), GONE, None):
        wire = Copies(seen)
        play(lambda clock, wire=wire: copy_removed(wire, clock, "g", 2))  # type: ignore[misc]
        assert wire.changes == [("remove", "g", 2)]


def test_a_leader_of_a_group_that_needs_all_its_copies_does_not_move() -> None:
    few = group(0, 4)
    wire = Copies(BrokerGroupView(broker_name="g", mode="sync", epoch=4, leader=0, in_sync_min=3, copies=few.copies))
    with pytest.raises(PreconditionFailed, match="needs 3 copies and has 3"):
        play(lambda clock: copy_removed(wire, clock, "g", 0))
    assert (wire.asked, wire.changes) == ([], [])


def test_a_leader_that_could_not_be_removed_after_it_had_handed_over_leads_on() -> None:
    whole = needing(group(0, 4), 2)
    seen = replace(whole, copies=(*whole.copies[:2], replace(whole.copies[2], state="AWAY", may_lead=False)))
    wire = Copies(seen)
    with pytest.raises(
        PreconditionFailed, match=r"without copy 0 fewer than the 2 .* not in sync: copy 2. Nothing was"
    ):
        play(lambda clock: copy_removed(wire, clock, "g", 0))
    assert (wire.asked, wire.changes) == ([], [])


def test_a_new_leader_that_does_not_serve_yet_keeps_the_old_copy() -> None:
    wire = Copies(group(0, 4), group(0, 4), group(1, 5, state="STARTING"))
    with pytest.raises(PreconditionFailed, match="copy 0 was not removed: try again"):
        play(lambda clock: copy_removed(wire, clock, "g", 0))
    assert wire.changes == []


def test_a_replacement_waits_for_the_new_copy() -> None:
    wire = Copies(GONE, group(0, 4))
    play(lambda clock: copy_replaced(wire, clock, "g", 1, new=2, address="h:1", wait_ms=5_000))
    assert wire.changes == [("add", "g", 2, "h:1"), ("remove", "g", 1)]


def test_a_new_copy_that_does_not_come_leaves_the_old_one_where_it_is() -> None:
    wire = Copies(group(0, 4))
    with pytest.raises(RequestTimeout, match=r"copy 7 .* was not in sync within 1,000 ms, and copy 1 was not removed"):
        play(lambda clock: copy_replaced(wire, clock, "g", 1, new=7, address="h:1", wait_ms=1_000))
    assert wire.changes == [("add", "g", 7, "h:1")]
    with pytest.raises(BadRequest, match="cannot be replaced by itself"):
        play(lambda clock: copy_replaced(wire, clock, "g", 1, new=1, address="h:1", wait_ms=1_000))


def test_a_copy_that_the_group_does_not_have_is_not_replaced_and_nothing_is_added() -> None:
    wire = Copies(group(0, 4))
    with pytest.raises(NotFound, match="no copy 9 to replace; its copies are 0, 1, 2"):
        play(lambda clock: copy_replaced(wire, clock, "g", 9, new=3, address="h:1", wait_ms=1_000))
    assert wire.changes == []


MEMBERS = {0: "h:0", 1: "h:1", 2: "h:2"}


def grown(*seen: Any, wait_ms: int = 60_000) -> list[tuple[object, ...]]:
    wire = Copies(*seen)
    play(lambda clock: copies_grown(wire, clock, "g", MEMBERS, in_sync_min=2, wait_ms=wait_ms))
    return wire.changes


def needing(one: BrokerGroupView, in_sync_min: int, *, copies: int = 3) -> BrokerGroupView:
    return replace(one, in_sync_min=in_sync_min, copies=one.copies[:copies])


def test_a_group_grows_in_the_order_that_never_needs_a_copy_that_has_not_everything() -> None:
    whole = group(0, 4)
    behind = replace(whole, copies=(*whole.copies[:2], replace(whole.copies[2], state="CATCHING_UP", may_lead=False)))
    alone = replace(whole, mode="", copies=whole.copies[:1])
    changes = grown(
        GONE, None, alone, needing(whole, 1, copies=1), needing(behind, 1), GONE, needing(whole, 1), needing(whole, 2)
    )
    assert changes == [("add", "g", 1, "h:1"), ("add", "g", 2, "h:2"), ("need", "g", 2)]


def test_a_group_that_has_all_of_it_is_left_alone_and_a_higher_minimum_stays() -> None:
    assert grown(needing(group(0, 4), 2)) == []
    assert grown(needing(group(0, 4), 3)) == []


def test_growing_says_what_is_missing_when_its_time_is_over() -> None:
    alone = replace(group(0, 4), mode="")
    with pytest.raises(RequestTimeout, match="it was not restarted with its replication settings yet"):
        grown(alone, wait_ms=500)
    with pytest.raises(BadRequest, match="2 copies cannot be in sync, as the group is to have 1"):
        play(lambda clock: copies_grown(Copies(), clock, "g", {0: "h:0"}, in_sync_min=2, wait_ms=500))
