"""The query's own loop among the members of its group: what it reports, and what may leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark_evenq.member.shared_member import Reached, SharedMember, Tenure, _SharedMemberLoop
from pyspark_evenq.options.source import ReadOptions

from evenq.errors import ConnectionFailed, IllegalOffset
from evenq.model.queue import MessageQueue

ZERO, ONE = (MessageQueue("flights", "broker-a", number) for number in range(2))


class Membership:
    """In place of the SDK's: which queues the member has, and what is reported of them."""

    def __init__(self) -> None:
        self.snapshots: dict[MessageQueue, Any] = {}
        self.advanced: list[tuple[MessageQueue, int]] = []
        self.reports = 0
        self.reporting = asyncio.Event()
        """Cleared: reports wait."""
        self.reporting.set()
        self.sure = True
        self.pulls: list[tuple[MessageQueue, int]] = []
        self.error: Exception | None = None
        """What the next pulls end with."""
        self.ownership = SimpleNamespace(owned=lambda: list(self.snapshots))
        self.held = SimpleNamespace(processes=self.snapshots.values, process=self.snapshots.get)
        table = SimpleNamespace(advance=self._advance, due=lambda: bool(self.advanced))
        self.progress = SimpleNamespace(table=table, report=self._report)
        self.sessions = SimpleNamespace(sure=lambda _broker: self.sure)
        self.routes = SimpleNamespace(address=self._address)
        self.calls = SimpleNamespace(pull=self._pull)

    def gain(self, queue: MessageQueue, begins: int = 0) -> Any:
        """The queue is the member's, once more if it was before."""
        if queue in self.snapshots:
            self.snapshots[queue].dropped = True
        self.snapshots[queue] = Snapshot(queue, begins)
        return self.snapshots[queue]

    def generation(self, _topic: str) -> int:
        return 1

    def _advance(self, queue: MessageQueue, offset: int) -> None:
        self.advanced.append((queue, offset))

    async def _report(self) -> None:
        await self.reporting.wait()
        self.reports += 1
        self.advanced.clear()

    async def _address(self, _topic: str, _broker: str) -> str:
        return "h:1"

    async def _pull(self, _address: str, _group: str, queue: MessageQueue, offset: int, **_: Any) -> None:
        self.pulls.append((queue, offset))
        if self.error is not None:
            raise self.error


class Snapshot:
    """In place of the SDK's `ProcessQueue`: one time that a queue is the member's."""

    def __init__(self, queue: MessageQueue, begins: int) -> None:
        self.queue, self.next, self.dropped = queue, begins, False


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.member = Membership()
        self.reached: Reached | None = None
        """Of the batch that was planned last, by the checkpoint."""
        monkeypatch.setattr(_SharedMemberLoop, "_parts", lambda _: (self.member.calls, self.member))
        options = ReadOptions.parse(
            {"endpoints": "h:1", "subscribe": "flights", "group": "g", "assignment": "shared"}, streaming=True
        )
        self.loop = _SharedMemberLoop(options, "me", lambda: self.reached)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with asyncio.timeout(60):
        yield Scene(monkeypatch)


async def test_progress_of_an_earlier_tenure_is_not_reported_under_the_present_one(scene: Scene) -> None:
    """43: another member may have read on between the two; the group would skip, or go back."""
    scene.member.gain(ZERO)
    scene.member.gain(ONE)
    before = await scene.loop.claim()
    assert await scene.loop.planned(before.values())
    scene.member.gain(ZERO, begins=70)
    await scene.loop.done({queue: (tenure, 50) for queue, tenure in before.items()})
    assert scene.member.advanced == [(ONE, 50)]
    now = await scene.loop.claim()
    assert (now[ZERO].begins, now[ZERO].is_same(before[ZERO]), now[ONE].is_same(before[ONE])) == (70, False, True)
    await scene.loop.note({ZERO: (now[ZERO], 80)})
    assert (ZERO, 80) in scene.member.advanced


async def test_what_is_done_is_reported_at_once_and_by_one_report_at_a_time(scene: Scene) -> None:
    tenure = Tenure(scene.member.gain(ZERO), 0, True)
    scene.member.reporting.clear()
    await scene.loop.note({ZERO: (tenure, 1)})
    await scene.loop.note({ZERO: (tenure, 2)})
    await asyncio.sleep(0)
    scene.member.reporting.set()
    assert scene.loop._reporting is not None
    await scene.loop._reporting
    assert scene.member.reports == 1
    await scene.loop.note({})
    await asyncio.sleep(0)
    assert scene.member.reports == 1, "nothing is due"


async def test_a_tenure_begins_with_a_word_to_its_broker_and_is_not_planned_without_an_answer(scene: Scene) -> None:
    scene.member.gain(ZERO, begins=5)
    scene.member.error = ConnectionFailed("refused")
    assert not (await scene.loop.claim())[ZERO].sure
    scene.member.error = IllegalOffset("gone", min_offset=7, max_offset=9)
    assert (await scene.loop.claim())[ZERO].sure, "the batch says what is lost"
    await scene.loop.claim()
    assert scene.member.pulls == [(ZERO, 5)] * 2, "not again"
    scene.member.sure = False
    assert not (await scene.loop.claim())[ZERO].sure, "its session is in doubt"


async def test_a_plan_with_a_queue_that_is_to_leave_is_none(scene: Scene) -> None:
    scene.member.gain(ZERO)
    claimed = await scene.loop.claim()
    scene.member.gain(ZERO)
    assert not await scene.loop.planned(claimed.values())
    assert await scene.loop.planned((await scene.loop.claim()).values())
    claimed = await scene.loop.claim()
    scene.member.sure = False
    assert not await scene.loop.planned(claimed.values())


async def test_a_queue_leaves_when_the_batch_that_reads_it_is_done_and_its_report_has_ended(scene: Scene) -> None:
    snapshot, other = scene.member.gain(ZERO), scene.member.gain(ONE)
    claimed = await scene.loop.claim()
    assert await scene.loop.planned([claimed[ZERO]])
    await scene.loop._finish(other)  # no batch reads it
    leaving = asyncio.ensure_future(scene.loop._finish(snapshot))
    scene.member.reporting.clear()
    await asyncio.sleep(0.01)
    assert not leaving.done()
    await scene.loop.done({ZERO: (claimed[ZERO], 9)})
    await asyncio.sleep(0.01)
    assert not leaving.done(), "its broker would refuse what is being reported"
    scene.member.reporting.set()
    await leaving
    assert scene.member.reports == 1


async def test_a_queue_leaves_also_when_the_checkpoint_alone_says_that_its_batch_is_done(scene: Scene) -> None:
    snapshot = scene.member.gain(ZERO)
    claimed = await scene.loop.claim()
    assert await scene.loop.planned([claimed[ZERO]])
    scene.reached = {ZERO: (claimed[ZERO], 9)}
    await scene.loop._finish(snapshot)
    assert scene.member.reports == 1


def test_a_member_reports_from_its_begin_to_its_end_and_not_outside() -> None:
    reports: list[int] = []
    member = SharedMember(
        ReadOptions.parse({"endpoints": "h:1", "subscribe": "flights", "group": "g"}, streaming=True), lambda: None
    )
    member.report()
    member._life = SimpleNamespace(report=lambda: "a report")  # type: ignore[assignment]
    member._background = SimpleNamespace(run=lambda _, timeout_ms: reports.append(timeout_ms))  # type: ignore[assignment]
    member.report()
    assert len(reports) == 1
    member._left = True
    member.report()
    assert len(reports) == 1


@pytest.mark.parametrize("error", [ConnectionFailed("h:1 is away"), TimeoutError()])
def test_a_report_that_no_broker_takes_is_left_to_the_next(error: Exception) -> None:
    member = SharedMember(
        ReadOptions.parse({"endpoints": "h:1", "subscribe": "flights", "group": "g"}, streaming=True), lambda: None
    )

    def fail(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise error

    tried: list[int] = []
    member._life = SimpleNamespace(report=lambda: None)  # type: ignore[assignment]
    member._background = SimpleNamespace(run=fail)  # type: ignore[assignment]
    member.report()
    member.report()
    assert len(tried) == 2
