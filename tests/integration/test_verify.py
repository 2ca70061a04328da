"""`evenq verify` as a user starts it, against a cluster of real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from evenq_proofs.waiting import until

from evenq import Admin, SimpleConsumer
from evenq.testing import LocalCluster
from evenq.verify import Kind


def evenq(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evenq.cli", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)


def steal(endpoint: str, name: str, count: int) -> None:
    """Take this number of messages as one more member of its group."""
    taken = 0
    with SimpleConsumer(group=name, subscriptions={name: "*"}, endpoint=endpoint) as thief:
        while taken < count:
            for message in thief.receive(count - taken, wait_ms=1_000):
                thief.ack(message)
                taken += 1


def rewind(admin: Admin, name: str) -> None:
    """Let its group begin anew once something is acknowledged."""
    until(lambda: any(queue.committed > 0 for queue in admin.describe_group(name).queues))
    admin.reset_offsets(name, to="earliest", dry_run=False)


@pytest.mark.slow  # runs for many seconds; the one that finds harm is quicker
def test_a_healthy_cluster_keeps_every_promise_and_nothing_is_left_behind() -> None:
    with LocalCluster(brokers=2, rebalancer=False) as cluster:
        done = evenq(
            "verify",
            "--endpoints",
            cluster.endpoints,
            "--seconds",
            "8",
            "--rate",
            "20",
            "--tolerance",
            "60000",
            "--json",
        )
        assert done.returncode == 0, done.stdout + done.stderr
        output = json.loads(done.stdout)
        assert output["ok"]
        assert "problems" not in output
        assert [row["kind"] for row in output["kinds"]] == [
            "normal",
            "fifo",
            "delay",
            "transaction",
            "priority",
            "lite",
        ]
        for row in output["kinds"]:
            assert row["sent"] > 20, row
            assert row["received"] == row["expected"], row
            assert (row["lost"], row["unsure"], row["after_ack"]) == (0, 0, 0), row
        transaction = output["kinds"][3]
        assert transaction["expected"] < transaction["sent"], "some were rolled back"
        assert json.loads(evenq("topic", "list", "--json", "--endpoint", cluster.endpoint).stdout) == []
        assert json.loads(evenq("group", "list", "--json", "--endpoint", cluster.endpoint).stdout) == []


@pytest.mark.parametrize("harm", ["steal", pytest.param("rewind", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_it_finds_what_somebody_else_does_to_its_group(harm: str) -> None:
    """A foreign member takes messages away: lost. A reset brings all of them again: after their ack."""
    with LocalCluster(rebalancer=False) as cluster:
        command = [
            sys.executable, "-m", "evenq.cli", "verify", "--kinds", "normal", "--seconds", "8", "--drain", "4", "--json",
            "--endpoint", cluster.endpoint,
        ]  # fmt: skip
        verifying = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            with Admin(
                endpoint=cluster.endpoint
            ) as admin:  # no commands: on a busy machine each takes as long as the story
                [group] = until(admin.list_groups)
                if harm == "steal":
                    steal(cluster.endpoint, group.group, 5)
                else:
                    rewind(admin, group.group)
            printed, _ = verifying.communicate(timeout=60)
        finally:
            verifying.kill()
            verifying.communicate()
        output = json.loads(printed)
        [row] = output["kinds"]
        assert verifying.returncode == 1
        assert (row["lost"] == 5) if harm == "steal" else (row["after_ack"] > 0), output
        assert output["problems"]


@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_nothing_behind() -> None:
    with LocalCluster(rebalancer=False) as cluster:
        command = [sys.executable, "-m", "evenq.cli", "verify", "--seconds", "60", "--endpoint", cluster.endpoint]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        listed = ("group", "list", "--json", "--endpoint", cluster.endpoint)
        try:
            until(lambda: len(json.loads(evenq(*listed).stdout)) == len(Kind))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.communicate()
        assert json.loads(evenq("topic", "list", "--json", "--endpoint", cluster.endpoint).stdout) == []
        assert json.loads(evenq("group", "list", "--json", "--endpoint", cluster.endpoint).stdout) == []


def test_without_a_cluster_it_says_so() -> None:
    done = evenq("verify", "--endpoint", "127.0.0.1:1", "--seconds", "1")
    assert done.returncode == 5
    assert "127.0.0.1:1" in done.stderr


def test_a_kind_that_is_none_is_refused_with_those_that_are() -> None:
    done = evenq("verify", "--kinds", "normal,dead")
    assert done.returncode == 2
    assert "'dead' is not a kind" in done.stderr
    assert "fifo" in done.stderr
