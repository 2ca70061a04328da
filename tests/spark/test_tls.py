"""A real Spark reads from brokers that speak TLS only and want a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import evenq
from evenq.testing.local_cluster import LocalCluster

pytestmark = pytest.mark.timeout(300)
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
        with pytest.raises(Exception, match="wants a certificate of this side") as refused:
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
