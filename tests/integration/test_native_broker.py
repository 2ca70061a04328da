"""Brokers as processes with the compiled accelerator and without it: what is stored, and what they report of it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from evenq_proofs.command_line import evenq_process, run_evenq
from evenq_proofs.native_module import native_module

import evenq
from evenq.runtime.accelerator import VARIABLE
from evenq.testing import LocalCluster

TOPIC = "native"


def cluster_with(choice: str, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster whose servers have this value of EVENQ_NATIVE; start it at once."""
    monkeypatch.setenv(VARIABLE, choice)
    return LocalCluster(rebalancer=False)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """A cluster whose broker uses the accelerator, and one whose broker does not."""
    native_module()
    with cluster_with("on", monkeypatch) as native, cluster_with("off", monkeypatch) as plain:
        yield native, plain


def sent() -> list[evenq.Message]:
    """Messages of every shape that the SDK sends as plain ones."""
    rng = random.Random(1)
    sizes = [rng.choice((1, 100, 127, 128, 1_024, 70_000)) for _ in range(60)]
    return [
        evenq.Message(
            topic=TOPIC,
            body=rng.randbytes(size),
            tag="AB"[number % 2] if number % 3 else None,
            keys=tuple(f"order-{number}-{key}" for key in range(number % 3)),
            properties={f"p{one}": "vü"[: number % 3] for one in range(number % 4)},
        )
        for number, size in enumerate(sizes)
    ]


def stored(cluster: LocalCluster) -> list[tuple[object, ...]]:
    """Returns these messages as a broker delivers them, after they were sent one by one and in a batch."""
    run_evenq("topic", "create", TOPIC, "--queues", 1, endpoint=cluster.endpoint)
    messages = sent()
    with evenq.Producer(endpoint=cluster.endpoint) as producer:
        for message in messages[:20]:
            producer.send(message)
        producer.send_batch(messages[20:])
    with evenq.PullConsumer(endpoint=cluster.endpoint, group="readers", subscriptions={}) as consumer:
        [queue] = consumer.queues_of(TOPIC)
        consumer.assign([queue])
        consumer.seek_to_begin(queue)
        read: list[tuple[object, ...]] = []
        while len(read) < len(messages):
            polled = consumer.poll(wait_ms=10_000)
            assert polled, "all of them are there"
            read += [(one.queue_offset, one.body, one.tag, one.keys, dict(one.properties)) for one in polled]
    return read


@pytest.mark.slow
def test_messages_read_back_are_equal_with_and_without_the_accelerator(both: tuple[LocalCluster, LocalCluster]) -> None:
    native, plain = both
    first = stored(native)
    assert first == stored(plain)
    assert [(one[1], one[2]) for one in first] == [(message.body, message.tag) for message in sent()]


def test_a_broker_reports_whether_it_uses_the_accelerator(both: tuple[LocalCluster, LocalCluster]) -> None:
    for cluster, shown, label in zip(both, ("(native)", ""), (version("evenq"), "none"), strict=True):
        broker = cluster.brokers[0]
        facts = run_evenq("broker", "show", broker.name, endpoint=cluster.endpoint)
        assert f"{version('evenq')} {shown}".strip() in facts
        assert ("(native)" in facts) == bool(shown)
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        [line] = [line for line in text.splitlines() if line.startswith("evenq_build_info{")]
        assert f'native="{label}"' in line


@pytest.mark.parametrize(
    ("choice", "said"),
    [("on", "EVENQ_NATIVE=on, but evenq_native is not installed; install it"), ("yes", "it must be on, off or auto")],
)
def test_a_broker_that_needs_what_is_not_there_does_not_start_and_says_how_to_install_it(
    choice: str, said: str, tmp_path: Path
) -> None:
    # Python takes a module from the folder before any installed one: this one is found and is not there.
    (tmp_path / "evenq_native.py").write_text("raise ModuleNotFoundError('none', name='evenq_native')\n")
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVENQ_")}
    environment |= {VARIABLE: choice, "PYTHONPATH": paths, "EVENQ_BROKER_STORE__PATH": str(tmp_path / "data")}
    command = [sys.executable, "-m", "evenq_broker"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists(), "no file is made before that"
    shown = evenq_process("--version", **{VARIABLE: choice, "PYTHONPATH": paths}).stdout
    assert shown.startswith(f"evenq {version('evenq')} (native accelerator: ")
