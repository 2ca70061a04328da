"""Rows that a job cannot process, returned to the brokers: as dead letters of the group, or for another delivery.

Called by users on a DataFrame of the source. The place of a row identifies its message, and the broker copies the
stored message. So body, keys and properties are unchanged, and the origin is recorded as for any consumer. Only the
tasks import pyarrow and grpc.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from evenq.errors import SettingsError
from evenq.model.names import group_problem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from pyspark_evenq.options.source import ReadOptions

PLACE = ("topic", "brokerName", "queueId", "queueOffset")
SEND_BACK = "/evenq.v1.Data/SendBack"
DEAD_LETTER = -1


def to_dlq(df: DataFrame, *, group: str, **options: str) -> int:
    """Copies the rows' messages to the dead-letter topic of `group` (%DLQ%group), with their origin, and returns their
    number. Runs immediately, not lazily.

    `df` needs the source's columns topic, brokerName, queueId and queueOffset. `options`: those of the source for
    connections (endpoints, credentials, TLS), and `readTimeoutMs`. A repeated task copies its messages again. Raises
    SettingsError; tasks fail with the brokers' errors, IllegalOffset for a message that is gone.
    """
    return _given_back(df, group, options, delay_level=DEAD_LETTER, attempts=1)


def send_back(df: DataFrame, *, group: str, attempts: int = 1, **options: str) -> int:
    """Redelivers the rows' messages to the group's consumers (topic %RETRY%group), after the group's delay for this
    number of `attempts`; after the group's last attempt they become dead letters. The rest is as in `to_dlq`.
    """
    return _given_back(df, group, options, delay_level=0, attempts=attempts)


def _given_back(df: DataFrame, group: str, options: Mapping[str, str], *, delay_level: int, attempts: int) -> int:
    from pyspark_evenq.options.source import ReadOptions

    if problem := group_problem(group):
        raise SettingsError(f"group: {problem}")
    missing = [name for name in PLACE if name not in df.columns]
    if missing:
        raise SettingsError(
            f"the frame has no column {', '.join(missing)}: keep {', '.join(PLACE)} of the evenq source, they "
            "identify the message of a row"
        )
    parsed = ReadOptions.parse({**options, "subscribe": "any"}, streaming=False)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = (SimpleNamespace(**row) for batch in batches for row in batch.to_pylist())
        yield pa.record_batch({"given": [_task(rows, parsed, group, delay_level, attempts)]})

    given = df.select(*PLACE).mapInArrow(work, "given long")  # works with Spark Connect as well
    return sum(row.given for row in given.collect())


def _task(rows: Iterable[Any], options: ReadOptions, group: str, delay_level: int, attempts: int) -> int:
    from functools import partial

    from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2
    from pyspark_evenq.brokers import connection
    from pyspark_evenq.brokers.cluster import persist

    connection.sign_with(options.credentials())
    connection.secure_with(options.tls())
    addresses: dict[str, Mapping[str, str]] = {}
    count = 0
    for row in rows:
        if row.topic not in addresses:
            addresses[row.topic] = _readable(options, row.topic)
        address = addresses[row.topic].get(row.brokerName)
        if address is None:
            raise SettingsError(
                f"topic {row.topic} is not on broker {row.brokerName}; it is on {', '.join(addresses[row.topic])}"
            )
        request = data_pb2.SendBackRequest(
            group=group,
            queue=common_pb2.Queue(topic=row.topic, broker_name=row.brokerName, queue_id=row.queueId),
            queue_offset=row.queueOffset,
            delay_level=delay_level,
            attempts=attempts,
        ).SerializeToString()
        persist(
            f"returning a message to {address}", partial(_once, address, request), timeout_ms=options.read_timeout_ms
        )
        count += 1
    return count


def _readable(options: ReadOptions, topic: str) -> Mapping[str, str]:
    from pyspark_evenq.brokers import cluster

    route = cluster.persist(
        f"the route of {topic}", lambda: cluster.route(options.endpoints, [topic]), timeout_ms=options.read_timeout_ms
    )
    return {queue.broker_name: address for queue, address in route.items()}


def _once(address: str, request: bytes) -> None:
    from evenq.wire.status import check
    from evenq.wire.stubs.evenq.v1 import data_pb2
    from pyspark_evenq.brokers import connection
    from pyspark_evenq.brokers.topic_routes import CALL_MS

    content = connection.unary(address, SEND_BACK, request, timeout_ms=CALL_MS, writes=True)
    check(data_pb2.SendBackResponse.FromString(content).status)
