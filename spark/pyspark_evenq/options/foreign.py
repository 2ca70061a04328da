"""Options of Spark's Kafka source and sink that have no meaning here, and their replacements.

The options of source and sink call it for an unknown name, so that the error of a job that is moved from Kafka states
what to change. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

_CALLS = {
    "kafka.security.protocol": "give tls=true for TLS, and accessKey and secretKey to sign calls",
    "kafka.sasl.": "give accessKey and secretKey, or credentialsFile",
    "kafka.ssl.truststore.": "give tlsCa, a PEM file",
    "kafka.ssl.keystore.": "give tlsCertificate and tlsKey, PEM files",
    "kafka.ssl.key.": "give tlsKey, a PEM file without a password",
    "kafka.ssl.endpoint.identification.algorithm": "give tlsServerName, or tlsInsecure in tests",
    "kafka.ssl.": "give evenqs:// in the address, and tlsCa, tlsCertificate, tlsKey",
}
_REST = {
    "kafka.": "leave it out: it is for Kafka's own client",
}
FOREIGN = {
    **_CALLS,
    "kafka.auto.offset.reset": "give startingOffsets; failOnDataLoss says what happens when messages are lost",
    "kafka.enable.auto.commit": "leave it out: progress is reported when Spark has logged it",
    "kafka.key.deserializer": "leave it out: keys are binary; cast them after loading",
    "kafka.value.deserializer": "leave it out: values are binary; cast them after loading",
    "kafka.interceptor.classes": "leave it out; change rows after loading",
    "kafka.isolation.level": "leave it out: uncommitted messages are never read",
    "kafka.client.id": "give group: it names the query at the brokers",
    "kafka.client.rack": "leave it out: each queue is read from the broker that serves it",
    "kafka.max.poll.records": "give blockBytes, the size of a transfer",
    "kafka.max.partition.fetch.bytes": "give blockBytes, the size of a transfer",
    "kafka.fetch.": "give blockBytes, the size of a transfer, and idleWaitMs",
    "kafka.request.timeout.ms": "give readTimeoutMs",
    "kafka.session.timeout.ms": "leave it out; readTimeoutMs is the time for which a broker is retried",
    "kafka.partition.assignment.strategy": "leave it out: Spark's tasks read queues directly",
    "kafkaConsumer.pollTimeoutMs": "give readTimeoutMs",
    "fetchOffset.numRetries": "give readTimeoutMs: the time for which a broker is retried, with any number of attempts",
    "fetchOffset.retryIntervalMs": "give readTimeoutMs: the time for which a broker is retried, with growing pauses",
    **_REST,
}
"""Name, or prefix of names if it ends in a dot -> advice; the first match counts."""

FOREIGN_SINK = {
    **_CALLS,
    "kafka.acks": "give delivery: each value waits until the brokers have stored the rows",
    "kafka.enable.idempotence": "give delivery=idempotent, or leave it out: transactional, the default, promises more",
    "kafka.transactional.id": "leave it out: the checkpoint names the query, and delivery=transactional is the default",
    "kafka.transaction.timeout.ms": "leave it out; the brokers' staging.timeout_ms says how long a batch may take",
    "kafka.retries": "give writeTimeoutMs: the time for which a broker is retried, with any number of attempts",
    "kafka.delivery.timeout.ms": "give writeTimeoutMs",
    "kafka.request.timeout.ms": "give writeTimeoutMs",
    "kafka.max.block.ms": "give writeTimeoutMs",
    "kafka.batch.size": "give blockBytes and blockRows, the size of a transfer",
    "kafka.linger.ms": "leave it out: a transfer is sent when it is full or the task ends",
    "kafka.max.in.flight.requests.per.connection": "give inFlight",
    "kafka.compression.type": "leave it out: rows travel as they are",
    "kafka.partitioner.class": "give columns messageGroup, or brokerName and queueId (partition)",
    "kafka.max.request.size": "give blockBytes; brokers say how large a message may be (body_bytes_max)",
    "kafka.buffer.memory": "give inFlight and blockBytes",
    "kafka.key.serializer": "leave it out: keys are text or bytes as they are; cast them before writing",
    "kafka.value.serializer": "leave it out: values are text or bytes as they are; cast them before writing",
    **_REST,
}


def foreign_problem(name: str) -> str | None:
    """Returns advice for an option of Kafka's source; None for any other name."""
    return _problem(name, FOREIGN, "source")


def foreign_sink_problem(name: str) -> str | None:
    """Returns advice for an option of Kafka's sink; None for any other name."""
    return _problem(name, FOREIGN_SINK, "sink")


def _problem(name: str, foreign: Mapping[str, str], side: str) -> str | None:
    lower = name.lower()
    for known, instead in foreign.items():
        if lower == known.lower() or (known.endswith(".") and lower.startswith(known.lower())):
            return f"option {name!r} of Spark's Kafka {side} has no meaning for the evenq {side}; {instead}"
    return None
