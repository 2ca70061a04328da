"""The console as a whole: its routes, its static files, its prefix and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenq import console
from evenq.console.pages import Console
from evenq.errors import Unauthorized
from tests.unit.evenq.console.conftest import ConsoleStage

STATIC = sorted(path.name for path in (Path(console.__file__).parent / "static").iterdir())


async def test_liveness_needs_no_cluster_and_no_session(stage: ConsoleStage) -> None:
    browser = stage.browser(await stage.app(prefix="/evenq"))
    answer = await browser.get("/healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("name", STATIC)
async def test_static_files_have_their_type_and_the_headers_of_protection(stage: ConsoleStage, name: str) -> None:
    browser = stage.browser(await stage.app())
    answer = await browser.get(f"/static/{name}")
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == kinds[Path(name).suffix]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert "set-cookie" not in answer.headers


async def test_static_files_are_checked_for_changes_and_not_sent_again(stage: ConsoleStage) -> None:
    """They are the same for everybody; pages are kept by no cache."""
    browser = stage.browser(await stage.app(prefix="/evenq"))
    first = await browser.get("/evenq/static/htmx.min.js")
    assert first.headers["cache-control"] == "no-cache"
    again = await browser.get("/evenq/static/htmx.min.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["x-frame-options"] == "DENY"
    assert (await browser.get("/evenq/login")).headers["cache-control"] == "no-store"


async def test_behind_a_prefix_every_address_has_it(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app(prefix="/evenq"))
    assert (await browser.get("/evenq")).headers["location"] == "/evenq/"
    page = await browser.get("/evenq/")
    assert page.headers["location"] == "/evenq/login?next=%2Fevenq%2F"
    form = await browser.get("/evenq/login")
    links = [part.partition('"')[0] for name in ("href", "src", "action") for part in form.text.split(f'{name}="')[1:]]
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("/evenq/", "#"))] == []
    for path in ("/", "/topics", "/login", "/static/console.css", "/evenqx/login"):
        assert (await browser.get(path)).status_code == 404


@pytest.mark.parametrize("path", ["/nothing", "/login/", "/healthz/", "/static", "/static/", "/static/nothing", "//"])
async def test_an_unknown_address_is_not_found_and_leads_nowhere(stage: ConsoleStage, path: str) -> None:
    """A redirect would name the host and the scheme of this program, which may be behind a proxy."""
    browser = stage.browser(await stage.app())
    answer = await browser.get(browser.origin + path)
    assert answer.status_code == 404
    assert "location" not in answer.headers


async def test_a_method_that_a_page_does_not_have_is_refused(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW"):
        for path in ("/", "/topics", "/login", "/static/console.css", "/healthz"):
            answer = await browser.send(method, path, headers={"sec-fetch-site": "same-origin"})
            assert answer.status_code == 405
            assert "access-control-allow-origin" not in answer.headers


async def test_the_head_of_a_page_has_no_body_and_the_status_of_the_page(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    assert [(await browser.send("HEAD", path)).status_code for path in ("/topics", "/login", "/healthz")] == [
        303, 200, 200,
    ]  # fmt: skip


async def test_the_end_of_the_application_closes_the_clients_of_all_sessions(
    guarded: ConsoleStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Console] = []
    of = Console.of
    monkeypatch.setattr(Console, "of", lambda *arguments: made.append(of(*arguments)) or made[-1])
    app = await guarded.app()
    browser = guarded.browser(app)
    await browser.sign_in()
    [console_] = made
    session = await guarded.clock.during(console_.sessions.find(browser.session_id))
    assert session is not None
    await guarded.clock.during(console_.sessions.close())
    with pytest.raises(Unauthorized):
        await session.principal.figures.newest()
