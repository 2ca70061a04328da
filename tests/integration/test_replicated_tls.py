"""Three copies whose links speak TLS alone, with certificates on both sides: real processes, kill -9, a stranger."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from evenq_proofs.replicated_group import FAST, figure, in_sync, leader_of

import evenq
from evenq.testing import LocalCluster
from evenq.testing.certificates import Authority, CertificatePair, here
from evenq.testing.node import Node
from evenq.wire.tls import Tls

pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.slow,  # links with TLS have quicker tests (test_replication_links.py, test_tls.py)
]
TOPIC = "secret"


def send(producer: evenq.Producer, *bodies: str) -> None:
    for body in bodies:
        producer.send(evenq.Message(topic=TOPIC, body=body.encode()))


def received(cluster: LocalCluster, tls: Tls, count: int) -> set[str]:
    """Bodies, until there are this number of or a minute is over."""
    bodies: set[str] = set()
    end = time.monotonic() + 60
    with evenq.SimpleConsumer(
        group="readers", subscriptions={TOPIC: "*"}, endpoint=cluster.endpoints, tls=tls, start_from="FIRST"
    ) as consumer:
        while len(bodies) < count and time.monotonic() < end:
            for message in consumer.receive(32, wait_ms=1_000):
                bodies.add(message.body.decode())
                consumer.ack(message)
    return bodies


def says(node: Node, *words: str) -> None:
    """Wait until a line of its log has all these words."""
    end = time.monotonic() + 60
    while not any(all(word in line for word in words) for line in node.log_text().splitlines()):
        assert time.monotonic() < end, f"{node.name} does not say {words}: {node.log_text()[-3_000:]}"
        time.sleep(0.2)


def show(node: Node, pair: CertificatePair) -> None:
    """The certificate of its next start."""
    node.environment |= {
        "EVENQ_BROKER_TLS__CERTIFICATE": str(pair.certificate),
        "EVENQ_BROKER_TLS__KEY": str(pair.key),
    }


def test_copies_with_mutual_tls_fail_over_and_one_with_a_strangers_certificate_stays_out(tmp_path: Path) -> None:
    """And is in sync again once it shows one of the cluster's authority."""
    authority = tmp_path / "tls" / "ca.pem"  # where the cluster makes it
    both = {"TLS__CLIENT_CA": str(authority)}
    settings = {**FAST, "REPLICATION__MODE": "sync", **both}
    with LocalCluster(
        replicas=3, rebalancer=False, folder=tmp_path, tls=True, broker_settings=settings, nameserver_settings=both,
        ready_ms_max=120_000,
    ) as cluster:  # fmt: skip
        assert cluster.authority is not None
        pair = cluster.authority.sign("client")
        tls = Tls(ca=cluster.authority.ca, certificate=pair.certificate, key=pair.key)
        with evenq.Producer(endpoint=cluster.endpoints, tls=tls) as producer:
            in_sync(cluster, 3)
            send(producer, *(f"before {number}" for number in range(20)))

            killed = leader_of(cluster)
            killed.kill()
            send(producer, *(f"after {number}" for number in range(20)))
            leader = leader_of(cluster)
            assert leader is not killed

            stranger = Authority(tmp_path / "other", name="somebody else's authority").sign("server", hosts=here())
            show(killed, stranger)
            killed.start()
            says(leader, f"no link to broker {cluster.brokers.index(killed)}", "certificate")
            says(killed, f"no link to broker {cluster.brokers.index(leader)}", "certificate")
            assert figure(leader, "evenq_broker_replicas_in_sync") == 2
            send(producer, "without it")

            killed.kill()
            show(killed, cluster.authority.sign("again", hosts=here()))
            killed.start()
            in_sync(cluster, 3, within_s=120)
        assert len(received(cluster, tls, 41)) == 41
