"""The Spark source and sink of evenq: `spark.read.format("evenq")`, `df.write.format("evenq")` and their streams;
`to_dlq` and `send_back` for rows that a job cannot process; and `EvenqProgressListener` for what streams do.

Spark imports every top-level module named `pyspark_*` in each session that touches a Python source, and registers its
`DefaultSource`. So this import stays light (no grpc, protobuf or pyarrow) and never raises: on a Spark older than
4.2, which lacks admission control, `DefaultSource` is one that says so when it is used; without any Python sources
there is none, and Spark says that it knows no source named evenq.
"""

from contextlib import suppress

try:
    from pyspark_evenq.listener import EvenqProgressListener
    from pyspark_evenq.sink_letters import send_back, to_dlq
    from pyspark_evenq.source import DefaultSource
except ImportError:  # no pyspark, or one older than 4.2
    __all__: list[str] = []
    with suppress(ImportError, ValueError):
        from pyspark_evenq import old_spark

        if old_spark.is_too_old():
            DefaultSource = old_spark.DefaultSource  # type: ignore[assignment,misc]  # in place of the real one
            __all__ = ["DefaultSource"]
else:
    __all__ = ["DefaultSource", "EvenqProgressListener", "send_back", "to_dlq"]
