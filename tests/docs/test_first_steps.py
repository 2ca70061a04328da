"""The pages of the first steps go as they are printed: docs/start/*.md. The third page is in test_guides.py."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["docs/start/terms.md", "docs/start/first_message.md", "docs/start.md", "docs/start/failures.md", "docs/start/keeping.md"]  # fmt: skip


def typed(blocks: Any, page: str) -> list[str]:
    """The commands of a page for a broker that runs."""
    lines = [command for block in blocks(page, "") for command in block.commands()]
    return [line for line in lines if line.startswith("evenq ") and not line.startswith("evenq up")]


def read_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Lines of a program until one is `wanted`. The test's own timeout is the deadline."""
    lines: list[str] = []
    for line in process.stdout or ():
        lines.append(line.rstrip("\n"))
        if lines[-1] == wanted:
            return lines
    pytest.fail(f"{wanted!r} was never printed: {lines}")


def lag(shell: Any, group: str) -> int:
    return int(json.loads(shell(f"evenq group show {group} --json"))["lag"])


def test_each_page_leads_to_the_next_one():
    for page, following in itertools.pairwise(PAGES):
        target = os.path.relpath(following, Path(page).parent)
        assert f"({target})" in (ROOT / page).read_text(encoding="utf-8"), page


def test_the_picture_shows_the_lags_that_the_text_names():
    picture = (ROOT / "docs" / "pictures" / "first_picture.svg").read_text(encoding="utf-8")
    ends = [
        len(re.findall(r'class="(?:done|new)"', part))
        for part in re.findall(r'<g id="queue\d">.*?</g>', picture, re.DOTALL)
    ]
    offsets = {colour: [int(n) for n in re.findall(rf'class="{colour}"[^>]*>offset (\d)', picture)] for colour in "ab"}
    lags = {colour: sum(ends) - sum(places) for colour, places in offsets.items()}
    assert f"it is {lags['a']} for `postman`, and {lags['b']} for `archive`" in (ROOT / PAGES[0]).read_text("utf-8")
    assert "prefers-color-scheme: dark" in picture


def test_the_first_message_is_sent_and_received_as_printed(blocks, endpoint, shell, start):
    page = PAGES[1]
    for command in typed(blocks, page):
        output = shell(command)
        if command.startswith("evenq consume"):
            assert {line.split("dear ")[1] for line in output.splitlines() if "dear" in line} == {"Ann", "Ben"}
    assert "created topic" not in output
    assert (lag(shell, "postman"), lag(shell, "archive")) == (0, 0)
    [program] = blocks(page, "python")
    output, _ = start(program.at(endpoint)).communicate(timeout=120)
    assert [line.split(":")[0] for line in output.splitlines()] == ["sent"] * 3 + ["received"] * 3


def test_a_message_fails_becomes_a_dead_letter_and_is_replayed_as_printed(blocks, endpoint, shell, start):
    page = PAGES[3]
    create, good, bad, listed, replay = typed(blocks, page)
    shell(create)
    program, repair = blocks(page, "python")
    failing = start(program.at(endpoint))
    shell(good)
    assert "paid 12" in read_until(failing, "paid 12")
    shell(bad)
    read_until(failing, "attempt 3: some apples")
    until(lambda: "attempts" in shell(listed))
    failing.communicate("\n", timeout=120)

    [line] = [line for line in program.text.splitlines() if "amount = int(" in line]
    indent = line[: len(line) - len(line.lstrip())]
    repaired = start(program.at(endpoint).replace(line, indent + repair.text.strip()))
    shell(replay)
    lines = read_until(repaired, "paid 1")
    assert "attempt 1: some apples" in lines
    assert "attempt 1: 12 apples" not in lines, "the good bill was finished"
    repaired.communicate("\n", timeout=120)


def test_data_outlives_a_crash_as_printed(blocks, tmp_path):
    page = PAGES[4]
    assert next(command for block in blocks(page, "") for command in block.commands()) == "evenq up --data ./queue"
    produce, consume, show, again = typed(blocks, page)
    assert show == again
    environment = dict(os.environ)

    def up() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "evenq.cli", "up", "--data", "./queue", "--port", "0", "--metrics-port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), line or process.communicate(timeout=60)[1]
        environment["EVENQ_ENDPOINT"] = line.split()[1]
        return process

    def shell(command: str) -> str:
        words = [sys.executable, "-m", "evenq.cli", *command.split()[1:]]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment, check=True).stdout

    first = up()
    try:
        shell(produce)
        shell(consume)
        before = lag(shell, "postman")
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=60)
        second = up()
        try:
            assert (before, lag(shell, "postman")) == (60, 60)
        finally:
            second.terminate()
            second.communicate(timeout=120)
    finally:
        first.kill()
        first.communicate()
    assert "its lag is 60" in (ROOT / page).read_text(encoding="utf-8")
