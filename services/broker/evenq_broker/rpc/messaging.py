"""The calls of `apache.rocketmq.v2.MessagingService` that this half of the broker answers; `telemetry` and `routing`
have the rest.
"""

from __future__ import annotations

from dataclasses import replace

from evenq.serving.rpc import CallKind, Rpc
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.rpc.access import MESSAGING, rpc
from evenq_broker.rpc.clients.heartbeat import Clients
from evenq_broker.rpc.delivery.pulling import PullHandler
from evenq_broker.rpc.delivery.receive import ReceiveHandler
from evenq_broker.rpc.delivery.settle import Acknowledger
from evenq_broker.rpc.lite.lite import LiteSubscriptionHandler
from evenq_broker.rpc.sending.recall import RecallHandler
from evenq_broker.rpc.sending.send import SendHandler
from evenq_broker.rpc.transactions.transactions import EndTransactionHandler

__all__ = ["rpcs"]


def rpcs(
    *,
    sending: SendHandler,
    receiving: ReceiveHandler,
    acknowledger: Acknowledger,
    pulling: PullHandler,
    heartbeats: Clients,
    transactions: EndTransactionHandler,
    recall_handler: RecallHandler,
    lite_subscription_handler: LiteSubscriptionHandler,
) -> list[Rpc]:
    """All calls of this module."""
    s = service_pb2
    unary = [
        ("AckMessage", acknowledger.ack, s.AckMessageResponse),
        ("ChangeInvisibleDuration", acknowledger.change_invisible, s.ChangeInvisibleDurationResponse),
        (
            "ForwardMessageToDeadLetterQueue",
            acknowledger.forward_to_dead_letters,
            s.ForwardMessageToDeadLetterQueueResponse,
        ),
        ("Heartbeat", heartbeats.heartbeat, s.HeartbeatResponse),
        ("NotifyClientTermination", heartbeats.terminate, s.NotifyClientTerminationResponse),
        ("UpdateOffset", pulling.update_offset, s.UpdateOffsetResponse),
        ("GetOffset", pulling.get_offset, s.GetOffsetResponse),
        ("QueryOffset", pulling.query_offset, s.QueryOffsetResponse),
        ("EndTransaction", transactions.end, s.EndTransactionResponse),
        ("RecallMessage", recall_handler.recall, s.RecallMessageResponse),
        ("SyncLiteSubscription", lite_subscription_handler.sync, s.SyncLiteSubscriptionResponse),
    ]
    return [
        replace(rpc(MESSAGING + "SendMessage", sending.send, s.SendMessageResponse), plain=sending.plain),
        *(rpc(MESSAGING + name, handler, response) for name, handler, response in unary),
        rpc(
            MESSAGING + "ReceiveMessage",
            receiving.receive,
            s.ReceiveMessageResponse,
            CallKind.SERVER_STREAM,
        ),
        rpc(MESSAGING + "PullMessage", pulling.pull, s.PullMessageResponse, CallKind.SERVER_STREAM),
    ]
