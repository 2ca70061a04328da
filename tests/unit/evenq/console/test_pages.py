"""The frame of pages: addresses, forms, errors, refreshed parts, and the format of values."""

from __future__ import annotations

from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from evenq.console.pages import Console, byte_count, moment, number, rate, span, spark
from evenq.console.sessions import UserSessions
from evenq.console.settings import ConsoleSettings
from evenq.runtime.clock import FakeClock
from tests.unit.evenq.console.conftest import TOKEN, Browser, ConsoleStage


def console(**settings: Any) -> Console:
    values = ConsoleSettings(**settings)
    clock = FakeClock()
    return Console.of(values, UserSessions(values, clock), clock)


async def signed_in(stage: ConsoleStage, user: str = "root", **settings: Any) -> Browser:
    browser = stage.browser(await stage.app(**settings))
    assert (await browser.sign_in(user)).status_code == 303
    return browser


async def with_topic(stage: ConsoleStage, name: str = "orders") -> Browser:
    browser = await signed_in(stage)
    made = await browser.post("/topics", {"topic": name, "queues": 2, "type": "NORMAL"}, page="/topics")
    assert made.status_code == 303, made.text
    return browser


def attribute(text: str, name: str) -> str:
    return unescape(text.partition(f'{name}="')[2].partition('"')[0])


@pytest.mark.parametrize(
    ("path", "query", "address"),
    [
        (("",), {}, "/evenq/"),
        (("topics", "a/b?c#d"), {}, "/evenq/topics/a%2Fb%3Fc%23d"),
        (("topics", "../../etc"), {}, "/evenq/topics/..%2F..%2Fetc"),
        (("topics", "%RETRY%billing"), {}, "/evenq/topics/%25RETRY%25billing"),
        (("topics",), {"q": "a&b=c\r\nx"}, "/evenq/topics?q=a%26b%3Dc%0D%0Ax"),
        (("topics",), {"q": "", "sort": None, "old": False, "begin": 0}, "/evenq/topics?begin=0"),
    ],
)
def test_an_address_quotes_names_and_keeps_zero(path: tuple[str, ...], query: dict[str, object], address: str) -> None:
    assert console(prefix="/evenq").href(*path, **query) == address


@pytest.mark.parametrize(
    ("settings", "name", "attributes"),
    [
        ({}, "evenq-console-8080", "HttpOnly; Path=/; SameSite=lax"),
        ({"port": 9}, "evenq-console-9", "HttpOnly; Path=/; SameSite=lax"),
        ({"prefix": "/evenq"}, "evenq-console-8080", "HttpOnly; Path=/evenq; SameSite=lax"),
        ({"https": True}, "__Host-evenq-console-8080", "HttpOnly; Path=/; SameSite=lax; Secure"),
        ({"certificate": "c.pem"}, "__Host-evenq-console-8080", "HttpOnly; Path=/; SameSite=lax; Secure"),
        ({"https": True, "prefix": "/e"}, "__Secure-evenq-console-8080", "HttpOnly; Path=/e; SameSite=lax; Secure"),
    ],
)
async def test_the_cookie_is_for_this_console_only(
    stage: ConsoleStage, settings: dict[str, Any], name: str, attributes: str
) -> None:
    browser = stage.browser(await stage.app(**settings), scheme="https")
    cookie = (await browser.get(f"{settings.get('prefix', '')}/login")).headers["set-cookie"]
    assert cookie.partition("=")[0] == name
    assert cookie.partition("; ")[2] == attributes


@pytest.mark.parametrize(
    "value", ["", "x", "a" * 42, "a" * 44, "a" * 20_000, "a" * 42 + "\x7f", '"; drop', "%00%00", "\xff\xfe" * 20]
)
async def test_a_cookie_that_is_not_from_a_console_is_replaced(guarded: ConsoleStage, value: str) -> None:
    browser = guarded.browser(await guarded.app())
    sent = {"cookie": f"evenq-console-8080={value}".encode("latin-1")}
    page = await browser.send("GET", "/login", headers=sent)
    assert page.status_code == 200
    fresh = page.headers["set-cookie"].partition("=")[2].partition(";")[0]
    assert len(fresh) == 43
    assert fresh != value
    found = TOKEN.search(page.text)
    assert found
    keys = {"token": found[1], "access_key": "root", "secret_key": "secret-of-root"}
    own = {"sec-fetch-site": "same-origin"}
    assert (await browser.send("POST", "/login", data=keys, headers=sent | own)).status_code == 403


async def test_the_newest_of_two_cookies_with_one_name_decides(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    planted = f"evenq-console-8080={'b' * 43}; evenq-console-8080={browser.session_id}"
    browser.client.cookies.clear()
    assert (await browser.get("/topics", headers={"cookie": planted})).status_code == 200


async def test_a_page_without_a_session_leads_to_the_sign_in_and_back(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    answer = await browser.get("/topics/%25RETRY%25abc")
    assert answer.status_code == 303
    target = answer.headers["location"]
    assert parse_qs(urlsplit(target).query) == {"next": ["/topics/%25RETRY%25abc"]}
    form = await browser.get(target)
    assert attribute(form.text, 'name="next" value') == "/topics/%25RETRY%25abc"
    back = await browser.sign_in(target="/topics/%25RETRY%25abc")
    assert back.headers["location"] == "/topics/%25RETRY%25abc"


async def test_a_refresh_without_a_session_makes_the_browser_show_the_sign_in(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    answer = await browser.refresh("/topics")
    assert answer.status_code == 204
    assert answer.headers["hx-redirect"] == "/login?next=%2Ftopics"
    assert answer.text == ""


async def test_a_refresh_returns_the_changing_part_of_a_page_only(guarded: ConsoleStage) -> None:
    browser = await with_topic(guarded)
    for path in ("/", "/topics", "/topics/orders"):
        part, page = (await browser.refresh(path)).text, (await browser.get(path)).text
        assert part.startswith('<div id="live"')
        assert "<html" not in part
        assert "<html" in page


async def test_a_page_is_refreshed_at_its_own_address(guarded: ConsoleStage) -> None:
    browser = await with_topic(guarded)
    page = await browser.get("/topics/orders?a=1&b=%26")
    assert attribute(page.text, "hx-get") == "/topics/orders?a=1&b=%26"


@pytest.mark.parametrize("name", ["%25RETRY%25abc", "%25DLQ%25ff", "a%2Fb%3Fc%23d", "%22%3E"])
async def test_the_address_of_a_page_is_quoted_as_it_was_received(stage: ConsoleStage, name: str) -> None:
    """The name of a topic may begin like a quoted byte: `%ab`."""
    browser = stage.browser(await stage.app())
    page = await browser.get(f"/topics/{name}?a=1&b=%26")
    assert f'<a href="/topics/{name}?a=1&amp;b=%26">Try again</a>' in page.text


async def test_a_sentence_in_a_link_is_shown_only_if_the_console_wrote_it(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    made = await browser.post("/topics", {"topic": "orders", "queues": 1, "type": "NORMAL"}, page="/topics")
    target = made.headers["location"]
    assert "Created topic orders." in (await browser.get(target)).text
    forged = target.replace("Created", "Deleted")
    assert "Deleted topic" not in (await browser.get(forged)).text
    assert 'class="done"' not in (await browser.get("/?done=call+me")).text
    assert 'class="done"' not in (await browser.get("/?done=call+me&proof=")).text
    other = await signed_in(guarded)
    assert "Created topic" not in (await other.get(target)).text, "another session wrote it"


async def test_a_form_needs_the_token_of_its_session(guarded: ConsoleStage) -> None:
    browser, other = await signed_in(guarded), await signed_in(guarded)
    foreign = await other.token("/topics")
    for token in ("", "0" * 64, foreign, "ключ", "x" * 100_000):
        answer = await browser.post(
            "/topics", {"token": token, "topic": "t", "queues": 1, "type": "NORMAL"}, page="/topics"
        )
        assert answer.status_code == 403
        assert "not from this session" in answer.text
        assert "has no grant" not in answer.text
    assert "No topic yet" in (await browser.get("/topics")).text


async def test_a_read_only_console_refuses_changes_and_says_how_to_allow_them(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded, allow_changes=False)
    page = await browser.get("/topics")
    assert "<h2>Create a topic</h2>" not in page.text
    fields = {"topic": "orders", "queues": 1, "type": "NORMAL", "token": await browser.token("/")}
    answer = await browser.post("/topics", fields, page="/")
    assert answer.status_code == 403
    assert "--allow-changes" in answer.text
    assert "has no grant" not in answer.text


async def test_the_error_of_a_user_without_grants_names_the_user(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded, "nobody")
    answer = await browser.get("/topics/orders")
    assert answer.status_code == 403
    assert "user nobody may not" in answer.text


async def test_an_unreachable_cluster_is_a_page_with_a_link_to_try_again(stage: ConsoleStage) -> None:
    browser = stage.browser(await stage.app())
    answer = await browser.get("/topics/orders?x=1")
    assert answer.status_code == 503
    assert '<a href="/topics/orders?x=1">Try again</a>' in answer.text
    sent = await browser.post("/topics/orders/delete", {"confirm": "orders"})
    assert sent.status_code == 503
    assert "Try again" not in sent.text, "a form is not sent again by a link"


@pytest.mark.parametrize("begin", ["x", "-1", "1e3", "9" * 400, "9" * 5_000, "\u0664\u0662x", "0x10", "1;drop"])
async def test_a_number_that_is_none_is_refused_with_its_range(guarded: ConsoleStage, begin: str) -> None:
    browser = await signed_in(guarded)
    answer = await browser.get("/topics", params={"begin": begin})
    assert answer.status_code == 400
    assert "give a whole number from 0 to" in answer.text
    assert len(answer.text) < 4_000, "the value is shortened"


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded; charset=unicode_escape",
        "multipart/form-data; boundary=b; charset=unicode_escape",
        "multipart/form-data; boundary=b; charset=punycode",
        "multipart/form-data; boundary=b; charset=utf-8; charset=utf-7",
        "multipart/form-data; boundary=b; charset*=utf-8''idna",
        "multipart/form-data; charset=\x00; boundary=b",
    ],
)
async def test_a_form_with_a_charset_is_refused(guarded: ConsoleStage, content_type: str) -> None:
    browser = guarded.browser(await guarded.app())
    body = b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\n\\ud800\r\n--b--\r\n'
    headers = {"content-type": content_type.encode("latin-1"), "sec-fetch-site": b"same-origin"}
    answer = await browser.send("POST", "/login", content=body, headers=headers)
    assert answer.status_code == 400
    assert "charset" in answer.text


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("multipart/form-data", b"x", 400),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\n\r\nx", 400),
        ("multipart/form-data; boundary=b", b"", 403),
        ("application/x-www-form-urlencoded", b"&a=1" * 300, 400),
        ("application/x-www-form-urlencoded", b"%ff%fe=%ed%a0%80&=&&;", 403),
        ("application/json", b"{}", 403),
        ("text/plain", b"token=1", 403),
        ("", b"token=1", 403),
    ],
)
async def test_a_body_that_is_not_a_form_is_refused(
    guarded: ConsoleStage, content_type: str, body: bytes, status: int
) -> None:
    browser = guarded.browser(await guarded.app())
    headers = {"content-type": content_type, "sec-fetch-site": "same-origin"}
    answer = await browser.send("POST", "/login", content=body, headers=headers)
    assert answer.status_code == status


async def test_more_fields_or_files_than_a_form_has_are_refused(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    own = {"sec-fetch-site": "same-origin"}
    many: dict[str, Any] = {f"f{number}": (None, "x") for number in range(300)}
    assert (await browser.send("POST", "/login", files=many, headers=own)).status_code == 400
    files = {f"f{number}": (f"{number}.bin", b"x") for number in range(3)}
    assert (await browser.send("POST", "/login", files=files, headers=own)).status_code == 400


async def test_a_file_in_place_of_a_text_is_not_a_text(guarded: ConsoleStage) -> None:
    browser = guarded.browser(await guarded.app())
    files = {"token": ("t", b"x" * 50_000), "access_key": ("k", b"x")}
    answer = await browser.send("POST", "/login", files=files, headers={"sec-fetch-site": "same-origin"})
    assert answer.status_code == 403


async def test_the_keys_of_a_user_that_was_removed_are_refused_on_a_page(guarded: ConsoleStage) -> None:
    """The session stays, so that the user can sign out; there is no loop between pages."""
    browser = await signed_in(guarded)
    guarded.net.stop("a:8081")
    answer: httpx.Response = await browser.get("/topics/orders")
    assert answer.status_code == 503
    assert "Sign out" in answer.text


def test_values_are_formatted_and_unknown_is_not_zero() -> None:
    assert [number(value) for value in (None, 0, 1_234_567, 0.4)] == ["unknown", "0", "1\u202f234\u202f567", "0"]
    assert [rate(value) for value in (None, 0, 0.04, 2.5, 1_500)] == [
        "unknown", "0/s", "0.0/s", "2.5/s", "1\u202f500/s",
    ]  # fmt: skip
    assert [byte_count(value) for value in (None, 0, 1_023, 1_024, 1 << 60)] == [
        "unknown", "0 bytes", "1023 bytes", "1.0 KiB", "1048576 TiB",
    ]  # fmt: skip
    assert [span(value) for value in (None, 0, 850, 1_000, 119_000, 120_000, 2 * 86_400_000)] == [
        "unknown", "0 ms", "850 ms", "1 s", "119 s", "2 min", "2 d",
    ]  # fmt: skip
    assert [str(moment(value)) for value in (None, 0)] == ["unknown", "unknown"]
    assert 'datetime="2023-11-14T22:13:20.000Z"' in moment(1_700_000_000_000)
    assert moment(1 << 62) == f"{1 << 62} ms"


def test_a_line_of_values_has_gaps_where_they_are_unknown() -> None:
    assert spark([]) == ""
    assert spark([(0, 1.0), (5_000, None)]) == ""
    line = spark([(0, 1.0), (5_000, 2.0), (10_000, None), (15_000, 3.0), (20_000, 4.0)])
    assert line.count("M") == 2
    assert 'aria-label="from 1 to 4 in 20 s"' in line
    assert len(spark([(at * 5_000, float(at)) for at in range(120)])) < 1_000


def test_the_age_of_a_time_in_the_future_is_not_negative() -> None:
    shown = console()
    ago = shown.templates.filters["ago"]
    assert ago(shown.clock.now_ms() + 60_000) == "0 ms ago"
    assert ago(None) == "unknown"


def test_a_template_with_an_unknown_name_fails_and_markup_is_quoted() -> None:
    templates = console().templates
    assert templates.from_string("{{ x }}").render(x="<b>&\"'") == "&lt;b&gt;&amp;&#34;&#39;"
    with pytest.raises(Exception, match="'missing' is undefined"):
        templates.from_string("{{ missing }}").render()


async def test_a_page_of_an_ended_session_is_the_sign_in(guarded: ConsoleStage) -> None:
    browser = await signed_in(guarded)
    await browser.post("/logout", {}, page="/topics")
    answer = await browser.get("/topics")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login")
