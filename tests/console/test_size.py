"""A cluster with 1,000 topics and 500 groups."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import expect

import evenq
from evenq.console.pages import ROWS
from evenq.console.settings import ConsoleSettings
from evenq.testing import LocalCluster
from tests.console.conftest import Tab, served
from tests.console.pages import PAGES

pytestmark = pytest.mark.slow

TOPICS, GROUPS = 1_000, 500
VISITS = 40
BOUND_S = 5.0
"""It bounds a hang. The aim of 0.2 s is for an idle machine, so it is printed and not asserted."""


@pytest.fixture(scope="module")
def large_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(folder=tmp_path_factory.mktemp("large"), rebalancer=False, metrics_port=-1) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("orders", queues=2)
            for number in range(TOPICS - 1):
                admin.create_topic(f"topic-{number:04}", queues=2)
            admin.create_group("billing")
            for number in range(GROUPS - 1):
                admin.create_group(f"group-{number:04}")
        with served(ConsoleSettings(endpoint=cluster.endpoint, port=0, allow_changes=True)) as url:
            yield url


def test_a_page_is_there_within_a_fraction_of_a_second(large_console: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    with httpx.Client(base_url=large_console.rstrip("/"), timeout=60) as client:
        for page in PAGES:
            times = []
            for _ in range(VISITS):
                begin = time.perf_counter()
                answer = client.get(page.path)
                times.append(time.perf_counter() - begin)
                assert answer.status_code == page.status
            p95 = statistics.quantiles(times, n=20)[-1]
            lines.append(
                f"{page.name:>10}: p95 {p95 * 1000:5.0f} ms, median {statistics.median(times) * 1000:5.0f} ms, {len(answer.content) >> 10} KiB"
            )
            assert p95 < BOUND_S
    with capsys.disabled():
        print(f"\n{TOPICS} topics, {GROUPS} groups, {VISITS} visits of each page", *lines, sep="\n")


def test_lists_are_read_page_by_page(new_tab: Callable[..., Tab], large_console: str) -> None:
    page = new_tab(large_console).open("/topics")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(ROWS)
    expect(page.get_by_text(f"1 to {ROWS} of 1\u202f000")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("link", name="Previous")).to_be_visible()
    expect(rows).to_have_count(ROWS)
    page.goto(page.url.replace(f"begin={ROWS}", f"begin={TOPICS - 10}"))
    expect(rows).to_have_count(10)
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
