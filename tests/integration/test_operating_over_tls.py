"""What operators do to brokers that speak TLS alone: put another copy in place of one, back up, restore. The command line
as processes, with flags and with the environment; servers that want certificates of their clients, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from evenq_proofs.command_line import run_evenq as run
from evenq_proofs.replicated_group import FAST, added_copy, in_sync, leader_of

import evenq
from evenq.testing import LocalCluster
from evenq.wire.tls import Tls

pytestmark = pytest.mark.timeout(420)

TOPIC = "orders"


def send(endpoint: str, tls: Tls, bodies: list[str]) -> None:
    with evenq.Producer(endpoint=endpoint, tls=tls) as producer:
        producer.send_batch([evenq.Message(topic=TOPIC, body=body.encode()) for body in bodies])


def received(endpoint: str, tls: Tls, group: str, count: int) -> list[str]:
    """Bodies, until there are this number of or a minute is over."""
    bodies: list[str] = []
    end = time.monotonic() + 60
    with evenq.SimpleConsumer(
        group=group, subscriptions={TOPIC: "*"}, endpoint=endpoint, tls=tls, start_from="FIRST"
    ) as consumer:
        while len(bodies) < count and time.monotonic() < end:
            messages = consumer.receive(32, wait_ms=1_000)
            bodies += [message.body.decode() for message in messages]
            consumer.ack(*messages)
    return bodies


@pytest.mark.slow  # three copies over TLS, a fourth that catches up, a restore
def test_a_copy_is_replaced_and_a_backup_made_and_restored_with_certificates_on_both_sides(tmp_path: Path) -> None:
    wanted = {"TLS__CLIENT_CA": str(tmp_path / "old" / "tls" / "ca.pem")}
    settings = {**FAST, "REPLICATION__MODE": "sync", **wanted}
    bodies = [f"order {number}" for number in range(100)]
    target, restored = tmp_path / "backups", tmp_path / "new" / "broker-a"
    with LocalCluster(
        replicas=3, rebalancer=False, folder=tmp_path / "old", tls=True, broker_settings=settings,
        nameserver_settings=wanted, ready_ms_max=120_000,
    ) as cluster:  # fmt: skip
        assert cluster.authority is not None
        pair = cluster.authority.sign("operator")
        tls = Tls(ca=cluster.authority.ca, certificate=pair.certificate, key=pair.key)
        flags = ["--tls-ca", tls.ca, "--tls-certificate", tls.certificate, "--tls-key", tls.key]
        in_sync(cluster, 3)
        send(cluster.endpoints, tls, bodies[:50])
        leader = leader_of(cluster)
        gone = next(node for node in cluster.brokers if node is not leader)
        number = gone.name.rpartition("-")[2]
        new, address = added_copy(cluster, 3, **wanted)
        new.start()
        replace = ["broker", "replace", "broker-a", "--copy", number, "--by", "3", "--at", address, "--wait", "200"]
        # Without its certificate nothing is changed, and the error says what is missing.
        refused = run(*replace, "--endpoint", cluster.endpoints, "--tls-ca", tls.ca, code=5)
        assert "certificate" in refused
        shown = json.loads(run(*replace, "--endpoint", cluster.endpoints, *flags, "--json"))
        assert sorted(shown["copies"].split(", ")) == sorted({"0", "1", "2", "3"} - {number})
        gone.kill()
        send(cluster.endpoints, tls, bodies[50:])
        endpoint = ",".join("evenqs://" + part.split("://")[-1] for part in cluster.endpoints.split(";"))
        variables = {"CA": tls.ca, "CERTIFICATE": tls.certificate, "KEY": tls.key}
        environment = {f"EVENQ_TLS_{name}": str(value) for name, value in variables.items()}
        run("backup", "create", "--to", target, "--endpoint", endpoint, **environment)
        assert sorted(received(cluster.endpoints, tls, "readers", len(bodies))) == sorted(bodies)
    run("backup", "verify", target)
    run("backup", "restore", target, "--broker", "broker-a", "--data", restored)
    run("store", "verify", restored)
    with LocalCluster(rebalancer=False, folder=tmp_path / "new", tls=True) as fresh:
        assert fresh.client_tls is not None
        assert sorted(received(fresh.endpoint, fresh.client_tls, "fresh", len(bodies))) == sorted(bodies)


@pytest.mark.slow
def test_evenq_up_with_tls_is_backed_up_with_the_options_that_it_prints(tmp_path: Path) -> None:
    options = ["--tls", "--data", str(tmp_path / "queue"), "--port", "0", "--metrics-port", "0"]
    command = [sys.executable, "-m", "evenq.cli", "up", *options]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENQ_")}
    up = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean)
    try:
        assert up.stdout is not None
        lines = []
        while not lines or "evenq commands" not in lines[-1]:
            lines.append(up.stdout.readline())
            assert lines[-1], lines
        fields = dict(word.split("=", 1) for word in lines[-1].split() if "=" in word)
        ca, endpoint = fields["EVENQ_TLS_CA"], fields["EVENQ_ENDPOINT"]
        run("produce", TOPIC, "--count", "20", **fields)
        target = tmp_path / "backups"
        untrusted = run("backup", "create", "--to", target, "--endpoint", endpoint, code=5)
        assert "--tls-ca" in untrusted
        flags = ["--endpoint", endpoint, "--tls-ca", ca]
        [made] = json.loads(run("backup", "create", "--to", target, *flags, "--json"))
        assert made["copied_bytes"] > 0
    finally:
        up.terminate()
        assert up.wait(60) == 0
        assert up.stdout is not None
        up.stdout.close()
    run("backup", "verify", target)
    run("backup", "restore", target, "--data", tmp_path / "restored")
    run("store", "verify", tmp_path / "restored")
