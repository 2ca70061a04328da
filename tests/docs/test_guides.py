"""The guides' Python runs, and the first ten minutes of docs/start.md go as the page tells."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter

import pytest

from evenq.errors import RequestTimeout
from evenq.runtime.clock import SystemClock

DEADLINE_MS = 60_000


@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/cloudevents.md",
        "docs/guides/exactly_once.md",
        "docs/guides/filters.md",
        "docs/guides/lite_topics.md",
        "docs/guides/message_kinds.md",
        "docs/guides/python_sdk.md",
        "docs/guides/strategies.md",
        "docs/guides/tracing.md",
        "docs/guides/transactions.md",
        "docs/operating/from_kafka_and_nats.md",
    ],
)
def test_every_python_block_of_the_guide_runs(page, blocks, endpoint, start):
    programs = blocks(page, "python")
    assert programs
    for program in programs:
        process = start(program.at(endpoint))
        output, _ = process.communicate("\n", timeout=60)
        assert process.returncode == 0, f"{program}\n{output}"


def test_every_command_of_the_command_lines_page_runs(blocks, endpoint, shell):
    shell("evenq topic create orders --queues 8")
    commands = [line for block in blocks("docs/guides/command_line.md", "") for line in block.at(endpoint).splitlines()]
    assert len(commands) > 12
    for command in commands:
        shell(command)


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


def test_the_tests_of_the_guide_pass(blocks, tmp_path):
    programs = [block.text for block in blocks("docs/guides/testing.md", "python")]
    assert len(programs) == 3
    for program in programs:
        (tmp_path / program.splitlines()[0].removeprefix("# ")).write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "evenq.pytest_plugin", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_the_fastapi_application_of_the_guide_answers_reads_and_ends(blocks, endpoint, start, tmp_path):
    (application,) = [block for block in blocks("docs/guides/running.md", "python") if "uvicorn" in block.text]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = (
        f'\nif __name__ == "__main__":\n    import uvicorn\n\n    uvicorn.run(app, port={port}, log_level="error")\n'
    )
    process = start(application.at(endpoint) + serve)

    def call(path, method="GET"):
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)) as got:
                return json.loads(got.read())
        except OSError:
            assert process.poll() is None, process.communicate()[0]
            return None

    wait_for(lambda: set(call("/signups/ann", "POST") or ()), {"message_id"})
    assert process.stdout.readline() == "welcome ann\n"
    wait_for(lambda: set(call("/ready") or ()), {"queues"})
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode in {0, -signal.SIGTERM}, output  # uvicorn raises the signal again at its end


def test_the_test_of_the_fastapi_application_passes_without_a_server(blocks, tmp_path):
    programs = blocks("docs/guides/running.md", "python")
    (application,) = [block for block in programs if "uvicorn" in block.text]
    (test,) = [block for block in programs if "TestClient" in block.text]
    (tmp_path / "app.py").write_text(application.text)
    (tmp_path / "test_app.py").write_text(test.text)
    subprocess.run([sys.executable, "-m", "pytest", "-q", str(tmp_path)], cwd=tmp_path, check=True, timeout=240)


def test_ten_minutes_from_nothing_to_a_group_that_shares(blocks, endpoint, shell, start):
    page = "docs/start.md"
    commands = [command for block in blocks(page, "") for command in block.commands()]
    (worker,) = blocks(page, "python")
    at = iter(commands)

    def type_until(last):
        for command in at:
            if command.startswith("evenq ") and not command.startswith("evenq up"):
                shell(command.removesuffix(" --watch"))  # which runs until Ctrl-C
            if command == last:
                return
        pytest.fail(f"the page has no line {last!r}")

    type_until("evenq topic show orders")
    type_until("python worker.py ann")
    ann = start(worker.at(endpoint), "ann")
    wait_for(lambda: "billing" in shell("evenq group list"), True)
    owners_are(shell, ann=8)
    type_until("evenq group show billing --watch")
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
