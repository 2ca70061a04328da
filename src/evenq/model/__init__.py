"""Values of a message queue with their own rules, used by all packages. Pure: no clock, no I/O, no wire.

`evenq.wire.convert` converts them to protobuf and back.
"""

from evenq.model.balance import EVEN_BALANCE, BalancePolicy, Weight
from evenq.model.generation import NO_GENERATION, Generation
from evenq.model.group import GroupConfig, MessageModel, StartFrom, StartPolicy
from evenq.model.message import Message, ReceivedMessage, TransactionResolution
from evenq.model.names import group_problem, topic_problem
from evenq.model.queue import LogOffset, MessageQueue, QueueOffset
from evenq.model.route import (
    PLAIN_LISTENER,
    TLS_LISTENER,
    BrokerAddress,
    BrokerRoute,
    Listener,
    QueueCounts,
    TopicRoute,
)
from evenq.model.subscription import FilterExpression, FilterType, Subscription
from evenq.model.topic import MIXED_KINDS, MessageType, Permission, TopicConfig

__all__ = [
    "EVEN_BALANCE",
    "MIXED_KINDS",
    "NO_GENERATION",
    "PLAIN_LISTENER",
    "TLS_LISTENER",
    "BalancePolicy",
    "BrokerAddress",
    "BrokerRoute",
    "FilterExpression",
    "FilterType",
    "Generation",
    "GroupConfig",
    "Listener",
    "LogOffset",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageType",
    "Permission",
    "QueueCounts",
    "QueueOffset",
    "ReceivedMessage",
    "StartFrom",
    "StartPolicy",
    "Subscription",
    "TopicConfig",
    "TopicRoute",
    "TransactionResolution",
    "Weight",
    "group_problem",
    "topic_problem",
]
