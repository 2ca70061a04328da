"""The console without a mouse."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import WAIT_MS, Tab
from tests.console.pages import PAGES, ConsolePage

FOCUSED = "document.activeElement.textContent.trim() || document.activeElement.name || document.activeElement.tagName"
MENU = [
    "evenq", "Overview", "Topics", "Groups", "Messages", "Scheduled", "Recurring", "Transactions", "Dead letters",
    "Clients", "Rights",
]  # fmt: skip
STEPS_MAX = 100


def stops(page: Page, count: int) -> list[str]:
    """Returns the texts of the next elements that Tab reaches."""
    found = []
    for _ in range(count):
        page.keyboard.press("Tab")
        found.append(str(page.evaluate(FOCUSED)))
    return found


def test_the_first_stop_leads_past_the_menu(tab: Tab) -> None:
    page = tab.open("/topics")
    assert stops(page, 1) == ["Skip to the content"]
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    assert stops(page, 2) == ["q", "Search"]


def test_the_menu_comes_in_its_order_and_opens_a_page(tab: Tab) -> None:
    page = tab.open("/")
    assert stops(page, 1 + len(MENU)) == ["Skip to the content", *MENU]
    for _ in range(len(MENU) - 1 - MENU.index("Topics")):
        page.keyboard.press("Shift+Tab")
    assert page.evaluate(FOCUSED) == "Topics"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")


@pytest.mark.parametrize("shown", PAGES, ids=[page.name for page in PAGES])
def test_every_link_and_field_is_reached_and_its_focus_is_seen(tab: Tab, shown: ConsolePage) -> None:
    page = tab.open(shown.path)
    page.evaluate("document.activeElement.blur()")
    # Refreshing replaces elements, and a walk would begin again.
    page.evaluate("document.querySelectorAll('#live').forEach((one) => one.removeAttribute('id'))")
    page.route("**/*", lambda route: route.abort() if route.request.headers.get("hx-request") else route.continue_())
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea')].length"
    )
    reached = page.evaluate("window.reached = new Set(); 0")
    for _ in range(STEPS_MAX):
        page.keyboard.press("Tab")
        reached, seen = page.evaluate(
            """() => {
              const at = document.activeElement;
              if (!at.matches("a[href], button, input, select, textarea")) return [reached.size, true];
              reached.add(at);
              return [reached.size, getComputedStyle(at).outlineStyle !== "none"];
            }"""
        )
        assert seen, page.evaluate("document.activeElement.outerHTML")
        if reached == wanted:
            break
    assert reached == wanted
    tab.problems.clear()  # refreshes were refused


def test_the_focus_and_the_scrolled_table_stay_when_a_page_is_refreshed(tab: Tab) -> None:
    page = tab.page
    page.set_viewport_size({"width": 390, "height": 800})
    tab.open("/topics")
    link = page.get_by_role("link", name="orders", exact=True)
    link.focus()
    page.evaluate(
        "document.querySelector('.wide').scrollLeft = 40; document.querySelector('#live').dataset.old = 'yes'"
    )
    expect(page.locator("#live[data-old]")).to_have_count(0, timeout=WAIT_MS)
    expect(link).to_be_focused()
    assert page.evaluate("document.querySelector('.wide').scrollLeft") == 40


def test_a_page_is_not_refreshed_under_a_selected_text(tab: Tab) -> None:
    page = tab.open("/topics/orders")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#live td.body'))")
    before = page.evaluate("getSelection().toString()")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.evaluate("htmx.trigger('#live', 'every'); htmx.ajax('GET', location.href, {source: '#live', target: '#live'})")
    assert page.evaluate("getSelection().toString()") == before
    assert requests == []
    page.evaluate("getSelection().removeAllRanges(); document.querySelector('#live').dataset.old = 'yes'")
    expect(page.locator("#live[data-old]")).to_have_count(0, timeout=WAIT_MS)
    assert requests


def test_a_user_signs_in_and_out_by_keyboard(guarded_tab: Tab) -> None:
    page = guarded_tab.open("/topics")
    expect(page.get_by_label("Access key")).to_be_focused()
    page.keyboard.type("root")
    page.keyboard.press("Tab")
    page.keyboard.type("secret-of-root")
    page.keyboard.press("Enter")
    sign_out = page.get_by_role("button", name="Sign out")
    expect(sign_out).to_be_visible()
    sign_out.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
