"""The sink against brokers that take signed calls only, and against brokers that speak TLS only: what a task and the
driver call, without a Spark session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.sink import staging as sink_staging
from pyspark_evenq.sink import writer as sink_writer
from pyspark_evenq.sink.publishing import publish
from pyspark_evenq.sink.staging import TaskAttempt
from pyspark_evenq.source.reader import BatchReader

import evenq
from evenq.columns.arrow_schema import OutputColumn
from evenq.errors import Forbidden, Unauthorized
from evenq.testing.local_cluster import LocalCluster

BODIES = [f"row {number}" for number in range(50)]
ROOT = evenq.Credentials(access_key="root", secret_key="canary-root-4711")
USERS = """
[users.evenq-internal]
secret = "canary-internal-4711"
internal = true
[users.root]
secret = "canary-root-4711"
admin = true
[users.writer]
secret = "canary-writer-4711"
allow = [{ resource = "topic:orders", actions = ["publish"] }]
[users.reader]
secret = "canary-reader-4711"
allow = [{ resource = "topic:orders", actions = ["consume"] }, { resource = "group:*", actions = ["consume"] }]
"""


def written(delivery: str = "transactional", topic: str = "orders", **options: str) -> None:
    """One batch of one task, as Spark calls it."""
    parsed = WriteOptions.parse({"topic": topic, "delivery": delivery, "writeTimeoutMs": "20000"} | options)
    sink_writer._connect(parsed)
    attempt = TaskAttempt(query_id=f"job-{topic}-{delivery}", batch_id=0, partition_id=0, attempt_id=0)
    rows = iter([pa.record_batch({"body": pa.array(BODIES)})])
    if delivery != "transactional":
        publish(parsed, attempt, rows)
        return
    done = sink_writer.Done(attempt.query_id, sink_staging.stage(parsed, attempt, rows))
    sink_writer.commit(parsed, 0, [done])


def read(**options: str) -> list[str]:
    reader = BatchReader(
        ReadOptions.parse({"subscribe": "orders"} | options, streaming=False), (OutputColumn("body", nullable=True),)
    )
    batches: list[Any] = [batch for task in reader.partitions() for batch in reader.read(task)]
    return sorted(body.decode() for batch in batches for body in batch.column("body").to_pylist())


def test_the_sink_signs_its_calls_and_may_write_only_where_it_may_publish(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(USERS)
    on = {"AUTH__ENABLED": "true", "AUTH__USERS": str(users)}
    with LocalCluster(
        brokers=2, rebalancer=False, folder=tmp_path / "cluster", broker_settings=on, nameserver_settings=on
    ) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint, credentials=ROOT) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_topic("other", queues=2)
        writer = {"endpoints": cluster.endpoints, "accessKey": "writer", "secretKey": "canary-writer-4711"}
        reader = {"endpoints": cluster.endpoints, "accessKey": "reader", "secretKey": "canary-reader-4711"}
        written(**writer)
        written("atLeastOnce", **writer)
        with pytest.raises(Forbidden):
            written(**reader)
        with pytest.raises(Forbidden):
            written(topic="other", **writer)
        with pytest.raises(Unauthorized):
            written(**{**writer, "secretKey": "canary-another-1"})
        assert read(**reader) == sorted(BODIES * 2)


def test_the_sink_speaks_tls_with_a_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    settings = {"TLS__CLIENT_CA": str(folder / "tls" / "ca.pem")}
    cluster = LocalCluster(
        brokers=2, rebalancer=False, folder=folder, tls=True, broker_settings=settings, nameserver_settings=settings
    )
    assert cluster.authority is not None
    mine = cluster.authority.sign("client")
    tls = evenq.Tls(ca=cluster.authority.ca, certificate=mine.certificate, key=mine.key)
    options = {
        "endpoints": cluster.endpoints, "tlsCa": str(tls.ca), "tlsCertificate": str(mine.certificate),
        "tlsKey": str(mine.key),
    }  # fmt: skip
    with cluster:
        with evenq.Admin(endpoint=cluster.endpoint, tls=tls) as admin:
            admin.create_topic("orders", queues=2)
        written(**options)
        assert read(**options) == sorted(BODIES)
