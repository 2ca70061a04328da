"""A replacement of the source on a Spark that is too old for it: its use raises an error with the reason.

The package imports it only there. Spark 4.0 and 4.1 have Python sources, but no limits for streams.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyspark
from pyspark.sql.datasource import DataSource

from evenq.errors import Unsupported

OLDEST = (4, 2)


def is_too_old() -> bool:
    """Returns whether this PySpark is older than the source supports."""
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < OLDEST


class DefaultSource(DataSource):
    """The format `evenq`; always raises Unsupported."""

    def __init__(self, options: Mapping[str, str]) -> None:  # noqa: ARG002  Spark's signature
        raise Unsupported(
            f"the evenq source needs PySpark {OLDEST[0]}.{OLDEST[1]} or newer, which limits streams; this is PySpark "
            f"{pyspark.__version__}: install a newer one, on the driver and in the executors' image"
        )

    @classmethod
    def name(cls) -> str:
        return "evenq"
