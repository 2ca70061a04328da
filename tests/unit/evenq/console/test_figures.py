"""Samples, series and rates of the console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from evenq.console import figures as module
from evenq.console.figures import IDLE_MS, INTERVAL_MS, SAMPLES_MAX, Figures
from evenq.errors import Forbidden, Unauthorized
from evenq.runtime.clock import FakeClock
from tests.unit.evenq.console.fake_admin import FakeAdmin, broker, cluster, group, topic


class Watch:
    """Figures of a fake cluster, on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.admin = FakeAdmin(self.clock)
        self.figures = Figures(self.admin.client, self.clock)

    async def see(self, messages_in: int | None, *, after_ms: int = INTERVAL_MS) -> None:
        """Takes a sample in which broker `a` has received so many messages; None: it does not answer."""
        self.admin.clusters = cluster([broker(messages_in=messages_in or 0, answered=messages_in is not None)])
        await self.clock.advance(after_ms)
        await self.clock.during(self.figures.newest())


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    watch = Watch()
    yield watch
    await watch.figures.close()


async def test_a_rate_is_the_growth_of_a_counter_per_second(watch: Watch) -> None:
    await watch.see(100, after_ms=0)
    assert watch.figures.rate("in", "a") is None, "one sample has no rate"
    await watch.see(150)
    assert watch.figures.rate("in", "a") == 10
    await watch.see(150)
    assert watch.figures.rate("in", "a") == 0


async def test_the_rate_of_a_counter_that_fell_is_unknown_until_the_next_sample(watch: Watch) -> None:
    for count in (100, 150, 20):
        await watch.see(count)
    assert watch.figures.rate("in", "a") is None
    await watch.see(30)
    assert watch.figures.rate("in", "a") == 2


async def test_a_broker_that_does_not_answer_leaves_a_gap_and_no_rate(watch: Watch) -> None:
    for count in (100, 150, None):
        await watch.see(count)
    assert watch.figures.rate("in", "a") is None
    await watch.see(400)
    assert watch.figures.rate("in", "a") is None, "the value before it is unknown"
    await watch.see(450)
    assert watch.figures.rate("in", "a") == 10
    assert [value for _, value in watch.figures.history("in", "a")] == [100, 150, None, 400, 450]


async def test_the_time_without_a_visitor_is_a_gap_and_not_a_slow_rate(watch: Watch) -> None:
    await watch.see(0, after_ms=0)
    await watch.see(50)
    await watch.clock.advance(3 * IDLE_MS)
    await watch.see(1_000_000, after_ms=0)
    assert watch.figures.rate("in", "a") is None
    assert None in [value for _, value in watch.figures.history("in", "a")]


async def test_a_jump_of_the_wall_clock_changes_no_rate(watch: Watch) -> None:
    await watch.see(0, after_ms=0)
    watch.clock.jump_wall(3_600_000)
    await watch.see(50)
    assert watch.figures.rate("in", "a") == 10
    watch.clock.jump_wall(-7_200_000)
    await watch.see(100)
    assert watch.figures.rate("in", "a") == 10


async def test_the_rate_of_something_that_was_never_seen_is_unknown(watch: Watch) -> None:
    await watch.see(1)
    assert watch.figures.rate("in", "nobody") is None
    assert watch.figures.history("nonsense", "a") == []


async def test_what_could_not_be_read_is_none_and_never_zero(watch: Watch) -> None:
    watch.admin.topics, watch.admin.groups = [topic("orders", 7)], [group("billing", 3)]
    first = await watch.clock.during(watch.figures.newest())
    assert first.topics is not None
    watch.admin.topics = Forbidden("no grant")
    await watch.clock.advance(INTERVAL_MS)
    sample = await watch.figures.newest()
    assert sample.topics is None
    assert isinstance(sample.failures["topics"], Forbidden)
    assert sample.groups is not None
    assert sample.groups["billing"].lag == 3
    assert [value for _, value in watch.figures.history("messages", "orders")] == [7, None]


async def test_the_lag_of_a_group_with_a_silent_broker_is_unknown(watch: Watch) -> None:
    watch.admin.groups = [group("billing", 3, silent=("b",)), group("audit", 4)]
    await watch.clock.during(watch.figures.newest())
    assert [value for _, value in watch.figures.history("lag", "audit")] == [4]
    assert watch.figures.history("lag", "billing") == []


async def test_a_series_keeps_the_newest_samples_only(watch: Watch) -> None:
    for count in range(SAMPLES_MAX + 10):
        await watch.see(count)
    values = [value for _, value in watch.figures.history("in", "a")]
    assert len(values) == SAMPLES_MAX
    assert values[-1] == SAMPLES_MAX + 9


async def test_the_number_of_series_is_bounded(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    watch.admin.topics = [topic(f"t{number}", number + 1) for number in range(10)]
    await watch.clock.during(watch.figures.newest())
    await watch.clock.advance(INTERVAL_MS)
    assert sum(bool(watch.figures.history("messages", f"t{number}")) for number in range(10)) == 3


async def test_series_of_deleted_topics_make_room_for_new_ones(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    monkeypatch.setattr(module, "SAMPLES_MAX", 4)
    for round_ in range(8):
        watch.admin.topics = [topic("old", 1)] if round_ < 2 else [topic(f"new{number}", 1) for number in range(3)]
        await watch.clock.advance(INTERVAL_MS)
        await watch.clock.during(watch.figures.newest())
    assert watch.figures.history("messages", "old") == []
    assert all(watch.figures.history("messages", f"new{number}") for number in range(3))


async def test_a_topic_that_is_new_has_the_times_of_its_own_samples(watch: Watch) -> None:
    await watch.see(1, after_ms=0)
    watch.admin.topics = [topic("late", 9)]
    await watch.see(2)
    assert watch.figures.history("messages", "late") == [((await watch.figures.newest()).at_ms, 9)]


async def test_sampling_ends_when_nobody_looks_and_begins_with_the_next_page(watch: Watch) -> None:
    first = await watch.clock.during(watch.figures.newest())
    await watch.clock.advance(2 * IDLE_MS)
    calls = watch.admin.calls
    await watch.clock.advance(IDLE_MS)
    assert watch.admin.calls == calls
    sample = await watch.clock.during(watch.figures.newest())
    assert watch.admin.calls == calls + 3
    assert sample.at_ms >= first.at_ms + 3 * IDLE_MS


async def test_sampling_goes_on_while_somebody_looks(watch: Watch) -> None:
    for _ in range(3):
        await watch.clock.during(watch.figures.newest())
        calls = watch.admin.calls
        await watch.clock.advance(IDLE_MS - INTERVAL_MS)
        assert watch.admin.calls > calls


async def test_closed_figures_do_not_sample_again(watch: Watch) -> None:
    await watch.clock.during(watch.figures.newest())
    await watch.figures.close()
    calls = watch.admin.calls
    with pytest.raises(Unauthorized, match="signed out"):
        await watch.clock.during(watch.figures.newest())
    await watch.clock.advance(IDLE_MS)
    assert watch.admin.calls == calls


async def test_a_page_that_waits_for_the_first_sample_gets_an_error_when_its_session_ends(watch: Watch) -> None:
    watch.admin.takes_ms = 1_000
    waiting = asyncio.ensure_future(watch.figures.newest())
    await watch.clock.advance(10)
    await watch.figures.close()
    with pytest.raises(Unauthorized, match="signed out"):
        await watch.clock.during(waiting)


async def test_pages_at_the_same_time_share_one_sample(watch: Watch) -> None:
    watch.admin.takes_ms = 500
    samples = await watch.clock.during(asyncio.gather(*(watch.figures.newest() for _ in range(20))))
    assert watch.admin.calls == 3
    assert all(one is samples[0] for one in samples)


async def test_a_slow_cluster_is_sampled_less_often(watch: Watch) -> None:
    watch.admin.takes_ms = 4_000
    await watch.clock.during(watch.figures.newest())
    calls = watch.admin.calls
    await watch.clock.advance(30_000)
    assert watch.admin.calls == calls, "a sample of 4 s is followed by 36 s without one"
    await watch.clock.advance(10_000)
    assert watch.admin.calls == calls + 3


async def test_a_cluster_that_fails_is_asked_again_and_shown_when_it_answers(watch: Watch) -> None:
    watch.admin.fail()
    first = await watch.clock.during(watch.figures.newest())
    assert set(first.failures) == {"cluster", "topics", "groups"}
    await watch.see(5)
    assert (await watch.figures.newest()).cluster is not None
