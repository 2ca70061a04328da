"""The programs and the test of docs/guides/faststream.md."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = "docs/guides/faststream.md"


def test_the_application_of_the_page_handles_what_its_producer_sends(
    blocks: Callable[[str, str], list[Any]], endpoint: str, start: Callable[..., subprocess.Popen[str]]
) -> None:
    app, producer, *_ = blocks(PAGE, "python")
    worker = start(app.at(endpoint))
    assert worker.stdout is not None
    output, _ = start(producer.at(endpoint)).communicate("\n", timeout=60)
    assert output == "400\n"
    billed: set[str] = set()
    while len(billed) < 3:
        line = worker.stdout.readline()
        assert line, "the application ended"
        if line.startswith("billed"):
            billed.add(line.strip())
    assert billed == {"billed 1 new 1", "billed 2 changed 1", "billed 3 changed 1"}
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, output


def test_the_test_of_the_page_passes_without_a_server(blocks: Callable[[str, str], list[Any]], tmp_path: Path) -> None:
    programs = blocks(PAGE, "python")
    (test,) = [block for block in programs if "import pytest" in block.text]
    (tmp_path / "app.py").write_text(programs[0].text)
    (tmp_path / "test_app.py").write_text(test.text)
    subprocess.run([sys.executable, "-m", "pytest", "-q", str(tmp_path)], cwd=tmp_path, check=True, timeout=240)


def test_the_other_programs_of_the_page_are_documented_by_asyncapi(
    blocks: Callable[[str, str], list[Any]], tmp_path: Path
) -> None:
    programs = [block for block in blocks(PAGE, "python")[2:] if "import pytest" not in block.text]
    assert len(programs) == 2
    show = "\nfrom faststream.specification import AsyncAPI\nprint(AsyncAPI(broker).to_specification().to_json())\n"
    channels = set()
    for program in programs:
        script = tmp_path / "program.py"
        script.write_text(program.text + show)
        output = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
        document = json.loads(output.stdout)
        channels |= {channel["address"] for channel in document["channels"].values()}
    assert channels == {"payments", "clicks", "offers", "refunds", "returns", "signups"}
