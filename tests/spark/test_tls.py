"""A real Spark reads from brokers that speak TLS only: with a private authority, and where they want a certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import evenq
from evenq.testing.certificates import Authority
from evenq.testing.local_cluster import LocalCluster

COUNT = 200


def test_a_batch_and_a_stream_over_tls_with_a_certificate(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    settings = {"TLS__CLIENT_CA": str(folder / "tls" / "ca.pem")}
    cluster = LocalCluster(
        brokers=2, rebalancer=False, folder=folder, tls=True, broker_settings=settings, nameserver_settings=settings
    )
    assert cluster.authority is not None
    mine = cluster.authority.sign("client")
    tls = evenq.Tls(ca=cluster.authority.ca, certificate=mine.certificate, key=mine.key)
    options = {"endpoints": cluster.endpoints, "subscribe": "secure", "tlsCa": str(tls.ca)}
    with cluster:
        with evenq.Admin(endpoint=cluster.endpoint, tls=tls) as admin:
            admin.create_topic("secure", queues=2)
        with evenq.Producer(endpoint=cluster.endpoint, tls=tls) as producer:
            producer.send_batch(evenq.Message(topic="secure", body=b"%d" % number) for number in range(COUNT))
        with pytest.raises(Exception, match="requires a certificate of this side") as refused:
            spark.read.format("evenq").options(**options, readTimeoutMs="500").load().count()
        assert "tlsCertificate" in str(refused.value)

        options |= {"tlsCertificate": str(mine.certificate), "tlsKey": str(mine.key)}
        assert spark.read.format("evenq").options(**options).load().count() == COUNT
        query = (
            spark.readStream.format("evenq")
            .options(**options, group="secure-spark", startingOffsets="earliest")
            .load()
            .writeStream.format("memory")
            .queryName("secure_rows")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(200)
        assert spark.sql("select count(*) from secure_rows").first()[0] == COUNT


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers with certificates of an authority that no other knows."""
    folder = tmp_path_factory.mktemp("secure") / "cluster"
    with LocalCluster(brokers=2, rebalancer=False, folder=folder, tls=True) as running:
        yield running


@pytest.fixture
def follow(spark: Any, secure: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start a query over `evenqs://` that appends the bodies of a topic to a table of files, from one checkpoint."""
    queries: list[Any] = []

    def start(topic: str, ca: Path, *, read_timeout_ms: int = 30_000) -> Any:
        assert all(address.startswith("evenqs://") for address in secure.endpoints.split(";"))
        frame = (
            spark.readStream.format("evenq")
            .schema("body binary")
            .options(endpoints=secure.endpoints, subscribe=topic, group=f"{topic}-spark", tlsCa=str(ca))
            .options(startingOffsets="earliest", commitIntervalMs="50", readTimeoutMs=str(read_timeout_ms))
            .load()
        )
        queries.append(
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "rows"))
            .start()
        )
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def publish(secure: LocalCluster, topic: str, numbers: range) -> None:
    with evenq.Producer(endpoint=secure.endpoint, tls=secure.client_tls) as producer:
        producer.send_batch(evenq.Message(topic=topic, body=b"%d" % number) for number in numbers)


def wait_for(query: Any, count: int) -> None:
    """Until the query has read this number of rows. Fails at once if it ended."""
    deadline = time.monotonic() + 120
    while sum(progress.numInputRows for progress in query.recentProgress) < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, [progress.numInputRows for progress in query.recentProgress]
        time.sleep(0.05)


def bodies(spark: Any, tmp_path: Path) -> list[int]:
    rows = spark.read.schema("body binary").parquet(str(tmp_path / "rows"))
    return sorted(int(bytes(row.body)) for row in rows.collect())


def test_a_stream_over_tls_goes_on_from_its_checkpoint_and_outlives_a_brokers_restart(
    spark: Any, secure: LocalCluster, follow: Callable[..., Any], tmp_path: Path
) -> None:
    assert secure.authority is not None
    with evenq.Admin(endpoint=secure.endpoint, tls=secure.client_tls) as admin:
        admin.create_topic("followed", queues=2)
    publish(secure, "followed", range(COUNT))
    query = follow("followed", secure.authority.ca)
    wait_for(query, COUNT)
    query.stop()
    publish(secure, "followed", range(COUNT, 2 * COUNT))
    query = follow("followed", secure.authority.ca)
    wait_for(query, COUNT)
    secure.brokers[0].restart()
    secure.wait_ready()
    publish(secure, "followed", range(2 * COUNT, 3 * COUNT))
    wait_for(query, 2 * COUNT)
    query.stop()
    assert query.exception() is None
    assert bodies(spark, tmp_path) == list(range(3 * COUNT)), "each message once"


def test_a_stream_that_trusts_another_authority_fails_with_the_option_to_mend_and_leaves_its_checkpoint_usable(
    spark: Any, secure: LocalCluster, follow: Callable[..., Any], tmp_path: Path
) -> None:
    assert secure.authority is not None
    other = Authority(tmp_path / "other")
    with evenq.Admin(endpoint=secure.endpoint, tls=secure.client_tls) as admin:
        admin.create_topic("distrusted", queues=2)
    publish(secure, "distrusted", range(COUNT))

    def refused() -> None:
        with pytest.raises(Exception, match=f"is not signed by {other.ca}") as failure:
            follow("distrusted", other.ca, read_timeout_ms=500).awaitTermination(200)
        assert "give its authority as option tlsCa" in str(failure.value)

    refused()
    query = follow("distrusted", secure.authority.ca)
    wait_for(query, COUNT)
    query.stop()
    publish(secure, "distrusted", range(COUNT, 2 * COUNT))
    refused()
    query = follow("distrusted", secure.authority.ca)
    wait_for(query, COUNT)
    query.stop()
    assert bodies(spark, tmp_path) == list(range(2 * COUNT)), "each message once"
