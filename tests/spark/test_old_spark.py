"""A Spark that is too old for the source says so when the format is used: `make spark-refused` runs this on one."""

from __future__ import annotations

from typing import Any

import pyspark
import pyspark_evenq
import pytest
from pyspark.sql.datasource import DataSource
from pyspark_evenq import old_spark

from evenq.errors import Unsupported

pytestmark = [
    pytest.mark.skipif(not old_spark.is_too_old(), reason="needs a PySpark older than 4.2 (make spark-refused)"),
]
OPTIONS = {"endpoints": "127.0.0.1:1", "subscribe": "flights", "topic": "flights", "group": "g"}
SAID = f"needs PySpark 4.2 or newer.*this is PySpark {pyspark.__version__}: install a newer one"


def test_what_spark_finds_by_itself_is_the_refusal() -> None:
    assert issubclass(pyspark_evenq.DefaultSource, DataSource)
    assert pyspark_evenq.DefaultSource.name() == "evenq"
    with pytest.raises(Unsupported, match=SAID):
        pyspark_evenq.DefaultSource(options=OPTIONS)


def test_reading_and_writing_are_refused_with_what_to_install(spark: Any, tmp_path: Any) -> None:
    for use in (
        lambda: spark.read.format("evenq").options(**OPTIONS).load(),
        lambda: spark.readStream.format("evenq").options(**OPTIONS).load(),
        lambda: spark.range(1).selectExpr("'x' as body").write.format("evenq").options(**OPTIONS).mode("append").save(),
    ):
        with pytest.raises(Exception, match=SAID):
            use()
    assert spark.range(3).count() == 3, "everything else works"
