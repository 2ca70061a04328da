"""The command line against real servers: contexts, `--watch`, `top`, `bench`, completion, and `auth check` beside the
verdicts of a broker.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.waiting import until

import evenq
from evenq.testing import LocalCluster

EVENQ = [sys.executable, "-m", "evenq.cli"]
DEADLINE_S = 120
Shell = Callable[..., Any]
FILE = """
[users.evenq-internal]
secret = "internal-secret-4711"
internal = true
[users.root]
secret = "root-secret-4711"
admin = true
[users.shop]
secret = "shop-secret-4711"
allow = [
  { resource = "topic:orders", actions = ["publish"] },
  { resource = "group:shop-*", actions = ["consume"] },
  { resource = "cluster", actions = ["describe"] },
]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(rebalancer=False) as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a folder of its own for contexts."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVENQ_") or "TEST" in key}
    return {**kept, "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def shell(environment: dict[str, str]) -> Shell:
    """Runs a command; returns its output, read from JSON if it was asked for."""

    def run(*words: str, code: int | None = 0, **more: str) -> Any:
        done = subprocess.run(
            [*EVENQ, *words],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=environment | more,
            check=False,
        )
        assert code in {None, done.returncode}, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if "json" in words else done.stdout if code == 0 else done.stderr

    return run


def topics(cluster: LocalCluster) -> set[str]:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        return {one.topic for one in admin.list_topics()}


@pytest.mark.slow
def test_a_context_brings_a_command_to_its_cluster_and_its_namespace(cluster: LocalCluster, shell: Shell) -> None:
    shell("context", "add", "here", "--endpoint", cluster.endpoint, "--namespace", "team")
    shell("context", "add", "nowhere", "--endpoint", "127.0.0.1:9", "--use")
    assert "no server answers at 127.0.0.1:9 (context nowhere)" in shell("topic", "list", code=5)
    shell("topic", "create", "orders", "--queues", "2", "--context", "here")
    assert "team%orders" in topics(cluster)
    assert shell("topic", "list", "-o", "name", EVENQ_CONTEXT="here") == "team%orders\n"
    shell("context", "use", "here")
    shell("produce", "orders", "--body", "hello")
    [row] = shell("topic", "list", "-o", "json")
    assert (row["topic"], row["messages"]) == ("team%orders", 1)
    assert shell("topic", "show", "orders", "-o", "name", "--namespace=", code=3)


def test_watch_shows_what_changes_and_ctrl_c_ends_it_with_0(cluster: LocalCluster, environment: dict[str, str]) -> None:
    words = ["topic", "list", "--watch=0.2", "-o", "json", "--endpoint", cluster.endpoint]
    process = subprocess.Popen([*EVENQ, *words], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        assert "watched" not in {row["topic"] for row in json.loads(process.stdout.readline())}
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("watched", queues=1)
        while "watched" not in {row["topic"] for row in json.loads(process.stdout.readline())}:
            pass  # each line is another round
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow  # two polls, far enough apart
def test_top_shows_the_rates_of_two_polls(cluster: LocalCluster, shell: Shell, environment: dict[str, str]) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("rated", queues=2)
        admin.create_group("raters", start_from="FIRST")
    with (
        evenq.Producer(endpoint=cluster.endpoint) as producer,
        evenq.SimpleConsumer(
            group="raters", endpoint=cluster.endpoint, subscriptions={"rated": "*"}, start_from="FIRST"
        ) as consumer,
    ):
        producer.send_batch([evenq.Message(topic="rated", body=b"x") for _ in range(50)])
        received = consumer.receive(32, invisible_ms=30_000, wait_ms=5_000)
        consumer.ack(*received)
        words = ["top", "--once", "--interval", "5", "-o", "json", "--endpoint", cluster.endpoint]
        process = subprocess.Popen([*EVENQ, *words], stdout=subprocess.PIPE, text=True, env=environment)
        while process.poll() is None:  # however long its two polls take, messages arrive between them
            producer.send(evenq.Message(topic="rated", body=b"y"))
        assert process.stdout is not None
        shown = json.loads(process.stdout.read())
        process.stdout.close()
    [topic] = [row for row in shown["topics"] if row["topic"] == "rated"]
    [group] = [row for row in shown["groups"] if row["group"] == "raters"]
    [broker] = shown["brokers"]
    assert topic["in_per_s"] > 0
    assert broker["in_per_s"] > 0
    assert (topic["groups"], group["lag"] > 0, group["in_per_s"]) == (1, True, topic["in_per_s"])
    table = shell("top", "--once", "--interval", "0.2", "--endpoint", cluster.endpoint)
    assert "rated" in table
    assert "raters" in table


def test_top_is_drawn_on_a_terminal_until_q(cluster: LocalCluster, environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    words = ["top", "--interval", "0.2", "--endpoint", cluster.endpoint]
    process = subprocess.Popen(
        [*EVENQ, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment | {"TERM": "xterm"}
    )
    os.close(theirs)
    seen = b""
    try:
        while b"show: t g b" not in seen:
            seen += os.read(ours, 65_536)
        os.write(ours, b"nq")
        assert until(lambda: _rest(ours) and process.poll() is not None, "q ends it", seconds=DEADLINE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _rest(terminal: int) -> bool:
    """Reads what the process wrote, so that it does not wait for a reader."""
    try:
        return bool(os.read(terminal, 65_536)) or True
    except OSError:  # the other end is closed
        return True


@pytest.mark.slow  # three runs
def test_bench_measures_and_leaves_nothing_behind(cluster: LocalCluster, shell: Shell) -> None:
    before = topics(cluster)
    words = ("--count", "300", "--size", "100", "--senders", "2", "--receivers", "2", "--endpoint", cluster.endpoint)
    result = shell("bench", *words, "-o", "json")
    assert (result["sent"], result["failed"], result["missing"]) == (300, 0, 0)
    assert [row["messages"] for row in result["results"]] == [300, 300]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in result["results"])
    assert topics(cluster) == before
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("used", queues=2)
        assert not [one for one in admin.list_groups() if one.group.startswith("evenq-bench")]
    assert "--use-existing" in shell("bench", "--topic", "used", *words, code=4)
    result = shell("bench", "--topic", "used", "--use-existing", *words, "-o", "json")
    assert (result["sent"], result["missing"]) == (300, 0)
    assert "used" in topics(cluster)


def test_bench_deletes_its_topic_also_after_ctrl_c(cluster: LocalCluster, environment: dict[str, str]) -> None:
    def own() -> set[str]:
        return {name for name in topics(cluster) if name.startswith("evenq-bench")}

    words = ["bench", "--seconds", "600", "--rate", "20", "--endpoint", cluster.endpoint]
    process = subprocess.Popen([*EVENQ, *words], env=environment)
    try:
        until(own, "it has created its topic", seconds=DEADLINE_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert own() == set()
    finally:
        process.kill()
        process.wait()


def test_a_shell_gets_names_of_the_cluster(cluster: LocalCluster, environment: dict[str, str]) -> None:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("completed", queues=1)
    line = f"evenq topic show --endpoint {cluster.endpoint} comp"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line))}

    def proposed() -> bool:
        command = f"{sys.executable} -m evenq.cli 8>&1 9>&2 1>/dev/null 2>&1"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, env=environment | asked, timeout=60, check=False
        )
        return done.stdout.split() == ["completed"]

    until(proposed, "a slow machine may miss the limit of a completion", seconds=DEADLINE_S)


@pytest.mark.slow  # a second cluster
def test_auth_check_says_what_a_broker_does(tmp_path: Path, shell: Shell) -> None:
    users = tmp_path / "users.toml"
    users.write_text(FILE)
    users.chmod(0o600)
    settings = {"AUTH__ENABLED": "true", "AUTH__USERS": str(users)}
    with LocalCluster(
        rebalancer=False, folder=tmp_path / "cluster", broker_settings=settings, nameserver_settings=settings
    ) as cluster:
        for name, secret in (("root", "root-secret-4711"), ("shop", "shop-secret-4711")):
            (tmp_path / f"{name}.txt").write_text(secret)
            (tmp_path / f"{name}.txt").chmod(0o600)
            secrets = ("--access-key", name, "--secret", str(tmp_path / f"{name}.txt"))
            shell("context", "add", name, "--endpoint", cluster.endpoint, *secrets)
        for topic in ("orders", "jobs"):
            shell("topic", "create", topic, "--queues", "1", "--context", "root")
        cases: list[tuple[list[str], list[str]]] = [
            (["SendMessage", "orders"], ["produce", "orders", "--body", "x"]),
            (["SendMessage", "jobs"], ["produce", "jobs", "--body", "x"]),
            (["Admin/ListTopics"], ["topic", "list"]),
            (["Admin/DescribeTopic", "orders"], ["topic", "show", "orders"]),
            (["Admin/DeleteTopic", "orders"], ["topic", "delete", "orders", "--yes"]),
            (["Admin/CreateGroup", "other"], ["group", "create", "other"]),
        ]
        verdicts = []
        for call, command in cases:
            for user in ("shop", "root"):
                found = _decision(shell, user, call, users)
                code = 0 if found else 4
                if user == "root" and "delete" in command:
                    continue  # later cases need it
                shell(*command, "--context", user, code=code)
                verdicts.append(found)
        assert True in verdicts
        assert False in verdicts


def _decision(shell: Shell, user: str, call: list[str], users: Path) -> bool:
    found = shell("auth", "check", user, *call, "--users", str(users), "-o", "json", code=None)
    shell("auth", "check", user, *call, "--users", str(users), code=0 if found["allowed"] else 1)
    return bool(found["allowed"])
