"""The brokers of `spark.py`, ours and Kafka's: how to write rows, and the options of Spark for them."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import servers
from pyspark_evenq.brokers import connection
from spark_rows import body

from evenq.wire.convert import set_ms
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2

TOPIC, ONE, SINK = "flights", "one-by-one", "written"
DELIVERIES = ("transactional", "atLeastOnce")
WRITERS = 2  # tasks that write in parallel
QUEUES = 4
BLOCK = 100


class Evenq:
    """Writer of rows into a broker of ours."""

    def __init__(self, server: servers.Server, metrics_port: int) -> None:
        """Its name must be `bench`."""
        self.pid, self.address = server.pid, server.address
        self.broker = "bench"
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        self._sent = 0

    def create(self, topic: str, queues: int) -> None:
        request = admin_pb2.CreateTopicRequest(topic=topic, queues=queues)
        response = self._call("/evenq.v1.Admin/CreateTopic", request)
        check(admin_pb2.CreateTopicResponse.FromString(response).status)

    def fill(self, rows: int, together: int = BLOCK) -> None:
        """Sends blocks of `together` messages to each queue in turn."""
        for begin in range(0, rows, together):
            self.send(TOPIC, begin // together % QUEUES, range(begin, min(begin + together, rows)))

    def send_one(self) -> float:
        """Sends a row. Returns the time at which it was stored, seconds since the epoch."""
        self.send(ONE, 0, range(self._sent, self._sent + 1))
        self._sent += 1
        return time.time()

    def send(self, topic: str, queue_id: int, numbers: range) -> None:
        now_ms, messages = int(time.time() * 1000), []
        for number in numbers:
            message = definition_pb2.Message(
                body=body(number), user_properties={"origin": "EWR", "carrier": f"C{number % 16}"}
            )
            system = message.system_properties
            system.message_id, system.tag = f"01{time.time_ns():020X}{number:010X}", f"t{number % 12}"
            system.keys.append(f"key-{number}")
            system.born_host = "127.0.0.1"
            set_ms(system.born_timestamp, now_ms)
            messages.append(message)
        queue = common_pb2.Queue(topic=topic, broker_name=self.broker, queue_id=queue_id)
        response = self._call("/evenq.v1.Data/Publish", data_pb2.PublishRequest(queue=queue, messages=messages))
        check(data_pb2.PublishResponse.FromString(response).status)

    def options(self, topic: str) -> dict[str, str]:
        return {"endpoints": self.address, "subscribe": topic}

    def sink(self, spark: Any, rows: int, delivery: str) -> None:
        """All rows by one job of Spark."""
        key, tag = "array(concat('key-', id)) AS keys", "concat('t', id % 12) AS tag"
        properties = "map('origin', 'EWR', 'carrier', concat('C', id % 16)) AS properties"
        rows_of = numbered(spark, rows).selectExpr(
            "cast(concat(lpad(id, 8, '0'), filling) as binary) AS body", tag, key, properties
        )
        options = {"endpoints": self.address, "topic": SINK, "delivery": delivery}
        rows_of.write.format("evenq").options(**options).mode("append").save()

    def calls(self) -> int:
        """Calls that the broker has answered."""
        with urllib.request.urlopen(self._metrics, timeout=10) as response:
            lines = response.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("rocketmq_rpc_latency_count{"))

    def _call(self, method: str, request: Any) -> bytes:
        return connection.unary(self.address, method, request.SerializeToString(), timeout_ms=30_000)


class Peer:
    """Writer of rows into Kafka, by Spark's own sink and by a producer in Spark's JVM."""

    def __init__(self, spark: Any, pid: int, address: str) -> None:
        self.pid, self.address = pid, address
        self._spark = spark
        jvm = spark._jvm  # noqa: SLF001  the only way to a producer without one more package
        settings = jvm.java.util.HashMap()
        text = "org.apache.kafka.common.serialization.StringSerializer"
        for name, value in (("bootstrap.servers", address), ("key.serializer", text), ("value.serializer", text)):
            settings.put(name, value)
        settings.put("linger.ms", "0")
        self._record = jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        self._sent = 0

    def fill(self, rows: int) -> None:
        """All rows by one job of Spark."""
        self._write(rows, TOPIC)

    def sink(self, rows: int) -> None:
        """The same into a topic of its own."""
        self._write(rows, SINK)

    def _write(self, rows: int, topic: str) -> None:
        value = "cast(concat(lpad(id, 8, '0'), filling) as binary) AS value"
        headers = (
            "array(named_struct('key', 'tag', 'value', cast(concat('t', id % 12) as binary)), "
            "named_struct('key', 'origin', 'value', cast('EWR' as binary)), "
            "named_struct('key', 'carrier', 'value', cast(concat('C', id % 16) as binary))) AS headers"
        )
        key, partition = "cast(concat('key-', id) as binary) AS key", f"cast(id % {QUEUES} as int) AS partition"
        written = numbered(self._spark, rows).selectExpr(key, value, headers, partition).write.format("kafka")
        patience = {"kafka.delivery.timeout.ms": "600000"}  # the machine may have other work
        address = {"kafka.bootstrap.servers": self.address, "topic": topic, "includeHeaders": "true"}
        written.options(**address, **patience).save()

    def send_one(self) -> float:
        record = self._record(ONE, f"key-{self._sent}", body(self._sent).decode())
        self._producer.send(record).get()
        self._sent += 1
        return time.time()

    def options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address, "subscribe": topic, "includeHeaders": "true"}


def numbered(spark: Any, rows: int) -> Any:
    """Returns numbers and the padding of their bodies, in `WRITERS` tasks."""
    return spark.range(0, rows, 1, WRITERS).selectExpr("id", f"'{body(0)[8:].decode()}' AS filling")
