"""Stories of users as text: commands with what they print, and what members do. One file of `transcripts` is one story.

`$ topic list` runs `evenq topic list`; the lines below it are its output: columns are separated by one space, frames are
left out, `…` stands for any text, and alone for any lines. A command that only looks is repeated until its output is as
written. `> anna joins billing, reads orders` is an action of `Story`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import evenq
from evenq.testing import LocalCluster

FOLDER = Path(__file__).parent / "transcripts"
LOOKS = {"show", "list", "find", "explain"}
FRAME = re.compile(r"[\s─]*")


class Story:
    """A cluster, its members by name, and what they received."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.members: dict[str, evenq.PushConsumer] = {}

    def joins(self, member: str, group: str, topic: str, poison: str | None) -> None:
        def listener(messages: Sequence[evenq.ReceivedMessage]) -> None:
            for message in messages:
                if poison is not None and message.body.decode() == poison:
                    raise ValueError(f"cannot process {poison}")

        consumer = evenq.PushConsumer(
            group=group,
            listener=listener,
            subscriptions={topic: "*"},
            endpoint=self.cluster.endpoints,
            client_id=member,
            start_from="FIRST",
        )
        consumer.start()
        self.members[member] = consumer

    def leaves(self, member: str) -> None:
        self.members.pop(member).close()

    def dies(self, broker: str, copy: str) -> None:
        """`copy`: its number."""
        self.cluster.brokers[int(copy)].kill()

    def evenq(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "evenq.cli", *words, "--endpoint", self.cluster.endpoints],
            capture_output=True, text=True, timeout=120, check=False, env={"COLUMNS": "160", "PATH": ""},
        )  # fmt: skip
        return done.stdout + done.stderr


ACTIONS = (
    (re.compile(r"(\w+) joins (\w+), reads (\w+)(?:, fails at (\w+))?"), Story.joins),
    (re.compile(r"(\w+) leaves"), Story.leaves),
    (re.compile(r"copy (?P<copy>\d) of (?P<broker>[\w-]+) dies"), lambda story, copy, broker: story.dies(broker, copy)),
)


def act(story: Story, text: str) -> None:
    for pattern, action in ACTIONS:
        if found := pattern.fullmatch(text):
            action(story, *found.groups())
            return
    raise AssertionError(f"{text!r} is not an action of a story")


def plain(output: str) -> list[str]:
    return [" ".join(line.split()) for line in output.splitlines() if not FRAME.fullmatch(line)]


def fits(expected: Sequence[str], lines: Sequence[str]) -> bool:
    parts = [r"(?:[^\n]*\n)*" if line == "…" else re.escape(line).replace("…", "[^\n]*") + "\n" for line in expected]
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in lines)) is not None


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each action or command with the output that follows it."""
    step, output = "", list[str]()
    for line in text.splitlines():
        if line.startswith(("$ ", "> ")):
            if step:
                yield step, plain("\n".join(output))
            step, output = line, []
        elif step:
            output.append(line)
    yield step, plain("\n".join(output))


def play(story: Story, text: str) -> None:
    for step, expected in steps(text):
        if step.startswith("> "):
            act(story, step[2:])
            continue
        words = step[2:].split()
        deadline = time.monotonic() + (60 if LOOKS & set(words[:2]) else 0)
        while not fits(expected, lines := plain(story.evenq(*words))):
            assert time.monotonic() < deadline, "\n".join([step, *lines, "", "expected", *expected])
            time.sleep(0.2)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.slow] if path.stem == "failover" else [])
        for path in sorted(FOLDER.glob("*.txt"))
    ],
)
def test_a_story_reads_as_it_is_written(name: str, tmp_path: Path) -> None:
    text = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    copies = 3 if name == "failover" else 1
    with LocalCluster(replicas=copies, folder=tmp_path, rebalancer=copies == 1) as cluster:
        story = Story(cluster)
        try:
            play(story, text)
        finally:
            for member in story.members.values():
                member.close()


def test_a_line_that_differs_is_seen() -> None:
    output = plain(" queue    owner \n ─────── \n\n t a/0    anna\n t a/1    ben\n")
    assert output == ["queue owner", "t a/0 anna", "t a/1 ben"]
    assert fits(["queue owner", "…"], output)
    assert fits(["…", "t a/… anna", "t a/1 ben"], output)
    assert not fits(["queue owner", "t a/0 anna"], output)
    assert not fits(["…", "t a/1 anna"], output)
