"""Reads the fenced blocks of the pages, and starts the quick start they talk to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = "127.0.0.1:8081"
"""The access point that the pages print."""
CLIENT = re.compile(r"(evenq\.(?:aio\.)?(?:Admin|Producer|\w*Consumer)\()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    """Empty for a terminal."""
    text: str

    def at(self, endpoint: str) -> str:
        """The text, talking to `endpoint`."""
        if self.language == "python" and PRINTED not in self.text:
            return CLIENT.sub(rf'\1endpoint="{endpoint}", ', self.text)
        return self.text.replace(PRINTED, endpoint)

    def commands(self) -> list[str]:
        """The lines of a terminal without their remarks."""
        lines = (re.sub(r"\s{2,}.*", "", line.partition(" #")[0]).strip() for line in self.text.splitlines())
        return [line for line in lines if line]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page=page, line=text[: found.start()].count("\n") + 1, language=found[1], text=found[2])
        for found in FENCE.finditer(text)
    ]


def pages() -> list[str]:
    """Every page for readers, from the root of the project."""
    return sorted(
        path.relative_to(ROOT).as_posix()
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/*/README.md"))
        if ".venv" not in path.parts
    )


@pytest.fixture(scope="session")
def blocks() -> Callable[[str, str], list[Block]]:
    """Blocks of a page in one language; `""` is a terminal."""

    def find(page: str, language: str) -> list[Block]:
        return [block for block in read_blocks(page) if block.language == language]

    return find


@pytest.fixture(scope="session")
def all_blocks() -> list[Block]:
    return [block for page in pages() for block in read_blocks(page)]


@pytest.fixture(scope="session")
def all_pages() -> list[str]:
    return pages()


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A quick start on a free port; its access point."""
    command = [sys.executable, "-m", "evenq.cli", "up", "--port", "0", "--metrics-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), line or process.communicate(timeout=60)[1]
        yield line.split()[1]
        process.terminate()
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def shell(endpoint: str, tmp_path: Path) -> Callable[[str], str]:
    """Types one line as a reader would, with the quick start as the default access point; returns what it prints."""
    environment = {**os.environ, "EVENQ_ENDPOINT": endpoint, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"

    def type_in(line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    return type_in


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python with a program, its standard input a pipe; ends what is left."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *arguments: str) -> subprocess.Popen[str]:
        path = tmp_path / f"program_{len(started)}.py"
        path.write_text(program, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-u", "-W", "error", str(path), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
