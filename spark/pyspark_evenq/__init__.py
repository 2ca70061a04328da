"""The Spark source and sink of evenq, for batches and streams: format `evenq`.

Also `read_table` for the history of a topic, `to_dlq` and `send_back` for rows that a job cannot process, and
`EvenqProgressListener` for metrics of streams.

Spark imports every top-level module named `pyspark_*` in each session that uses a Python source, and registers its
`DefaultSource`. So this import is light (no grpc, protobuf or pyarrow) and never raises. Spark before 4.2 lacks
admission control: there `DefaultSource` only raises an error with the reason. Without Python sources there is none.
"""

from contextlib import suppress

try:
    from pyspark_evenq.data_source import DefaultSource
    from pyspark_evenq.figures.listener import EvenqProgressListener
    from pyspark_evenq.sink.dead_letters import send_back, to_dlq
    from pyspark_evenq.tables import read_table
except ImportError:  # no pyspark, or one older than 4.2
    __all__: list[str] = []
    with suppress(ImportError, ValueError):
        from pyspark_evenq import old_spark

        if old_spark.is_too_old():
            DefaultSource = old_spark.DefaultSource  # type: ignore[assignment,misc]  # in place of the real one
            __all__ = ["DefaultSource"]
else:
    __all__ = ["DefaultSource", "EvenqProgressListener", "read_table", "send_back", "to_dlq"]
