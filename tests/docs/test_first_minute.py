"""The README's first minute, typed as it is printed, against a real `evenq up`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from evenq_proofs.whole_runs import skip_or_fail

PAGE = "README.md"


def lines_until(process, wanted):
    """Lines of a program until one holds `wanted`. The test's own timeout is the deadline."""
    read = []
    for line in process.stdout:
        read.append(line)
        if wanted in line:
            return read
    pytest.fail(f"{wanted!r} was never printed:\n{''.join(read)}")


def test_the_first_minute_works_as_printed(blocks, endpoint, shell, start):
    python, spark = blocks(PAGE, "python")
    reader = start(python.at(endpoint))
    sent = lines_until(reader, "SendResult")
    assert "topic='hello'" in sent[-1]
    lines_until(reader, "b'first'")

    typed = {}
    for block in blocks(PAGE, ""):
        for command in block.commands():
            if re.match(r"evenq (produce|consume|group) ", command):
                typed[command] = shell(command)
    produced, consumed, shown = typed.values()
    assert "hello" in produced
    assert "[greeting]" in consumed
    assert re.search(r"hello\s+broker-a", shown)
    assert "no member is connected" not in shown
    lines_until(reader, "from the shell")

    output, _ = reader.communicate("\n", timeout=60)
    assert reader.returncode == 0, output
    assert spark.text.startswith("spark.read.format")  # run by tests/spark


def test_the_installation_is_the_one_of_a_clone(blocks):
    commands = [command for block in blocks(PAGE, "") for command in block.commands()]
    assert commands.count('pip install ".[server,console]"') == 1
    assert commands.count("evenq up") == 1


def test_another_languages_official_client_sends_as_printed(blocks, endpoint, shell, tmp_path):
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        skip_or_fail("no Node.js on this machine")
    (program,) = blocks(PAGE, "js")
    (command,) = re.findall(r"`(npm install [\w-]+)`", (Path(__file__).parents[2] / PAGE).read_text())
    installed = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    if installed.returncode != 0:
        pytest.skip(f"{command} does not work here: {installed.stderr[-300:]}")
    (tmp_path / "send.mjs").write_text(program.at(endpoint))
    sent = subprocess.run([node, "send.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (sent.returncode, sent.stderr) == (0, "")
    assert "from Node.js" in shell("evenq consume hello --group shell --from first --max 1")
