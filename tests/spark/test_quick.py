"""What makes these Sparks quick is at work, else each of them would be slow in silence (`evenq_proofs.quick_spark`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa


def test_the_jvm_maps_the_archive_of_its_classes(spark: Any) -> None:
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    found = re.search(r"-XX:SharedArchiveFile=(\S+\.jsa) ", os.environ["SPARK_SUBMIT_OPTS"])
    assert found is not None, "there is no archive"
    assert found[1] in Path(f"/proc/{pid}/maps").read_text()


def test_workers_are_born_with_pyspark_that_was_compiled_before(spark: Any) -> None:
    def look(_: Iterator[Any]) -> Iterator[Any]:
        import pyspark

        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text()
        yield pa.RecordBatch.from_pydict({"daemon": [parent], "cached": [pyspark.__cached__]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(look, "daemon string, cached string").collect()
    assert "quick_pyspark.daemon" in row.daemon
    assert Path(row.cached).is_file()
