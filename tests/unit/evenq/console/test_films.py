"""The film of a group: which moves it keeps, what it does not know, and how it is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from html import unescape
from typing import cast

import pytest

from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import ExplainedQueueView, ExplainView
from evenq.console import films
from evenq.console.films import GROUPS_MAX, IDLE_MS, INTERVAL_MS, MOVES_MAX, Films, GroupFilm, strip
from evenq.errors import ConnectionFailed, Error, GroupNotFound
from evenq.model import MessageQueue
from evenq.runtime.clock import FakeClock
from tests.unit.evenq.console.conftest import Browser, ConsoleStage
from tests.unit.evenq.console.test_attacks import Shape
from tests.unit.evenq.console.test_groups import rows, words

BEGIN_MS = 1_000_000


def queue(number: int = 0) -> MessageQueue:
    return MessageQueue("orders", "a", number)


def row(
    number: int = 0, owner: str = "x", *, since_ms: int = 0, before: str = "", reason: str = "why"
) -> ExplainedQueueView:
    return ExplainedQueueView(
        queue=queue(number),
        state="OWNED" if owner else "UNOWNED",
        owner=owner,
        since_ms=since_ms,
        reason=reason,
        previous_owner=before,
        owner_zone="",
        broker_zone="",
    )


def view(*rows: ExplainedQueueView, problems: Sequence[str] = ()) -> ExplainView:
    return ExplainView(
        group="billing", decides="the test", strategy="STICKY", generation="1.1", queues=rows, idle={},
        problems=tuple(problems),
    )  # fmt: skip


def seen(*views: ExplainView) -> GroupFilm:
    film = GroupFilm(since_ms=BEGIN_MS)
    for number, one in enumerate(views):
        film.see(one, BEGIN_MS + number * INTERVAL_MS)
    return film


def moves(film: GroupFilm) -> list[tuple[int, int, str | None, str, bool]]:
    return [(one.at_ms, one.queue.queue_id, one.before, one.after, one.gap) for one in film.moves]


def test_the_first_look_keeps_the_last_move_of_each_queue() -> None:
    film = seen(view(row(0, "x", since_ms=50, before="y"), row(1, "x", since_ms=40), row(2, "x")))
    assert moves(film) == [(40, 1, None, "x", False), (50, 0, "y", "x", False)], "of queue 2 no move is known"


def test_each_move_is_kept_once_with_its_reason() -> None:
    film = seen(
        view(row(0, "x", since_ms=50)),
        view(row(0, "x", since_ms=50)),
        view(row(0, "y", since_ms=60, before="x", reason="y joined")),
        view(row(0, "y", since_ms=60, before="x", reason="y joined")),
        view(row(0, "x", since_ms=70, before="y", reason="y left")),
    )
    assert moves(film) == [(50, 0, None, "x", False), (60, 0, "x", "y", False), (70, 0, "y", "x", False)]
    assert [one.reason for one in film.moves] == ["why", "y joined", "y left"]


def test_moves_that_were_not_seen_are_marked() -> None:
    film = seen(
        view(row(0, "x", since_ms=50), row(1, "x", since_ms=50)),
        view(row(0, "y", since_ms=80, before="z"), row(1, "x", since_ms=80, before="z")),
    )
    assert moves(film)[2:] == [(80, 0, "z", "y", True), (80, 1, "z", "x", True)]


def test_a_newer_time_of_the_same_owner_is_not_a_move() -> None:
    """As after a change of the leading rebalancer."""
    film = seen(view(row(0, "x", since_ms=50)), view(row(0, "x", since_ms=90)))
    assert len(film.moves) == 1


def test_a_queue_that_waits_for_its_successor_has_no_owner_in_between() -> None:
    film = seen(
        view(row(0, "x", since_ms=50)),
        view(row(0, "", since_ms=60, before="x")),
        view(row(0, "y", since_ms=70, before="x")),
    )
    assert moves(film)[1:] == [(60, 0, "x", "", False), (70, 0, "", "y", False)]


def test_a_queue_that_ends_leaves_its_owner_unless_a_broker_is_silent() -> None:
    both = view(row(0, "x", since_ms=50), row(1, "x", since_ms=50))
    film = seen(both, view(row(0, "x", since_ms=50), problems=["broker b does not answer"]))
    assert len(film.moves) == 2
    film = seen(both, view(row(0, "x", since_ms=50)))
    assert moves(film)[2:] == [(BEGIN_MS + INTERVAL_MS, 1, "x", "", False)]


def test_several_owners_of_a_queue_are_one_text() -> None:
    film = seen(view(row(0, "x", since_ms=50), row(0, "y", since_ms=60)))
    assert moves(film) == [(60, 0, None, "2 members", False)]


def test_a_film_has_bounded_moves_and_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [
        view(row(0, f"m{number}", since_ms=number + 1, before=f"m{number - 1}")) for number in range(MOVES_MAX + 7)
    ]
    film = seen(*looks)
    assert (len(film.moves), film.dropped) == (MOVES_MAX, 7)
    monkeypatch.setattr(films, "QUEUES_MAX", 3)
    film = seen(view(*(row(number, since_ms=5) for number in range(5))))
    assert (len(film.owners), film.left_out) == (3, 2)


def test_moves_of_one_moment_are_a_step() -> None:
    film = seen(
        view(
            row(0, "x", since_ms=10_000, before="y"),
            row(1, "x", since_ms=10_900, before="y"),
            row(2, "z", since_ms=11_500, before="y", reason="z joined"),
            row(3, "x", since_ms=20_000, before="z"),
        )
    )
    newest, first = film.steps()
    assert [one.queue.queue_id for one in newest.moves] == [3]
    assert (first.at_ms, first.ways, first.reasons) == (11_500, [("y", "x", 2), ("y", "z", 1)], ["why", "z joined"])


def test_the_owners_of_any_moment_are_known_or_unknown() -> None:
    film = seen(
        view(row(0, "x", since_ms=50, before="w"), row(1, "x", since_ms=50), row(2, "x")),
        view(row(0, "y", since_ms=60, before="x"), row(1, "y", since_ms=70, before="z"), row(2, "x")),
    )
    assert film.owners_at(45) == {queue(0): "w", queue(1): None, queue(2): "x"}
    assert film.owners_at(55) == {queue(0): "x", queue(1): None, queue(2): "x"}, "queue 1 had other owners by then"
    assert film.owners_at(60) == {queue(0): "y", queue(1): None, queue(2): "x"}
    assert film.owners_at(70) == {queue(0): "y", queue(1): "y", queue(2): "x"}


def test_the_picture_covers_the_whole_time() -> None:
    film = seen(view(row(0, "x", since_ms=500, before="w")), view(row(0, "y", since_ms=750, before="x")))
    parts = strip(film, [queue(0)], 0, 1_000)[queue(0)]
    assert [(one.begin, one.length, one.owner) for one in parts] == [(0, 500, "w"), (500, 250, "x"), (750, 250, "y")]
    assert parts[1].number != parts[2].number
    [unknown] = strip(film, [queue(9)], 0, 1_000)[queue(9)]
    assert (unknown.owner, unknown.number) == (None, -1)


class Explaining:
    """Answers `explain_group`; counts the calls."""

    def __init__(self) -> None:
        self.answer: ExplainView | Error = view(row(0, "x", since_ms=50))
        self.calls = 0

    async def explain_group(self, group: str) -> ExplainView:
        self.calls += 1
        if isinstance(self.answer, Error):
            raise self.answer
        return self.answer


class Cinema:
    def __init__(self) -> None:
        self.clock, self.admin = FakeClock(), Explaining()
        self.films = Films(cast("Admin", self.admin), self.clock)


@pytest.fixture
async def cinema() -> AsyncIterator[Cinema]:
    cinema = Cinema()
    yield cinema
    await cinema.clock.during(cinema.films.close())


async def test_looks_continue_while_somebody_asks_and_end_afterwards(cinema: Cinema) -> None:
    film = await cinema.films.of("billing")
    cinema.admin.answer = view(row(0, "y", since_ms=60, before="x"))
    await cinema.clock.advance(INTERVAL_MS + 10)
    assert [one.after for one in film.moves] == ["x", "y"]
    await cinema.clock.advance(IDLE_MS + 2 * INTERVAL_MS)
    calls = cinema.admin.calls
    assert calls <= IDLE_MS // INTERVAL_MS + 4
    await cinema.clock.advance(10 * INTERVAL_MS)
    assert cinema.admin.calls == calls, "nobody looks"
    assert await cinema.films.of("billing") is film, "its moves stay"
    assert cinema.admin.calls == calls + 1


async def test_a_failed_look_is_a_problem_of_the_film_and_ends_with_the_next(cinema: Cinema) -> None:
    await cinema.films.of("billing")
    cinema.admin.answer = ConnectionFailed("no broker answers")
    film = await cinema.films.of("billing")
    assert film.problem == "no broker answers"
    assert len(film.moves) == 1
    cinema.admin.answer = view(row(0, "x", since_ms=50))
    assert (await cinema.films.of("billing")).problem == ""


async def test_a_group_that_may_not_be_seen_has_no_film(cinema: Cinema) -> None:
    cinema.admin.answer = GroupNotFound("no group")
    with pytest.raises(GroupNotFound):
        await cinema.films.of("none")
    cinema.admin.answer = view()
    assert (await cinema.films.of("none")).moves.maxlen == MOVES_MAX


async def test_a_user_has_a_bounded_number_of_films(cinema: Cinema) -> None:
    first = await cinema.films.of("g0")
    for number in range(1, GROUPS_MAX + 1):
        await cinema.clock.advance(1)
        await cinema.films.of(f"g{number}")
    assert await cinema.films.of(f"g{GROUPS_MAX}") is not first
    assert await cinema.films.of("g0") is not first, "the one that was not looked at for longest is dropped"


async def test_nothing_is_looked_at_after_the_end_of_the_session(cinema: Cinema) -> None:
    await cinema.films.of("billing")
    await cinema.clock.during(cinema.films.close())
    calls = cinema.admin.calls
    await cinema.clock.advance(10 * INTERVAL_MS)
    assert cinema.admin.calls == calls


# ----------------------------------------------------------------------------------------------------------- the page

HOSTILE = "<script>alert(1)</script>\" onload='x'"


async def with_group(stage: ConsoleStage, monkeypatch: pytest.MonkeyPatch, *views: ExplainView) -> Browser:
    """Returns a browser before a group whose queues are explained by these views in turn; the last one stays."""
    left = list(views)

    async def explain(_admin: Admin, _group: str, **_: str) -> ExplainView:
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(Admin, "explain_group", explain)
    browser = stage.browser(await stage.app())
    await stage.clock.during(stage.admin().create_group("billing"))
    return browser


async def test_the_page_shows_steps_owners_and_the_picture(
    unguarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = unguarded.clock.now_ms()
    browser = await with_group(
        unguarded,
        monkeypatch,
        view(row(0, "x", since_ms=now_ms - 60_000, before="w"), row(1, "x", since_ms=now_ms - 60_000)),
        view(
            row(0, "y", since_ms=now_ms - 1_000, before="x", reason="y joined"), row(1, "x", since_ms=now_ms - 60_000)
        ),
    )
    page = (await browser.get("/groups/billing?tab=film")).text
    assert "w to x: 1" in words(page)
    assert "unknown to x: 1" in words(page)
    page = (await browser.refresh("/groups/billing?tab=film")).text
    newest, first = [one for one in rows(page) if "to" in one and "show" in one]
    assert "x to y: 1" in newest
    assert "y joined" in newest
    assert 'aria-label="w, then x, then y"' in page
    assert 'aria-label="unknown, then x"' in page
    link = unescape(page.split('aria-label="Owners after the step of 2')[0].rpartition('href="')[2].partition('"')[0])
    frame = (await browser.get(link)).text
    assert "Next step" in frame
    assert "x 2 orders on a, queue 0; orders on a, queue 1" in words(frame)
    assert "2" in first


async def test_the_page_says_what_is_not_known(unguarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = unguarded.clock.now_ms()
    browser = await with_group(
        unguarded,
        monkeypatch,
        view(row(0, "x", since_ms=now_ms - 60_000)),
        view(row(0, "y", since_ms=now_ms - 1_000, before="z")),
    )
    await browser.get("/groups/billing?tab=film")
    monkeypatch.setattr(films, "QUEUES_MAX", 0)
    page = words((await browser.get("/groups/billing?tab=film")).text)
    assert "1 queues are not followed" in page
    monkeypatch.setattr(films, "QUEUES_MAX", 10)
    page = words((await browser.get("/groups/billing?tab=film")).text)

    async def fails(*_: object, **__: object) -> ExplainView:
        raise ConnectionFailed("broker a is away")

    monkeypatch.setattr(Admin, "explain_group", fails)
    page = words((await browser.get("/groups/billing?tab=film")).text)
    assert "The newest look failed: broker a is away" in page


async def test_names_of_members_and_reasons_are_text(unguarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ms = unguarded.clock.now_ms() - 5_000
    odd = ExplainedQueueView(
        queue=MessageQueue(HOSTILE, HOSTILE, 0), state="OWNED", owner=HOSTILE, since_ms=at_ms, reason=HOSTILE,
        previous_owner=HOSTILE + "2", owner_zone="", broker_zone="",
    )  # fmt: skip
    browser = await with_group(unguarded, monkeypatch, view(odd))
    for path in ("/groups/billing?tab=film", f"/groups/billing?tab=film&at={at_ms}"):
        page = (await browser.get(path)).text
        assert "<script>alert" not in page
        assert HOSTILE in unescape(page)
        names = [name for _, *names in Shape(page).elements for name in names]
        assert not [name for name in names if name.startswith("on")]


async def test_a_film_without_a_move_says_so(unguarded: ConsoleStage) -> None:
    browser = unguarded.browser(await unguarded.app())
    await unguarded.clock.during(unguarded.admin().create_group("billing"))
    assert "No move was seen yet." in (await browser.get("/groups/billing?tab=film")).text
    assert (await browser.get("/groups/billing?tab=film&at=x")).status_code == 400
    assert (await browser.get("/groups/none?tab=film")).status_code == 404
