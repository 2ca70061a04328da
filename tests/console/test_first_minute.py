"""The pictures of docs/start/first_message.md: its commands in a terminal, and what the console shows then.

Terminals are real ones, drawn by the browser. For the docs (`EVENQ_TEST_PICTURES=docs`) the ports are those of the
page, which must be free.
"""

from __future__ import annotations

import html
import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.console.conftest import WAIT_MS, Tab
from tests.console.pictures import COMMITTED, FOR_DOCS, ROOT, WIDTH, picture, width_of
from tests.docs.conftest import read_blocks

PAGE = "docs/start/first_message.md"
NAMES = ("up", "send", "topic", "message", "group")
BYTES_MAX = 100 << 10
COLUMNS = 96
PORTS = ("8081", "8080") if FOR_DOCS else ("0", "0")
READY = re.compile(r"ready (\S+) .*; console (http://\S+)")
EVENQ = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
WINDOW = """<body style="margin:0"><div id="window" style="display:inline-block;padding:14px 18px;background:#1e1e1e">
<pre style="margin:0;font:14px/1.35 'DejaVu Sans Mono',monospace;color:#d9d9d9">{lines}</pre></div>"""


class Terminal:
    """Runs commands at a terminal and keeps what a reader sees."""

    def __init__(self, endpoint: str = "") -> None:
        self.text = ""
        self._variables = {**os.environ, "PATH": EVENQ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        if endpoint:
            self._variables["EVENQ_ENDPOINT"] = endpoint

    def start(self, command: str, *options: str) -> tuple[subprocess.Popen[bytes], int]:
        """Starts a command; `options` are not shown. Returns it with the descriptor of its output."""
        self.text += f"\x1b[32m$\x1b[0m {command}\n"
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*command.split(), *options] if '"' not in command else ["sh", "-c", command],
            stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=self._variables,
        )  # fmt: skip
        os.close(theirs)
        return process, ours

    def read(self, descriptor: int, last: str = "") -> None:
        """Reads until a line begins with `last`, or to the end. The test's own timeout is the deadline."""
        line = b""
        while True:
            try:
                part = os.read(descriptor, 1)
            except OSError:  # the end of a terminal
                part = b""
            line += part
            if part in (b"\n", b""):
                self.text += line.decode().replace("\r\n", "\n")
                if not part or (last and line.decode().startswith(last)):
                    return
                line = b""

    def run(self, command: str) -> None:
        process, descriptor = self.start(command)
        self.read(descriptor)
        os.close(descriptor)
        assert process.wait() == 0, self.text

    def draw(self, page: Page, name: str) -> None:
        """Takes a picture of all that was read."""
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        console.print(Text.from_ansi(self.text.rstrip("\n")))
        lines = console.export_html(inline_styles=True, code_format="{code}", theme=MONOKAI)
        page.set_content(WINDOW.format(lines=lines))
        page.locator("#window").screenshot(path=picture(f"minute-{name}"))


@pytest.fixture
def up() -> Iterator[Terminal]:
    """A terminal in which `evenq up` is ready."""
    terminal = Terminal()
    process, descriptor = terminal.start("evenq up", "--port", PORTS[0], "--console-port", PORTS[1])
    try:
        terminal.read(descriptor, last="╰")
        yield terminal
    finally:
        process.terminate()
        process.wait()
        os.close(descriptor)


def typed() -> list[list[str]]:
    """The commands of each block of the page, without those that install and start."""
    blocks = [block.commands() for block in read_blocks(PAGE) if not block.language]
    return [lines for lines in ([one for one in block if one.startswith("evenq ")] for block in blocks) if lines]


@pytest.mark.timeout(600)  # eight programs start one after the other
def test_the_commands_of_the_first_page_and_their_messages_in_the_console(
    up: Terminal, new_tab: Callable[..., Tab]
) -> None:
    """The tab is closed before the server: a page that cannot refresh itself reports an error."""
    ready = READY.search(up.text)
    assert ready is not None, up.text
    [start], send, show, receive, *_ = typed()
    assert start == "evenq up"
    tab = new_tab(ready[2], color_scheme="light", viewport={"width": WIDTH, "height": 560})
    up.draw(tab.page, "up")

    shell = Terminal(ready[1])
    for command in (*send, *show):
        shell.run(command)
    assert re.search(r"created topic.*letters", shell.text)
    shell.draw(tab.page, "send")

    page = tab.open("/topics/letters")
    for person in ("Ann", "Ben"):
        expect(page.locator("#live td.body", has_text=f"dear {person}")).to_be_visible(timeout=WAIT_MS)
    page.screenshot(path=picture("minute-topic"), animations="disabled")
    page.locator("#live tr", has_text="dear Ann").get_by_role("link").first.click()
    expect(page.get_by_text("dear Ann").first).to_be_visible(timeout=WAIT_MS)
    page.set_viewport_size({"width": WIDTH, "height": 720})
    page.screenshot(path=picture("minute-message"), animations="disabled")

    for command in receive:
        shell.run(command)
    page = tab.open("/groups/postman")
    expect(page.get_by_role("heading", name="postman").first).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("loading the times of the queue")).to_have_count(0, timeout=WAIT_MS)
    page.screenshot(path=picture("minute-group"), animations="disabled")


def test_the_pictures_of_the_first_page_are_small_and_shown() -> None:
    files = sorted(COMMITTED.glob("minute-*.png"))
    assert {file.stem.removeprefix("minute-") for file in files} == set(NAMES)
    text = html.unescape((ROOT / PAGE).read_text(encoding="utf-8"))
    for file in files:
        assert file.stat().st_size < BYTES_MAX, file.name
        assert 600 < width_of(file) <= WIDTH, file.name
        assert re.search(rf"!\[[^\]]{{10,}}\]\(\.\./pictures/{re.escape(file.name)}\)", text), file.name
