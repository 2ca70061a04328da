"""The Spark source and sink of evenq: `spark.read.format("evenq")`, `df.write.format("evenq")` and their streams; and
`to_dlq` and `send_back` for rows that a job cannot handle.

Spark imports every top-level module named `pyspark_*` in each session that touches a Python source, and registers its
`DefaultSource`. So this import stays light (no grpc, protobuf or pyarrow) and never raises: on a Spark older than
4.2, which lacks admission control, `DefaultSource` is absent and Spark says that it knows no source named evenq.
"""

try:
    from pyspark_evenq.sink_letters import send_back, to_dlq
    from pyspark_evenq.source import DefaultSource
except ImportError:  # no pyspark, or one older than 4.2
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource", "send_back", "to_dlq"]
