"""A cluster, a console in front of it, and Chromium. Each test of a tab also checks that the page made no error and no
request to another host.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

import evenq
from evenq.console.server import ConsoleServer
from evenq.console.settings import ConsoleSettings
from evenq.runtime.clock import SystemClock
from evenq.testing import LocalCluster

BUILD = Path(__file__).resolve().parents[2] / "build"
PICTURES = BUILD / "console-pictures"
AXE_VERSION = "4.14.1"
WAIT_MS = 60_000
NAME = "console.example.com"
"""A host name that Chromium resolves to this machine: an origin without the privileges of loopback."""
USERS = """
[users.servers]
secret = "secret-of-servers"
internal = true
[users.root]
secret = "secret-of-root"
admin = true
"""
ROOT = evenq.Credentials(access_key="root", secret_key="secret-of-root")


def missing(reason: str) -> None:
    """Skips a test, or fails it where everything must run."""
    if os.environ.get("EVENQ_TEST_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


class Tab:
    """A page of the browser, and what went wrong on it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url.rstrip("/")
        self.context = context
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        self.refused: list[str] = []
        """Messages about responses with an error status; tests of errors expect them."""
        self.hosts: set[str] = set()
        self.page.on("console", self._message)
        self.page.on("pageerror", lambda error: self.problems.append(f"{error}"))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, target: str = "/topics") -> None:
        page = self.open(target)
        page.get_by_label("Access key").fill("root")
        page.get_by_label("Secret key").fill("secret-of-root")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()

    def check(self) -> None:
        assert self.problems == []
        assert self.hosts <= {urlsplit(self.url).netloc}

    def _message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            kept = self.refused if "Failed to load resource" in message.text else self.problems
            kept.append(f"{message.type}: {message.text}")


@contextmanager
def served(settings: ConsoleSettings) -> Iterator[str]:
    """Serves a console in a thread with a loop of its own; yields its URL."""
    ready, ended = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    urls: list[str] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            async with ConsoleServer(settings, SystemClock()) as server:
                urls.append(server.url)
                ready.set()
                await ended.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="console")
    thread.start()
    ready.wait()
    assert urls, "the console did not start"
    try:
        yield urls[0]
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster without users; it has the topic `orders` with some messages and the group `billing`."""
    with LocalCluster(folder=tmp_path_factory.mktemp("cluster"), metrics_port=-1) as running:
        with evenq.Admin(endpoint=running.endpoint) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_group("billing")
        with evenq.Producer(endpoint=running.endpoint) as producer:
            for number in range(5):
                message = evenq.Message(
                    topic="orders", body=f"order {number}".encode(), tag="new", keys=(f"k{number}",)
                )
                producer.send(message)
        yield running


@pytest.fixture(scope="session")
def guarded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with the user `root`."""
    users = tmp_path_factory.mktemp("secret") / "users.toml"
    users.write_text(USERS)
    on = {"AUTH__ENABLED": "true", "AUTH__USERS": str(users)}
    folder = tmp_path_factory.mktemp("guarded")
    with LocalCluster(
        folder=folder, rebalancer=False, broker_settings=on, nameserver_settings=on, metrics_port=-1
    ) as running:
        with evenq.Admin(endpoint=running.endpoint, credentials=ROOT) as admin:
            admin.create_topic("orders", queues=2)
        yield running


@pytest.fixture(scope="session")
def console(cluster: LocalCluster) -> Iterator[str]:
    """The URL of a console that allows changes."""
    with served(ConsoleSettings(endpoint=cluster.endpoint, port=0, allow_changes=True)) as url:
        yield url


@pytest.fixture(scope="session")
def guarded_console(guarded_cluster: LocalCluster) -> Iterator[str]:
    """The URL of a console of a cluster with users."""
    settings = ConsoleSettings(endpoint=guarded_cluster.endpoint, port=0, allow_changes=True, names=(NAME,))
    with served(settings) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        missing("Chromium is not installed; on Debian: apt-get install chromium")
    arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {NAME} 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Returns how to open a tab with cookies of its own. At the end of the test all of them are checked."""
    tabs: list[Tab] = []

    def new(url: str, **options: Any) -> Tab:
        options.setdefault("viewport", {"width": 1280, "height": 800})
        context = browser.new_context(locale="en-GB", timezone_id="UTC", **options)
        context.set_default_timeout(WAIT_MS)
        tabs.append(Tab(context, url))
        return tabs[-1]

    yield new
    for tab in tabs:
        tab.context.close()
    for tab in tabs:
        tab.check()


@pytest.fixture
def tab(new_tab: Callable[..., Tab], console: str) -> Tab:
    return new_tab(console)


@pytest.fixture
def guarded_tab(new_tab: Callable[..., Tab], guarded_console: str) -> Tab:
    return new_tab(guarded_console)


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which finds what a screen reader cannot use."""
    folder = BUILD / f"axe-core-{AXE_VERSION}"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            missing("npm, which installs axe-core, is not installed; on Debian: apt-get install npm")
        assert npm is not None
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"]
        command.append(f"axe-core@{AXE_VERSION}")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
        if not script.exists():
            missing(f"npm install axe-core failed: {done.stderr.strip()[-300:]}")
    return script.read_text(encoding="utf-8")
