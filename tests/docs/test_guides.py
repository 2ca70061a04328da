"""The guides' Python runs, and the first ten minutes of docs/start.md go as the page tells."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest

from evenq.errors import RequestTimeout
from evenq.runtime.clock import SystemClock

DEADLINE_MS = 60_000


@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/filters.md",
        "docs/guides/lite_topics.md",
        "docs/guides/message_kinds.md",
        "docs/guides/python_sdk.md",
        "docs/guides/strategies.md",
        "docs/guides/transactions.md",
    ],
)
def test_every_python_block_of_the_guide_runs(page, blocks, endpoint, start):
    programs = blocks(page, "python")
    assert programs
    for program in programs:
        process = start(program.at(endpoint))
        output, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0, f"{program}\n{output}"


def test_a_worker_of_the_guide_ends_cleanly_on_sigterm(blocks, endpoint, shell, start):
    worker, program, *_ = blocks("docs/guides/running.md", "python")
    process = start(program.at(endpoint))
    output, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0, output
    process = start(worker.at(endpoint))
    assert process.stdout.readline() == "welcome\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    wait_for(lambda: group(shell, "mailer")["lag"], 0)


def test_the_test_of_the_guide_passes(blocks, tmp_path):
    [program] = [block for block in blocks("docs/guides/running.md", "python") if "pytest" in block.text]
    (tmp_path / "test_orders.py").write_text(program.text)
    subprocess.run([sys.executable, "-m", "pytest", "-q", str(tmp_path)], check=True, timeout=120)


def test_ten_minutes_from_nothing_to_a_group_that_shares(blocks, endpoint, shell, start):
    page = "docs/start.md"
    commands = [command for block in blocks(page, "") for command in block.commands()]
    (worker,) = blocks(page, "python")
    at = iter(commands)

    def type_until(last):
        for command in at:
            if command.startswith("evenq ") and not command.startswith("evenq up"):
                shell(command)
            if command == last:
                return
        pytest.fail(f"the page has no line {last!r}")

    type_until("evenq topic show orders")
    type_until("python worker.py ann")
    ann = start(worker.at(endpoint), "ann")
    wait_for(lambda: "billing" in shell("evenq group list"), True)
    owners_are(shell, ann=8)
    type_until("watch -n 1 evenq group show billing")
    type_until("python worker.py ben")
    ben = start(worker.at(endpoint), "ben")
    owners_are(shell, ann=4, ben=4)
    cleo = start(worker.at(endpoint), "cleo")
    owners_are(shell, ann=3, ben=3, cleo=2)
    type_until("evenq produce orders --count 9000")
    wait_for(lambda: group(shell)["lag"], 0)

    output = ben.communicate("\n", timeout=60)[0]
    assert ben.returncode == 0, output
    owners_are(shell, ann=4, cleo=4)
    wait_for(lambda: sum(queue["committed"] for queue in group(shell)["queues"]), 10_000)
    cleo.send_signal(signal.SIGKILL)
    owners_are(shell, ann=8)
    read_by_ann = int(
        re.findall(r"^ann: (\d+) messages in all$", ann.communicate("\n", timeout=60)[0], re.MULTILINE)[0]
    )
    read_by_ben = int(re.findall(r"^ben: (\d+) messages in all$", output, re.MULTILINE)[0])
    assert read_by_ann + read_by_ben < 10_000  # the rest was cleo's: nothing that was committed came again


def group(shell, name="billing"):
    return json.loads(shell(f"evenq group show {name} --json"))


def owners_are(shell, **wanted):
    """Wait until the members own this number of queues each."""

    def shares():
        owned = Counter(queue["owner"] for queue in group(shell)["queues"])
        return dict(sorted(owned.items()))

    wait_for(shares, wanted)


def wait_for(look, wanted):
    clock = SystemClock()
    end_ms = clock.monotonic_ms() + DEADLINE_MS
    while (seen := look()) != wanted:
        if clock.monotonic_ms() > end_ms:
            raise RequestTimeout(f"{seen} instead of {wanted} after {DEADLINE_MS} ms")
