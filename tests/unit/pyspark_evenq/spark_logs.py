"""The two logs of a checkpoint, written as Spark 4.3 writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark_evenq.plan.offsets import StreamOffset


class SparkLogs:
    """The checkpoint of a query that has begun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        (folder / "metadata").write_text('{"id":"11111111-1111-1111-1111-111111111111"}')

    def plan(self, batch: int, *ends: StreamOffset | dict[str, Any]) -> None:
        """A batch, with the end of each source."""
        documents = [end.to_json() if isinstance(end, StreamOffset) else end for end in ends]
        lines = ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}', *map(json.dumps, documents)]
        (self.folder / "offsets" / str(batch)).write_text("\n".join(lines))

    def commit(self, batch: int) -> None:
        """It is done."""
        (self.folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
