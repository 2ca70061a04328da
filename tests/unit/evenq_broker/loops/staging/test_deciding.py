"""Decisions about staged rows: made once and durable before anybody learns of them, carried to every broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.staging.staged import Batch, StagedRows
from evenq_broker.core.state.staging_records import BatchDecided, QueryKnown, StagedPut, TokensDropped
from evenq_broker.loops.staging.deciding import ROLL_WAIT_MS, BatchCoordinator, NameLocks, StagingStats
from evenq_broker.settings import StagingSettings, StoreSettings

from evenq.errors import BadRequest, ConnectionFailed, PreconditionFailed, StoreFull, TooManyRequests
from evenq.model import BrokerAddress

TOKEN, OTHER = "aa" * 16, "bb" * 16


class FakeRows:
    """Staged rows that only note what is asked of them."""

    def __init__(self) -> None:
        self.stats = StagingStats()
        self.table = StagedRows()
        self.rolled: list[tuple[Batch, str, list[str]]] = []
        self.resolved: list[Batch] = []
        self.error: Exception | None = None
        """What they raise, if anything."""
        self.stuck: Batch | None = None
        """A batch that cannot be rolled forward."""

    async def roll_forward(self, batch: Batch, coordinator: str, winners: Collection[str]) -> int:
        if batch == self.stuck:
            raise StoreFull("full")
        self.rolled.append((batch, coordinator, list(winners)))
        return len(winners)

    async def resolve(self, batch: Batch) -> None:
        self.resolved.append(batch)
        if self.error is not None:
            raise self.error

    def staged(self, query_id: str, token: str, *, coordinator: str = "a", staged_ms: int = 0) -> None:
        """One row of batch 0 waits."""
        number = len(self.table) + 1
        self.table.apply(StagedPut(number, number, query_id, 0, 0, 0, token, 0, coordinator, 1, 1, 10, staged_ms))


class Scene:
    """Decisions of a broker `a`, with rows that the test looks at."""

    def __init__(self, stage: Any, broker: Any) -> None:
        self.stage, self.broker, self.rows = stage, broker, FakeRows()
        self.deciding = BatchCoordinator(broker.kernel, cluster=broker.cluster, staging=self.rows)

    async def begin(self, query_id: str = "q", batch_id: int = 0, coordinator: str = "a") -> tuple[str, bool]:
        known: tuple[str, bool] = await self.stage.during(self.deciding.begin(query_id, batch_id, coordinator))
        return known

    async def decide(
        self, winners: dict[str, list[str]] | None = None, *, batch_id: int = 0, query_id: str = "q"
    ) -> bool:
        """`winners`: token to the brokers that have rows of it; None: one token at `a`."""
        winners = {TOKEN: ["a"]} if winners is None else winners
        decided: bool = await self.stage.during(self.deciding.decide(query_id, batch_id, winners))
        return decided

    async def outcome(self, *expired: str, batch_id: int = 0, tokens: tuple[str, ...] = (TOKEN, OTHER)) -> Any:
        return await self.stage.during(self.deciding.outcome("q", batch_id, "a", tokens, expired))

    def recorded(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[Any]:
        """What is written from now on; each write fails with `error`."""
        ops: list[Any] = []

        def record_once(*written: Any) -> asyncio.Future[None]:
            ops.extend(written)
            future = asyncio.get_running_loop().create_future()
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
            return future

        monkeypatch.setattr(self.broker.ledger.journal, "record_once", record_once)
        return ops


async def scene_of(stage: Any, **staging: Any) -> Scene:
    return Scene(stage, await stage.broker(staging=StagingSettings(**staging)))


async def test_a_query_keeps_the_coordinator_that_it_began_with(stage: Any) -> None:
    scene = await scene_of(stage)
    assert await scene.begin(coordinator="") == ("", False)
    assert await scene.begin(coordinator="b") == ("b", False)
    assert await scene.begin(coordinator="a") == ("b", False)
    with pytest.raises(PreconditionFailed, match="broker b decides for query q, not a; call that broker"):
        await scene.decide()


@pytest.mark.parametrize("query_id", ["", "x" * 256, "a\nb"])
async def test_a_query_id_that_cannot_be_shown_is_refused(stage: Any, query_id: str) -> None:
    scene = await scene_of(stage)
    with pytest.raises(BadRequest, match="the query id"):
        await scene.begin(query_id)
    with pytest.raises(BadRequest, match="the query id"):
        await scene.decide(query_id=query_id)


async def test_a_batch_is_decided_once_and_the_first_decision_stands(stage: Any) -> None:
    scene = await scene_of(stage)
    assert await scene.decide({TOKEN: ["a", "b"]}) is False
    assert await scene.decide({OTHER: ["a"]}) is True
    assert scene.deciding.table.winners("q", 0, "a") == [TOKEN]
    assert scene.deciding.table.behind("q") == {"a": [0], "b": [0]}
    assert scene.rows.stats.decisions == 1
    assert await scene.begin(batch_id=0) == ("a", True)
    assert await scene.begin(batch_id=1) == ("a", False)


async def test_two_decisions_at_once_are_one(stage: Any) -> None:
    scene = await scene_of(stage)
    both = asyncio.gather(scene.deciding.decide("q", 0, {TOKEN: ["a"]}), scene.deciding.decide("q", 0, {OTHER: ["a"]}))
    assert await stage.during(both) == [False, True]
    assert scene.deciding.table.winners("q", 0, "a") == [TOKEN]


async def test_a_decision_is_told_only_when_it_is_durable(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await scene_of(stage)
    await scene.begin()
    written = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(scene.broker.ledger.journal, "record_once", lambda *_: written)
    deciding = asyncio.ensure_future(scene.deciding.decide("q", 0, {TOKEN: ["a"]}))
    await stage.clock.advance(10)
    asking = asyncio.ensure_future(scene.deciding.begin("q", 0, ""))
    await stage.clock.advance(1_000)
    assert not deciding.done()
    assert not asking.done(), "no broker learns of it before"
    written.set_result(None)
    assert await stage.during(deciding) is False
    assert await stage.during(asking) == ("a", True)


async def test_a_caller_that_goes_away_does_not_break_its_decision_off(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage)
    await scene.begin()
    written = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(scene.broker.ledger.journal, "record_once", lambda *_: written)
    call = asyncio.ensure_future(scene.deciding.decide("q", 0, {TOKEN: ["a"]}))
    await stage.clock.advance(10)
    call.cancel()
    await stage.clock.advance(10)
    written.set_result(None)
    assert await scene.begin(batch_id=0) == ("a", True)
    assert scene.rows.stats.decisions == 1


async def test_a_decision_that_cannot_be_written_is_none(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await scene_of(stage)
    await scene.begin()
    with monkeypatch.context() as patch:
        ops = scene.recorded(patch, StoreFull("full"))
        with pytest.raises(StoreFull):
            await scene.decide()
        assert [type(op) for op in ops] == [BatchDecided]
    assert await scene.begin(batch_id=0) == ("a", False)
    assert scene.rows.stats.decisions == 0
    assert await scene.decide({OTHER: ["a"]}) is False, "another attempt may win now"


async def test_what_was_decided_and_dropped_is_written_with_its_names(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await scene_of(stage)
    now_ms = stage.clock.now_ms()
    ops = scene.recorded(monkeypatch)
    await scene.decide({TOKEN: ["a", "b"]})
    await scene.outcome(OTHER, batch_id=1)
    known, decided, dropped = ops
    assert isinstance(known, QueryKnown)
    assert (known.query_id, known.coordinator) == ("q", "a")
    assert decided == BatchDecided("q", 0, (("a", TOKEN), ("b", TOKEN)), decided.decided_ms)
    assert now_ms <= decided.decided_ms <= stage.clock.now_ms()
    assert dropped == TokensDropped("q", 1, (OTHER,))


async def test_what_expired_without_a_decision_can_never_win(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    scene = await scene_of(stage)
    with caplog.at_level(logging.WARNING):
        outcome = await scene.outcome(TOKEN)
    assert (outcome.decided, list(outcome.dropped)) == (False, [TOKEN])
    assert "batch 0 of query q was not decided in time: 1 stagings at broker a are dropped" in caplog.text
    with pytest.raises(PreconditionFailed, match="1 of its 2 stagings were dropped"):
        await scene.decide({TOKEN: ["a"], OTHER: ["a"]})
    assert await scene.decide({OTHER: ["a"]}) is False
    outcome = await scene.outcome(TOKEN)
    assert (outcome.decided, list(outcome.winners)) == (True, [OTHER])


async def test_abandoned_rows_are_dropped_and_those_of_a_decided_batch_are_not(stage: Any) -> None:
    scene = await scene_of(stage)
    assert await stage.during(scene.deciding.abandon("q", 0, [TOKEN])) is False
    await stage.until(lambda: scene.rows.resolved == [("q", 0)])
    with pytest.raises(PreconditionFailed, match="were dropped"):
        await scene.decide()
    await scene.decide({OTHER: ["a"]})
    assert await stage.during(scene.deciding.abandon("q", 0, [OTHER])) is True
    assert scene.deciding.table.winners("q", 0, "a") == [OTHER]


async def test_a_limited_number_of_queries_and_of_open_decisions_is_kept(stage: Any) -> None:
    scene = await scene_of(stage, queries_max=1, decisions_max=1)
    await scene.decide({TOKEN: ["away"]})
    with pytest.raises(TooManyRequests, match=r"staging\.queries_max"):
        await scene.begin("other")
    with pytest.raises(TooManyRequests, match=r"1 decided batches wait at broker a, .*: away"):
        await scene.decide({OTHER: ["a"]}, batch_id=1)


async def test_a_decision_is_rolled_forward_here_and_forgotten_then(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.decide({TOKEN: ["a"], OTHER: ["a"]})
    assert await stage.during(scene.deciding.roll_forward("q")) == []
    assert scene.rows.rolled == [(("q", 0), "a", [TOKEN, OTHER])]
    assert scene.deciding.table.open_count == 0
    await stage.during(scene.deciding.roll_forward("q"))
    assert len(scene.rows.rolled) == 1


async def test_batches_are_rolled_forward_in_order_and_not_past_one_that_failed(stage: Any) -> None:
    scene = await scene_of(stage)
    for batch_id in range(3):
        await scene.decide({f"a{batch_id}": ["a"]}, batch_id=batch_id)
    scene.rows.stuck = ("q", 0)
    assert await stage.during(scene.deciding.roll_forward("q")) == ["a"]
    assert scene.rows.rolled == []
    scene.rows.stuck = None
    await stage.during(scene.deciding.roll_forward("q"))
    assert [batch for batch, _, _ in scene.rows.rolled] == [("q", 0), ("q", 1), ("q", 2)]


async def test_a_broker_that_is_away_is_named_and_logged_once_until_it_answers(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scene = await scene_of(stage)
    await scene.decide({TOKEN: ["b"]})
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert await stage.during(scene.deciding.roll_forward("q")) == ["b"]
        assert caplog.text.count("broker b does not answer") == 1
        assert "batch 0 of query q is decided and not published there" in caplog.text
        await stage.broker("b")
        view = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),))
        scene.broker.catalog.routes.snapshot("ns:1", "n", [view], stage.clock.monotonic_ms())
        assert await stage.during(scene.deciding.roll_forward("q")) == []
        assert "broker b answers about staged rows again, after 2 tries" in caplog.text


async def test_a_roll_forward_does_not_hold_its_caller_for_ever(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await scene_of(stage)
    await scene.decide()

    async def endless(*_: Any) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(scene.rows, "roll_forward", endless)
    started_ms = stage.clock.monotonic_ms()
    assert await stage.during(scene.deciding.roll_forward("q")) == ["a"]
    assert stage.clock.monotonic_ms() - started_ms >= ROLL_WAIT_MS
    await stage.during(scene.deciding.close())


async def test_the_coordinator_is_asked_here_or_there(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.decide({TOKEN: ["a"]})
    outcome = await stage.during(scene.deciding.outcome_from("a", ("q", 0), [TOKEN], []))
    assert (outcome.decided, list(outcome.winners)) == (True, [TOKEN])
    with pytest.raises(ConnectionFailed, match="'b' is not alive"):
        await stage.during(scene.deciding.outcome_from("b", ("q", 0), [TOKEN], []))
    other = await stage.broker("b")
    await stage.during(other.staging.deciding.decide("r", 0, {OTHER: ["a"]}))
    view = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),))
    scene.broker.catalog.routes.snapshot("ns:1", "n", [view], stage.clock.monotonic_ms())
    outcome = await stage.during(scene.deciding.outcome_from("b", ("r", 0), [OTHER], []))
    assert (outcome.decided, list(outcome.winners)) == (True, [OTHER])


async def test_a_sweep_carries_on_and_asks_about_rows_that_nobody_spoke_of(stage: Any) -> None:
    scene = await scene_of(stage, ask_interval_ms=5_000)
    await scene.decide()
    scene.rows.staged("silent", "s0", staged_ms=stage.clock.now_ms() - 6_000)
    scene.rows.staged("lively", "l0", staged_ms=stage.clock.now_ms() - 1_000)
    sweep = asyncio.ensure_future(scene.deciding.sweep())
    await stage.clock.advance(100)
    assert scene.rows.rolled == [(("q", 0), "a", [TOKEN])]
    assert scene.rows.resolved == [("silent", 0)]
    await stage.clock.advance(5_000)
    assert ("lively", 0) in scene.rows.resolved
    sweep.cancel()


async def test_a_silent_coordinator_is_asked_once_in_each_sweep(stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    scene = await scene_of(stage, ask_interval_ms=5_000)
    for number in range(3):
        scene.rows.staged(f"q{number}", f"t{number}", coordinator="b")
    scene.rows.error = ConnectionFailed("refused")
    with caplog.at_level(logging.WARNING):
        sweep = asyncio.ensure_future(scene.deciding.sweep())
        await stage.clock.advance(100)
        assert scene.rows.resolved == [("q0", 0)]
        await stage.clock.advance(5_000)
        assert scene.rows.resolved == [("q0", 0)] * 2
    assert caplog.text.count("batch 0 of query q0 stays undecided: broker b does not answer (refused)") == 1
    sweep.cancel()


async def test_idle_queries_are_forgotten_unless_rows_of_them_wait(stage: Any) -> None:
    scene = await scene_of(stage, memory_ms=100_000, timeout_ms=1_000)
    await scene.begin("idle")
    await scene.begin("job-1")
    await scene.begin("waits")
    scene.rows.staged("waits", TOKEN, staged_ms=stage.clock.now_ms() + 10**9)
    await scene.decide({TOKEN: ["away"]}, query_id="open")
    sweep = asyncio.ensure_future(scene.deciding.sweep())
    await stage.clock.advance(30_000)
    assert set(scene.deciding.table.queries) == {"idle", "waits", "open"}, "a batch job is forgotten soon"
    await stage.clock.advance(100_000)
    assert set(scene.deciding.table.queries) == {"waits", "open"}
    sweep.cancel()


async def test_nobody_waits_for_a_broker_that_is_forgotten(stage: Any) -> None:
    scene = await scene_of(stage)
    await scene.begin("of-b", coordinator="b")
    await scene.decide({TOKEN: ["a", "b"]})
    scene.deciding.broker_forgotten("b")
    assert await scene.begin("of-b", coordinator="") == ("", False), "it may begin with another coordinator"
    assert scene.deciding.table.behind("q") == {"a": [0]}


async def test_decisions_are_known_after_a_restart(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path)
    broker = await stage.broker(store=store)
    deciding = broker.staging.deciding
    await stage.during(deciding.decide("q", 3, {TOKEN: ["away"]}))
    await stage.during(deciding.outcome("q", 4, "a", [OTHER], [OTHER]))
    await stage.end(broker)
    deciding = (await stage.broker(store=store)).staging.deciding
    assert await stage.during(deciding.decide("q", 3, {OTHER: ["a"]})) is True
    assert deciding.table.behind("q") == {"away": [3]}
    with pytest.raises(PreconditionFailed, match="were dropped"):
        await stage.during(deciding.decide("q", 4, {OTHER: ["a"]}))


async def test_one_name_goes_one_after_another_others_go_on_and_nothing_stays() -> None:
    locks, seen = NameLocks(), []

    async def work(name: str, number: int) -> None:
        async with locks.of(name):
            seen.append((name, number, "in"))
            await asyncio.sleep(0)
            seen.append((name, number, "out"))

    cancelled = asyncio.ensure_future(work("a", 9))
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work("a", number))
            group.create_task(work("b", number))
        cancelled.cancel()
    for name in ("a", "b"):
        own = [(number, what) for other, number, what in seen if other == name]
        assert own == [(number, what) for number in range(3) for what in ("in", "out")]
    assert len(locks) == 0
