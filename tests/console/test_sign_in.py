"""Sessions in a real browser: its rules for cookies and origins, which no other test has."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from playwright.sync_api import Page, Route, expect

from tests.console.conftest import NAME, WAIT_MS, Tab

OTHER = "http://other.example"


def other_site(page: Page, html: str) -> None:
    """Serves a page of another site."""

    def answer(route: Route) -> None:
        route.fulfill(content_type="text/html", body=f"<!doctype html><title>other</title>{html}")

    page.route(f"{OTHER}/**", answer)
    page.goto(f"{OTHER}/")


def test_a_user_signs_in_sees_the_wanted_page_and_signs_out(guarded_tab: Tab) -> None:
    guarded_tab.sign_in("/topics/orders")
    page = guarded_tab.page
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.go_back()
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_wrong_keys_are_refused_and_the_name_is_kept(guarded_tab: Tab) -> None:
    page = guarded_tab.open("/")
    page.get_by_label("Access key").fill("root")
    page.get_by_label("Secret key").fill("wrong-secret")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("The cluster does not accept these keys.")
    expect(page.get_by_label("Access key")).to_have_value("root")
    expect(page.get_by_label("Secret key")).to_have_value("")


def test_scripts_cannot_read_the_session(guarded_tab: Tab) -> None:
    guarded_tab.sign_in()
    assert guarded_tab.page.evaluate("document.cookie") == ""


def test_a_link_from_another_site_keeps_the_session(guarded_tab: Tab) -> None:
    guarded_tab.sign_in()
    page = guarded_tab.page
    other_site(page, f'<a href="{guarded_tab.url}/topics/orders">to the topic</a>')
    page.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    guarded_tab.open("/topics")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    guarded_tab.hosts.discard("other.example")


def test_pictures_and_frames_on_another_site_show_nothing_and_keep_the_session(guarded_tab: Tab) -> None:
    guarded_tab.sign_in()
    page, url = guarded_tab.page, guarded_tab.url
    other_site(
        page, f'<img src="{url}/topics"><iframe src="{url}/topics"></iframe><script src="{url}/history/in/a"></script>'
    )
    page.wait_for_load_state("networkidle")
    assert len(page.frames) == 2
    assert "orders" not in page.frames[1].content()
    guarded_tab.open("/topics")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    guarded_tab.hosts.discard("other.example")
    guarded_tab.problems.clear()  # the browser reports what it refused


def test_a_form_on_another_site_changes_nothing(guarded_tab: Tab) -> None:
    guarded_tab.sign_in()
    page, url = guarded_tab.page, guarded_tab.url
    fields = '<input name="topic" value="planted"><input name="queues" value="1"><input name="type" value="NORMAL">'
    other_site(page, f'<form method="post" action="{url}/topics">{fields}<button>win</button></form>')
    with page.expect_navigation(timeout=WAIT_MS) as navigation:
        page.get_by_role("button").click()
    assert navigation.value is not None
    assert navigation.value.status == 403
    guarded_tab.open("/topics?q=planted")
    expect(page.get_by_text("No topic with this text.")).to_be_visible()
    guarded_tab.hosts.discard("other.example")


def test_forms_work_over_plain_http_from_another_machine(new_tab: Callable[..., Tab], guarded_console: str) -> None:
    """Browsers send no Sec-Fetch-Site there; the Origin of the form has to be right."""
    tab = new_tab(f"http://{NAME}:{urlsplit(guarded_console).port}")
    tab.sign_in("/topics")
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    tab.problems.clear()  # opener policies need a trustworthy origin, the browser says


def test_two_tabs_of_one_browser_share_the_session_and_its_end(guarded_tab: Tab) -> None:
    guarded_tab.sign_in()
    second = guarded_tab.context.new_page()
    second.goto(guarded_tab.url + "/topics")
    expect(second.get_by_role("button", name="Sign out")).to_be_visible()
    guarded_tab.page.get_by_role("button", name="Sign out").click()
    expect(guarded_tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(second.get_by_role("heading", level=1)).to_have_text("Sign in", timeout=WAIT_MS)
