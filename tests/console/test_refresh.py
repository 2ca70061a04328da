"""Pages that are open show what happens meanwhile, and say so when they cannot."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_proofs.waiting import until
from playwright.sync_api import expect

import evenq
from evenq.console.settings import ConsoleSettings
from evenq.testing import LocalCluster
from tests.console.conftest import WAIT_MS, Tab, served


def test_a_message_that_is_sent_later_appears_without_a_reload(tab: Tab, cluster: LocalCluster) -> None:
    page = tab.open("/topics/orders")
    page.evaluate("window.marked = true")
    expect(page.get_by_text("late order")).to_have_count(0)
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        producer.send(evenq.Message(topic="orders", body=b"late order"))
    expect(page.get_by_text("late order")).to_be_visible(timeout=WAIT_MS)
    assert page.evaluate("window.marked") is True


def test_a_topic_that_is_created_later_appears_in_the_list(tab: Tab, cluster: LocalCluster) -> None:
    page = tab.open("/topics")
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("late-topic")
    expect(page.get_by_role("link", name="late-topic")).to_be_visible(timeout=WAIT_MS)


def test_what_is_typed_and_the_focus_survive_a_refresh(tab: Tab) -> None:
    page = tab.open("/topics/orders")
    body = page.get_by_label("Body")
    body.fill("half a messa")
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true", timeout=WAIT_MS):
        pass
    expect(body).to_have_value("half a messa")
    expect(body).to_be_focused()


def test_times_are_in_the_zone_of_the_browser_also_after_a_refresh(new_tab: Callable[..., Tab], console: str) -> None:
    tab = new_tab(console)
    page = tab.open("/topics/orders")
    page.evaluate(
        """() => {
          window.refreshes = window.raw = 0;
          new MutationObserver(() => {
            window.refreshes += 1;
            window.raw += document.querySelectorAll("time:not([title])").length;
          }).observe(document.getElementById("main"), { childList: true });
        }"""
    )
    until(lambda: page.evaluate("window.refreshes"))
    assert page.evaluate("window.raw") == 0, "they are never seen as the server writes them"
    assert re.fullmatch(r"\d\d/\d\d/\d{4}, \d\d:\d\d:\d\d", page.locator("#live time").first.inner_text())


@pytest.fixture
def own_cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster(folder=tmp_path, rebalancer=False, metrics_port=-1)


def test_a_page_says_that_it_is_old_while_the_cluster_or_the_console_is_away(
    new_tab: Callable[..., Tab], own_cluster: LocalCluster
) -> None:
    """And it continues by itself afterwards."""
    with own_cluster as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("orders")
        with served(ConsoleSettings(endpoint=cluster.endpoint, port=0)) as url:
            tab = new_tab(url)
            page = tab.open("/topics/orders")
            notice = page.get_by_text("This page is not up to date")
            expect(notice).to_have_count(0)
            cluster.brokers[0].kill()
            expect(notice).to_be_visible(timeout=WAIT_MS)
            cluster.brokers[0].restart()
            expect(notice).to_have_count(0, timeout=WAIT_MS)
        expect(notice).to_be_visible(timeout=WAIT_MS)
        assert [one for one in tab.problems if "[object HTMLDivElement]" not in one] == [], "only of htmx"
        tab.problems.clear()
