"""What the tests of membership share: who is in a group, by its brokers, and a driver in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from pyspark_evenq.brokers import connection

from evenq.testing.local_cluster import LocalCluster
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import groups_pb2

DRIVER = textwrap.dedent(
    """
    import json, sys
    from pyspark.sql import SparkSession
    options, checkpoint = json.loads(sys.argv[1]), sys.argv[2]
    spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
             .config("spark.driver.memory", "512m")
             .config("spark.python.authenticate.socketTimeout", "120s").getOrCreate())
    frame = spark.readStream.format("evenq").schema("queueOffset long").options(**options).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    """
)


def members(cluster: LocalCluster, group: str) -> dict[str, groups_pb2.Member]:
    """By client id, of all brokers that live."""
    found: dict[str, groups_pb2.Member] = {}
    request = groups_pb2.ListMembersRequest(group=group).SerializeToString()
    for broker in cluster.brokers:
        content = connection.unary(broker.address, "/evenq.v1.Groups/ListMembers", request, timeout_ms=60_000)
        response = groups_pb2.ListMembersResponse.FromString(content)
        check(response.status)
        found |= {member.client_id: member for member in response.members}
    return found


def process_of(client_id: str) -> int:
    """The process of a query's runner, which its client id names."""
    return int(client_id.split("@")[1])


def driver(options: str, checkpoint: Path, errors: Path) -> Any:
    """A driver of its own; `options` are JSON."""
    with errors.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, options, str(checkpoint)],
            stdout=file,
            stderr=file,
            env=os.environ.copy(),
            start_new_session=True,
        )
