"""Completion: commands and options from the grammar, names from the cluster, and silence where there is none."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from argcomplete import CompletionFinder

from evenq.cli import completers
from evenq.cli.completers import broker_name, context_name, group_name, topic_name
from evenq.cli.contexts.file import ClusterContext, Contexts, change_contexts, contexts_path
from evenq.cli.parser import make_parser
from evenq.client.wiring import ClientContext
from evenq.errors import Forbidden
from evenq.wire.stubs.evenq.v1 import admin_pb2


def proposals(line: str) -> list[str]:
    """What a shell gets for the line, with the cursor at its end."""
    *words, prefix = line.split(" ")
    finder = CompletionFinder(make_parser(), always_complete_options=False)
    found = finder._get_completions(words, prefix, "", None)  # the rest of it writes to a file of the shell
    return [word.strip() for word in found]


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cluster with these answers, for the functions that complete names."""
    from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

    class Net:
        answers: dict[str, Any] = {}

        async def unary(self, _address: str, method: str, _request: bytes, **_: Any) -> bytes:
            answer = self.answers[method.rpartition("/")[2]]
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                await asyncio.Event().wait()
            answer.status.code = definition_pb2.OK
            encoded: bytes = answer.SerializeToString()
            return encoded

        async def close(self) -> None:
            """Nothing to end."""

    one = Net()
    monkeypatch.setattr(ClientContext, "open_net", lambda _: one)
    topics, groups, brokers = (
        admin_pb2.ListTopicsResponse(),
        admin_pb2.ListGroupsResponse(),
        admin_pb2.ListBrokersResponse(),
    )
    for name in ("orders", "orders-late", "jobs", "team%mine"):
        topics.topics.add(topic=name)
        groups.groups.add(group=name)
    brokers.brokers.add(answered=True).broker.name = "broker-a"
    one.answers = {"ListTopics": topics, "ListGroups": groups, "ListBrokers": brokers}
    return one


def test_names_come_from_the_cluster(net: Any) -> None:
    options = argparse.Namespace(endpoint="x:1")
    assert topic_name("ord", options) == ["orders", "orders-late"]
    assert group_name("j", argparse.Namespace()) == ["jobs"]
    assert broker_name("", argparse.Namespace()) == ["broker-a"]


def test_in_a_namespace_its_names_are_proposed_without_it(net: Any) -> None:
    assert topic_name("", argparse.Namespace(endpoint="x:1", namespace="team")) == ["mine"]


@pytest.mark.parametrize("answer", [Forbidden("no grant"), RuntimeError("a defect"), None])
def test_a_failure_or_silence_means_no_proposals(
    net: Any, answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completers, "LIMIT_S", 0.2)
    net.answers["ListTopics"] = answer
    assert topic_name("", argparse.Namespace(endpoint="x:1")) == []
    assert topic_name("", argparse.Namespace(endpoint="not an address")) == []
    assert topic_name("", argparse.Namespace(endpoint=None, context="unknown")) == []
    assert capsys.readouterr() == ("", "")


def test_contexts_come_from_their_file() -> None:
    assert context_name("") == []
    content = Contexts(contexts={name: ClusterContext(endpoint="x:1") for name in ("prod", "lab")})
    change_contexts(contexts_path(os.environ), lambda _: content)
    assert context_name("") == ["lab", "prod"]
    assert context_name("p") == ["prod"]
    contexts_path(os.environ).chmod(0o644)
    assert context_name("") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evenq topi", ["topic"]),
        ("evenq topic sc", ["scale"]),
        ("evenq topic list -o ", ["table", "wide", "json", "yaml", "name"]),
        ("evenq topic list --conte", ["--context"]),
        ("evenq topic show ord", ["orders", "orders-late"]),
        ("evenq consume orders --group j", ["jobs"]),
        ("evenq broker drain b", ["broker-a"]),
        ("evenq completion z", ["zsh"]),
    ],
)
def test_a_line_is_completed(net: Any, line: str, words: list[str]) -> None:
    assert proposals(line) == words


@pytest.mark.parametrize(("shell", "mark"), [("bash", "complete "), ("zsh", "#compdef evenq"), ("fish", "complete ")])
def test_the_script_of_a_shell_is_printed(run: Any, shell: str, mark: str) -> None:
    code, out, err, _ = run(f"completion {shell}")
    assert (code, err) == (0, "")
    assert mark in out
    assert "evenq" in out


def test_bash_takes_the_script() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "evenq.cli", "completion", "bash"], capture_output=True, check=True, timeout=60
    )
    subprocess.run(["bash", "-n"], input=script.stdout, check=True, timeout=60)


def test_argcomplete_is_imported_only_for_a_shell(tmp_path: Path) -> None:
    code = "import sys; from evenq.cli.__main__ import main; main([]); print('argcomplete' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "False"


def test_without_the_package_the_command_names_the_extra(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenq.cli.completion.is_installed", lambda _: False)
    code, _, err, _ = run("completion bash")
    assert code == 4
    assert 'pip install "evenq[cli]"' in err
