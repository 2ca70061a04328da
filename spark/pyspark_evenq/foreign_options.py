"""Options of Spark's Kafka source that mean nothing here, and what to give instead.

Called by `options` for a name that it does not know, so that a job that comes from Kafka is told what to change.
"""

from __future__ import annotations

__all__ = ["FOREIGN", "foreign_problem"]

FOREIGN = {
    "kafka.security.protocol": "give tls=true for TLS, and accessKey and secretKey to sign calls",
    "kafka.sasl.": "give accessKey and secretKey, or credentialsFile",
    "kafka.ssl.truststore.": "give tlsCa, a PEM file",
    "kafka.ssl.keystore.": "give tlsCertificate and tlsKey, PEM files",
    "kafka.ssl.key.": "give tlsKey, a PEM file without a password",
    "kafka.ssl.endpoint.identification.algorithm": "give tlsServerName, or tlsInsecure in tests",
    "kafka.ssl.": "give evenqs:// in the address, and tlsCa, tlsCertificate, tlsKey",
    "kafka.auto.offset.reset": "give startingOffsets; failOnDataLoss says what happens when messages are gone",
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
    "kafka.session.timeout.ms": "leave it out; readTimeoutMs says how long a broker is tried",
    "kafka.partition.assignment.strategy": "leave it out: Spark's tasks read queues directly",
    "kafkaConsumer.pollTimeoutMs": "give readTimeoutMs",
    "fetchOffset.numRetries": "give readTimeoutMs: a broker is tried for so long, however often",
    "fetchOffset.retryIntervalMs": "give readTimeoutMs: a broker is tried for so long, with growing pauses",
    "kafka.": "leave it out: it is for Kafka's own client",
}
"""By name, or by the beginning of names where it ends in a dot; the first one that fits counts."""


def foreign_problem(name: str) -> str | None:
    """What to do about an option of Kafka's source, as a sentence; None for any other name."""
    lower = name.lower()
    for known, instead in FOREIGN.items():
        if lower == known.lower() or (known.endswith(".") and lower.startswith(known.lower())):
            return f"option {name!r} of Spark's Kafka source means nothing to the evenq source; {instead}"
    return None
