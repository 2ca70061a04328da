"""Names of span attributes, by the semantic conventions for messaging and for RocketMQ.

They are listed at https://opentelemetry.io/docs/specs/semconv/messaging/rocketmq/. The SDK (`evenq.otel`) and the
broker (`core.diagnosis.message_spans`) write the same names. They are here because the package of the conventions would
be one more dependency, and its messaging part is not stable. `ATTEMPT` and `OUTCOME` are ours: the conventions have no
attribute for the number of a delivery in RocketMQ, and none for its end.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ATTEMPT",
    "BATCH_COUNT",
    "BODY_SIZE",
    "CLIENT_ID",
    "DELAY_LEVEL",
    "DELIVERY_TIMESTAMP",
    "DESTINATION",
    "ERROR_TYPE",
    "GROUP",
    "KEYS",
    "MESSAGE_GROUP",
    "MESSAGE_ID",
    "MODEL",
    "OPERATION_NAME",
    "OPERATION_TYPE",
    "OUTCOME",
    "PARTITION",
    "SCHEMA_URL",
    "SERVER_ADDRESS",
    "SERVER_PORT",
    "SYSTEM",
    "TAG",
    "TYPE",
]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"
SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
TAG: Final = "messaging.rocketmq.message.tag"
KEYS: Final = "messaging.rocketmq.message.keys"
TYPE: Final = "messaging.rocketmq.message.type"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
DELIVERY_TIMESTAMP: Final = "messaging.rocketmq.message.delivery_timestamp"
MODEL: Final = "messaging.rocketmq.consumption_model"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
ATTEMPT: Final = "evenq.message.delivery_attempt"
OUTCOME: Final = "evenq.message.outcome"
