"""Signing in and out."""

from __future__ import annotations

import pytest

from tests.unit.evenq.console.conftest import USERS, ConsoleStage

REFUSED = "The cluster does not accept these keys."
LONG = "x" * 20_000


async def test_right_keys_open_the_page_that_was_wanted_with_a_new_id(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    await browser.get("/topics")
    before = browser.session_id
    answer = await browser.sign_in(target="/topics?q=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics?q=a")
    assert browser.session_id != before, "an id from before the sign-in is worth nothing"
    page = await browser.get("/topics")
    assert page.status_code == 200
    assert "<span>root</span>" in page.text


async def test_an_id_that_somebody_planted_is_not_the_id_of_the_session(guarded: ConsoleStage) -> None:
    """Session fixation: the attacker has an id, and its token."""
    app = await guarded.app()
    attacker, victim = guarded.browser(app), guarded.browser(app)
    token = await attacker.token()
    victim.client.cookies.set("evenq-console-8080", attacker.session_id, domain="127.0.0.1")
    assert (await victim.sign_in()).status_code == 303
    answer = await attacker.get("/topics")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login")
    used = await attacker.post("/topics", {"topic": "t", "token": token})
    assert used.status_code in (303, 403)
    assert "No topic yet" in (await victim.get("/topics")).text


@pytest.mark.parametrize(
    ("access_key", "secret_key", "text"),
    [
        ("root", "wrong-secret", REFUSED),
        ("nobody-else", "secret-of-root", REFUSED),
        ("root", "secret-of-reader", REFUSED),
        ("root", "secret-of-root ", REFUSED),
        ("ROOT", "secret-of-root", REFUSED),
        ("servers", "wrong-of-servers", REFUSED),
        ("root", "ключ-ключ", REFUSED),
        ("root", "\x00", REFUSED),
        ("root", "a\r\nx-mq-user: root", REFUSED),
        ("", "", "access_key is empty"),
        ("root", "", "secret_key is empty"),
        ("", "secret-of-root", "access_key is empty"),
        ("  ", "secret-of-root", "access_key is empty"),
        ("ключ", "secret-of-root", "must be ASCII"),
        ("a b", "secret-of-root", "must be ASCII without blanks"),
        ("a\r\nb: c", "secret-of-root", "must be ASCII without blanks"),
        ("a,b", "secret-of-root", "must be ASCII without blanks"),
        ("a=b/c", "secret-of-root", "must be ASCII without blanks"),
        ("<script>alert(1)</script>", "secret-of-root", "must be ASCII without blanks"),
        ("root\x00", "secret-of-root", ""),
        ("root\x7f\x1b[31m", "secret-of-root", ""),
        (LONG, "secret-of-root", "longer than 1024 characters"),
        ("root", LONG, "longer than 1024 characters"),
    ],
)
async def test_other_keys_are_refused_with_a_reason(
    guarded: ConsoleStage, access_key: str, secret_key: str, text: str
) -> None:
    browser = guarded.browser(await guarded.app())
    answer = await browser.post("/login", {"access_key": access_key, "secret_key": secret_key, "next": "/topics"})
    assert answer.status_code == 403
    assert text in answer.text
    assert "<script>alert" not in answer.text
    assert 'value="/topics"' in answer.text, "the wanted page is kept"
    assert len(answer.text) < 10_000
    if secret_key:
        assert secret_key.strip() not in answer.text.replace(access_key, "") or secret_key == "\x00"
    assert (await browser.get("/topics")).status_code == 303


async def test_a_key_of_a_megabyte_is_refused_before_it_is_read(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    for keys in (
        {"access_key": "x" * 1_000_000, "secret_key": "x"},
        {"access_key": "root", "secret_key": "x" * 1_000_000},
    ):
        assert (await browser.post("/login", keys)).status_code == 413


async def test_a_key_that_is_longer_than_allowed_is_not_cut_to_one_that_fits(stage: ConsoleStage) -> None:
    secret = "s" * 1_024
    await stage.broker(users=USERS + f'[users.long]\nsecret = "{secret}"\nadmin = true\n')
    browser = stage.browser(await stage.app())
    assert (await browser.sign_in("long", secret + "anything")).status_code == 403
    assert (await browser.sign_in("long", secret)).status_code == 303


async def test_the_keys_of_servers_are_not_those_of_a_user(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    answer = await browser.sign_in("servers")
    page = await browser.get("/topics")
    assert (answer.status_code, page.status_code) in {(303, 200), (303, 403), (403, 303)}


@pytest.mark.parametrize(
    "target",
    [
        "", "//evil.example", "///evil.example", "////evil.example/x", "https://evil.example", "http:evil.example",
        "https:/evil.example", "javascript:alert(1)", "data:text/html,x", "/\\evil.example", "\\\\evil.example",
        "/\\/evil.example", "/\t/evil.example", "/\n/evil.example", "\t//evil.example", " //evil.example",
        "/\x00/evil.example", "evil.example", "topics", "?next=//evil.example", "#x", "//[", "http://[", "/../evil",
        "/topics/../../evil", "/topics\r\nset-cookie: a=b", "/töpics", "@evil.example", ":80/x", "/ topics",
    ],
)  # fmt: skip
async def test_the_page_after_the_sign_in_is_one_of_this_console(guarded: ConsoleStage, target: str) -> None:
    browser = guarded.browser(await guarded.app())
    answer = await browser.sign_in(target=target)
    assert answer.status_code == 303
    location = answer.headers["location"]
    assert location == "/" or (target == "/ topics" and location == "/%20topics")
    assert "\r" not in location
    assert "a" not in browser.client.cookies


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/topics", "/topics"),
        ("/topics?q=%2F%2Fevil.example&sort=rate", "/topics?q=%2F%2Fevil.example&sort=rate"),
        ("/topics/%25RETRY%25abc", "/topics/%25RETRY%25abc"),
        ("/%2F%2Fevil.example", "/%2F%2Fevil.example"),
        ("/%5Cevil.example", "/%5Cevil.example"),
    ],
)
async def test_addresses_within_the_console_are_kept(guarded: ConsoleStage, target: str, location: str) -> None:
    browser = guarded.browser(await guarded.app())
    assert (await browser.sign_in(target=target)).headers["location"] == location


@pytest.mark.parametrize("target", ["/", "/topics", "/evenq", "/evenqx/topics", "/evenq/../topics", "//evenq/topics"])
async def test_behind_a_prefix_only_its_pages_are_continued_at(guarded: ConsoleStage, target: str) -> None:
    browser = guarded.browser(await guarded.app(prefix="/evenq"))
    keys = {"access_key": "root", "secret_key": "secret-of-root", "next": target}
    answer = await browser.post("/evenq/login", keys, page="/evenq/login")
    assert answer.headers["location"] == "/evenq/"
    assert (await browser.get("/evenq/topics")).status_code == 200


async def test_signing_out_ends_the_session_and_not_the_other_one(guarded: ConsoleStage) -> None:
    app = await guarded.app()
    browser, other = guarded.browser(app), guarded.browser(app)
    await browser.sign_in()
    await other.sign_in()
    before = browser.session_id
    answer = await browser.post("/logout", {}, page="/topics")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert browser.session_id != before
    browser.client.cookies.set("evenq-console-8080", before, domain="127.0.0.1", path="/")
    assert (await browser.send("GET", "/topics", headers={"cookie": f"evenq-console-8080={before}"})).status_code == 303
    assert (await other.get("/topics")).status_code == 200


async def test_a_second_sign_in_in_one_browser_ends_the_first(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    await browser.sign_in("root")
    before = browser.session_id
    await browser.sign_in("reader")
    assert "<span>reader</span>" in (await browser.get("/topics/orders")).text
    stale = await browser.send("GET", "/topics", headers={"cookie": f"evenq-console-8080={before}"})
    assert stale.status_code in (200, 303, 403)
    assert "<span>root</span>" not in stale.text


async def test_nobody_is_signed_in_or_out_by_a_link(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    await browser.sign_in()
    assert (await browser.get("/logout")).status_code == 405
    assert (await browser.get("/login?access_key=reader&secret_key=secret-of-reader")).status_code == 200
    assert "<span>root</span>" in (await browser.get("/topics")).text


async def test_a_sign_in_without_a_token_or_from_another_site_is_refused(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    keys = {"access_key": "root", "secret_key": "secret-of-root"}
    own = {"sec-fetch-site": "same-origin"}
    assert (await browser.send("POST", "/login", data=keys, headers=own)).status_code == 403
    foreign = {"sec-fetch-site": "cross-site", "origin": "http://evil.example"}
    assert (await browser.post("/login", keys, headers=foreign)).status_code == 403
    assert (await browser.get("/topics")).status_code == 303


async def test_a_cluster_without_users_needs_no_sign_in(unguarded: ConsoleStage) -> None:
    browser = unguarded.browser(await unguarded.app())
    page = await browser.get("/topics")
    assert page.status_code == 200
    assert "Sign out" not in page.text


async def test_an_unreachable_cluster_is_not_a_wrong_key(stage: ConsoleStage) -> None:
    browser = stage.browser(await stage.app())
    answer = await browser.sign_in()
    assert answer.status_code == 503
    assert REFUSED not in answer.text
