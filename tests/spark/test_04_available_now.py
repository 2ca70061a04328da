"""`availableNow` with limits, while the topic is written: it ends where the topic ended at its start."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from evenq.testing.local_cluster import LocalCluster
from tests.spark.chaos.world import Topics, Writer, until

pytestmark = pytest.mark.timeout(500)
BATCHES = 4
"""About this number of a run; its limit is made from what is there."""


def test_a_run_ends_at_what_was_there_and_the_next_one_goes_on(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    topics = Topics(cluster, "now")
    ended: list[dict[tuple[str, int], int]] = [{}]
    with Writer(cluster.endpoints, topics.source, rate=200) as writer:
        for _ in range(3):
            sent = writer.sent
            until(60, lambda sent=sent: writer.sent > sent + 200, "nothing is written")  # type: ignore[misc]
            before = topics.ends()
            limit = (sum(before.values()) - sum(ended[-1].values())) // BATCHES
            query = _run(spark, cluster, topics, tmp_path, limit)
            rows = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
            ended.append(_ends(tmp_path, topics))
            now = topics.ends()
            target = {(queue.broker_name, queue.queue_id): end for queue, end in now.items()}
            assert max(rows) <= limit
            assert len(rows) >= BATCHES
            for queue, end in before.items():  # all that was there, and not what was written at the end
                key = queue.broker_name, queue.queue_id
                assert end <= ended[-1][key] <= target[key]
            assert sum(ended[-1].values()) < sum(target.values())
    result = [
        (row.brokerName, row.queueId, row.queueOffset)
        for row in spark.read.schema("brokerName string, queueId int, queueOffset long")
        .parquet(str(tmp_path / "rows"))
        .collect()
    ]
    assert sorted(result) == sorted((*key, at) for key, end in ended[-1].items() for at in range(end))
    assert all(early[key] <= late[key] for early, late in itertools.pairwise(ended[1:]) for key in late)


def _run(spark: Any, cluster: LocalCluster, topics: Topics, folder: Path, limit: int) -> Any:
    frame = (
        spark.readStream.format("evenq")
        .schema("brokerName string, queueId int, queueOffset long")
        .options(endpoints=cluster.endpoints, subscribe=topics.source, group=topics.groups["rows"])
        .options(startingOffsets="earliest", maxOffsetsPerTrigger=str(limit))
        .load()
    )
    writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(150)
    return query


def _ends(folder: Path, topics: Topics) -> dict[tuple[str, int], int]:
    """By Spark's last entry."""
    last = max((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    brokers = json.loads(last.read_text().splitlines()[-1])["q"][topics.source]
    return {(broker, int(queue)): end for broker, queues in brokers.items() for queue, end in queues.items()}
