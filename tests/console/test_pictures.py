"""The pictures of the console in the docs, 1,280 pixels wide and in light mode (see `pictures`)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from evenq_proofs.waiting import until
from playwright.sync_api import Page, expect

import evenq
from evenq.console.settings import ConsoleSettings
from evenq.testing import LocalCluster
from tests.console.conftest import WAIT_MS, Tab, served
from tests.console.pictures import COMMITTED, ROOT, WIDTH, picture, width_of

pytestmark = pytest.mark.slow

TOTAL_BYTES_MAX = 600 << 10
MESSAGES = 400
SCENES = ("overview", "topic", "group", "film", "message", "new-group")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with orders that two groups read, one of them behind."""
    with LocalCluster(folder=tmp_path_factory.mktemp("shop"), brokers=2, metrics_port=-1) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("orders", queues=4)
            admin.create_topic("payments", queues=4, message_type="TRANSACTION")
            admin.create_topic("reminders", queues=2, message_type="DELAY")
            admin.create_group("billing", strategy="STICKY", start_from="FIRST")
            admin.create_group("reports", start_from="FIRST")
        send(cluster, MESSAGES)
        with evenq.PullConsumer(endpoint=cluster.endpoint, group="reports", subscriptions={"orders": "*"}) as consumer:
            until(lambda: consumer.poll(wait_ms=500))
            consumer.commit()
        yield cluster


@contextmanager
def sending(cluster: LocalCluster) -> Iterator[None]:
    """Sends some messages a second, so that rates and charts show something."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.2):
            send(cluster, 3)

    thread = threading.Thread(target=run, name="orders")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def send(cluster: LocalCluster, count: int) -> None:
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for number in range(count):
            order = f'{{"order": {number}, "total": {number * 7 % 90 + 10}, "currency": "EUR"}}'
            producer.send(evenq.Message(topic="orders", body=order.encode(), tag="created", keys=(f"order-{number}",)))


@pytest.fixture(scope="module")
def shop_console(shop: LocalCluster) -> Iterator[str]:
    with served(ConsoleSettings(endpoint=shop.endpoint, port=0, allow_changes=True)) as url:
        yield url


def taken(page: Page, name: str, height: int = 800) -> None:
    """Takes a picture of the visible part of a page."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    path = picture(f"console-{name}")
    page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size > 10_000, "it shows something"


def test_the_scenes_of_the_docs(new_tab: Callable[..., Tab], shop: LocalCluster, shop_console: str) -> None:
    tab = new_tab(shop_console, color_scheme="light")
    page = tab.open("/")
    with sending(shop), ExitStack() as members:

        def join(name: str) -> evenq.PushConsumer:
            return members.enter_context(
                evenq.PushConsumer(
                    endpoint=shop.endpoint,
                    group="billing",
                    client_id=name,
                    listener=lambda _messages: None,
                    subscriptions={"orders": "*"},
                )
            )

        first, _ = join("billing-1"), join("billing-2")
        tab.open("/groups/billing?tab=film")
        expect(page.locator("svg.strip").first).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_role("cell", name="billing-2", exact=False).first).to_be_visible(timeout=WAIT_MS)
        join("billing-3")
        expect(page.get_by_text("to billing-3: ", exact=False).first).to_be_visible(timeout=WAIT_MS)
        first.close()
        expect(page.get_by_text(re.compile("billing-1 to .*left|billing-1 to billing-2")).first).to_be_visible(
            timeout=WAIT_MS
        )
        taken(page, "film", 960)
        tab.open("/")
        expect(page.locator("svg.spark").first).to_be_visible(timeout=WAIT_MS)
        taken(page, "overview", 560)
        tab.open("/topics/orders")
        expect(page.locator("#live td.body").first).to_be_visible(timeout=WAIT_MS)
        taken(page, "topic", 560)
        tab.open("/groups/billing")
        expect(page.locator("meter").first).to_be_visible(timeout=WAIT_MS)
        expect(page.get_by_text("loading the times of the queue")).to_have_count(0, timeout=WAIT_MS)
        taken(page, "group", 700)
        tab.open("/messages?topic=orders&key=order-7")
        page.locator("tbody a").first.click()
        expect(page.get_by_role("heading", name="Trace")).to_be_visible(timeout=WAIT_MS)
        taken(page, "message", 760)
        tab.open(
            "/new-group/plan?group=invoices&topics=orders+invoices&queues=4&strategy=STICKY&max_attempts=5"
            "&retry=EXPONENTIAL&initial=1s&max=10m&weight=LAG&hold=30s"
        )
        expect(page.get_by_role("button", name="Apply this plan")).to_be_visible(timeout=WAIT_MS)
        taken(page, "new-group", 730)


def test_the_pictures_in_the_docs_are_small_and_shown() -> None:
    files = sorted(COMMITTED.glob("console-*.png"))
    assert {file.stem.removeprefix("console-") for file in files} == set(SCENES)
    assert sum(file.stat().st_size for file in files) < TOTAL_BYTES_MAX
    pages = (ROOT / "docs/guides/console.md").read_text(encoding="utf-8")
    for file in files:
        assert width_of(file) == WIDTH, file.name
        assert re.search(rf"!\[[^\]]{{10,}}\]\(\.\./pictures/{re.escape(file.name)}\)", pages), file.name
    assert "docs/pictures/console-overview.png" in (ROOT / "README.md").read_text(encoding="utf-8")
