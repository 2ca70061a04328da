"""`pip install .` in a fresh environment: the SDK works, and programs say which extra they miss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.docs
def test_an_installation_without_extras_says_what_to_install(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    pip = [tmp_path / "bin" / "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, ROOT], check=True, cwd=tmp_path)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        line = [str(tmp_path / "bin" / words[0]), *words[1:]]
        return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)

    assert run("python", "-c", "import evenq, evenq.aio, evenq.local; evenq.Producer; evenq.Admin").returncode == 0
    assert run("evenq", "--version").returncode == 0
    for words, extra in (
        (("evenq", "topic", "list"), "cli"),
        (("evenq-broker",), "server"),
        (("evenq-nameserver",), "server"),
        (("evenq-rebalancer",), "server"),
    ):
        ended = run(*words)
        assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1), ended.stderr
        assert f'pip install "evenq[{extra}]"' in ended.stderr
