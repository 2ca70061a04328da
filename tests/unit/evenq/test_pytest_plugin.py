"""The pytest plugin, in test runs of a user."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import evenq
import pytest
from evenq.in_memory import MemoryCluster


def send():
    with evenq.Producer() as producer:  # as an application does, with the endpoint of the environment
        producer.send("orders", b"1")


def test_the_application_connects_to_the_memory(evenq_memory: MemoryCluster):
    send()
    assert [message.body for message in evenq_memory.messages("orders")] == [b"1"]


def test_each_test_has_its_own(evenq_memory):
    assert evenq_memory.messages("orders") == []
"""

TOPICS = """
import evenq
import pytest

SEEN = []


@pytest.fixture(scope="session")
def evenq_cluster_options():
    return {"rebalancer": False}


@pytest.mark.evenq_topic(queues=3, message_type="FIFO")
@pytest.mark.parametrize("n", [1, 2])
def test_a_topic_of_its_own(evenq_cluster, evenq_topic, n):
    assert evenq_cluster.rebalancers == []
    with evenq.Admin(endpoint=evenq_cluster.endpoint) as admin:
        topics = {topic.topic for topic in admin.list_topics()}
    assert evenq_topic in topics and not set(SEEN) & topics
    SEEN.append(evenq_topic)
    with evenq.Producer(endpoint=evenq_cluster.endpoint) as producer:
        producer.send(evenq_topic, b"1", message_group="g")
"""


def run(tmp_path: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_program.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "-p",
        "evenq.pytest_plugin",
    ]
    return subprocess.run(
        [*command, "--strict-markers", *options, str(tmp_path)],
        check=False, capture_output=True, text=True, timeout=280, cwd=tmp_path,
    )  # fmt: skip


def test_an_application_under_test_needs_no_change_for_the_memory(tmp_path: Path) -> None:
    done = run(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_access_of_a_developer_to_another_cluster_does_not_reach_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TLS_CA", "TLS_CERTIFICATE", "TLS_KEY", "TLS_SERVER_NAME", "CREDENTIALS"):
        monkeypatch.setenv(f"EVENQ_{name}", str(tmp_path / "missing"))
    monkeypatch.setenv("EVENQ_TLS_INSECURE", "false")
    monkeypatch.setenv("EVENQ_ACCESS_KEY", "of a developer")
    monkeypatch.setenv("EVENQ_SECURITY_TOKEN", "token")
    done = run(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.slow  # real processes
def test_each_test_gets_a_topic_of_one_real_cluster_and_it_is_deleted_afterwards(tmp_path: Path) -> None:
    done = run(tmp_path, TOPICS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_without_the_servers_packages_the_fixture_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import importlib.util\nfind = importlib.util.find_spec\n"
    hidden += "import evenq.runtime.extras as extras\nextras.find_spec = lambda n: None if n == 'crc32c' else find(n)\n"
    (tmp_path / "conftest.py").write_text(hidden)
    done = run(tmp_path, PROGRAM)
    assert done.returncode == 1
    assert 'the fixture evenq_memory needs the package crc32c, which is not installed: pip install "evenq[server]"' in (
        done.stdout
    )


def test_a_run_that_uses_no_fixture_imports_nothing_of_the_sdk_or_the_servers(tmp_path: Path) -> None:
    program = """
import sys


def test_nothing_is_imported():
    loaded = {name for name in sys.modules if name.partition("_")[0].partition(".")[0] == "evenq"}
    assert loaded <= {"evenq", "evenq.pytest_plugin", "evenq.runtime", "evenq.runtime.version"}
    assert "grpc" not in sys.modules and "google.protobuf" not in sys.modules and "asyncio" not in loaded
"""
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_entry_point_names_the_plugin() -> None:
    """With this name `-p` and the entry point register one plugin, not two."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"evenq.pytest_plugin": "evenq.pytest_plugin"}
