"""Completion in real shells: the line that is left after the Tab key.

Without a shell its tests are skipped; not in CI (`CI` or `EVENQ_TEST_ALL` is set): there they fail.
"""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from evenq_proofs.waiting import until

from evenq.cli.contexts.file import ClusterContext, Contexts, change_contexts, contexts_path

Complete = Callable[[str], list[str]]
LINES = [
    ("evenq gro", "evenq group "),
    ("evenq group sim", "evenq group simulate "),
    ("evenq topic create x --ty", "evenq topic create x --type "),
    ("evenq topic create x --type FI", "evenq topic create x --type FIFO "),
    ("evenq consume orders --context pr", "evenq consume orders --context prod-eu "),
    ("evenq produce orders --file or", "evenq produce orders --file or:ders.txt "),
]


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        text = f"{name} is not installed; on Debian: apt-get install {name}"
        if os.environ.get("CI") or os.environ.get("EVENQ_TEST_ALL"):
            pytest.fail(text)
        pytest.skip(text)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a context, files with unusual names and `evenq` on the path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TERM", "vt100")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "evenq"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m evenq.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "or:ders.txt").touch()
    (tmp_path / "two words.txt").touch()
    change_contexts(
        contexts_path(os.environ), lambda _: Contexts(contexts={"prod-eu": ClusterContext(endpoint="q:8081")})
    )
    return tmp_path


class Zsh:
    """An interactive zsh at a terminal."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ready, self._line = home / "ready", home / "line"
        main, side = pty.openpty()
        self._process = subprocess.Popen(
            [program("zsh"), "-f", "-i"], stdin=side, stdout=side, stderr=side, cwd=home, start_new_session=True
        )
        os.close(side)
        self._main = main
        threading.Thread(target=self._drain, daemon=True).start()
        self._type(
            "PS1='% '; autoload -Uz compinit; compinit -u -D; source <(evenq completion zsh)\n"
            f"left() {{ print -rn -- $BUFFER > {self._line}.new; mv {self._line}.new {self._line}; BUFFER= }}\n"
            f"zle -N left; bindkey '^X' left; bindkey '^I' complete-word; touch {self._ready}\n"
        )
        until(self._ready.exists, "zsh starts")

    def complete(self, line: str) -> str:
        """Returns the line after the Tab key."""
        self._line.unlink(missing_ok=True)
        self._type(f"{line}\t\x18")
        until(self._line.exists, f"zsh completes {line}")
        return self._line.read_text()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        os.close(self._main)

    def _type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._main, 65_536):
                pass


@pytest.fixture
def zsh(home: Path) -> Iterator[Zsh]:
    shell = Zsh(home)
    yield shell
    shell.close()


@pytest.mark.slow
def test_zsh_completes_commands_options_values_and_files(zsh: Zsh) -> None:
    lines = [*LINES, ("evenq produce orders --file two", "evenq produce orders --file two\\ words.txt ")]
    assert [zsh.complete(line) for line, _ in lines] == [left for _, left in lines]


@pytest.mark.slow
def test_fish_completes_commands_options_values_and_files(home: Path) -> None:
    fish = program("fish")

    def proposals(line: str) -> list[str]:
        script = f"evenq completion fish | source; complete -C {line!r}"
        done = subprocess.run([fish, "-c", script], capture_output=True, text=True, timeout=120, check=False, cwd=home)
        assert done.stderr == ""
        return done.stdout.splitlines()

    for line, left in LINES:
        [proposal] = proposals(line)
        assert proposal.partition("\t")[0] == left.split()[-1]
    [proposal] = proposals("evenq produce orders --file two")
    assert proposal.partition("\t")[0] == "two words.txt"  # fish escapes it when it inserts it
    described = dict(proposal.split("\t") for proposal in proposals("evenq group "))
    assert described["list"] == "list all consumer groups"
