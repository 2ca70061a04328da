"""What Spark builds where it only plans and pickles: no connection, no thread, no gRPC, and small."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from pyspark_evenq import DefaultSource

from evenq.testing.local_cluster import LocalCluster

PICKLED_MAX = 10_000


def test_building_a_reader_in_sparks_planner_loads_no_grpc_and_starts_no_thread(
    spark: Any, cluster: LocalCluster, topic: Any, tmp_path: Path
) -> None:
    notes = str(tmp_path)

    class Watched(DefaultSource):
        """Notes what building a reader changes in the process that does it."""

        @classmethod
        def name(cls) -> str:
            return "evenq-watched"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802  Spark's name
            return self.noted("stream", super().streamReader, schema)

        def reader(self, schema: Any) -> Any:
            return self.noted("batch", super().reader, schema)

        def noted(self, kind: str, build: Any, schema: Any) -> Any:
            import os
            import pickle
            import sys
            import threading

            modules, threads = set(sys.modules), threading.active_count()
            made = build(schema)
            new = sorted(name for name in set(sys.modules) - modules if name.split(".")[0] in {"grpc", "google"})
            size = len(pickle.dumps(made))
            found = {"modules": new, "threads": threading.active_count() - threads, "pickled": size}
            Path(notes, f"{kind}-{os.getpid()}").write_text(json.dumps(found))
            return made

    topic.send_each(10)
    spark.dataSource.register(Watched)
    options = {"endpoints": topic.endpoints, "subscribe": topic.name, "group": topic.name}
    assert spark.read.format("evenq-watched").options(**options).load().count() == 40
    frame = spark.readStream.format("evenq-watched").options(startingOffsets="earliest", **options).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(60)
    kinds = {path.name.partition("-")[0] for path in tmp_path.glob("*-[0-9]*")}
    assert kinds == {"stream", "batch"}
    for path in tmp_path.glob("*-[0-9]*"):
        found = json.loads(path.read_text())
        assert (found["modules"], found["threads"]) == ([], 0), path.name
        assert found["pickled"] < PICKLED_MAX


def test_readers_come_back_from_a_pickle_as_they_were(spark: Any, topic: Any) -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = StructType([StructField("body", BinaryType())])
    options = {"endpoints": topic.endpoints, "subscribe": topic.name, "group": topic.name}
    source = pickle.loads(pickle.dumps(DefaultSource(options=options)))
    for reader in (source.reader(schema), source.streamReader(schema)):
        assert pickle.loads(pickle.dumps(reader)).__dict__ == reader.__dict__
