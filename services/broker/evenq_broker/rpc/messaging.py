"""The calls of `apache.rocketmq.v2.MessagingService` that this half of the broker answers; `telemetry` and `routing`
have the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from evenq.serving.rpc import Kind, Rpc
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.loops.popping import Popping
from evenq_broker.rpc.access import MESSAGING, rpc
from evenq_broker.rpc.clients import Clients
from evenq_broker.rpc.lite import LiteSyncing
from evenq_broker.rpc.pulling import Pulling
from evenq_broker.rpc.recall import Recalling
from evenq_broker.rpc.receive import Receiving
from evenq_broker.rpc.send import Sending
from evenq_broker.rpc.settle import Settling
from evenq_broker.rpc.transactions import Ending

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]


def rpcs(broker: Broker) -> list[Rpc]:
    """All calls of this module."""
    popping, sending = Popping(broker), Sending(broker)
    clients, pulling, settling = Clients(broker), Pulling(broker), Settling(broker)
    s = service_pb2
    unary = [
        ("AckMessage", settling.ack, s.AckMessageResponse),
        ("ChangeInvisibleDuration", settling.change_invisible, s.ChangeInvisibleDurationResponse),
        (
            "ForwardMessageToDeadLetterQueue",
            settling.forward_to_dead_letters,
            s.ForwardMessageToDeadLetterQueueResponse,
        ),
        ("Heartbeat", clients.heartbeat, s.HeartbeatResponse),
        ("NotifyClientTermination", clients.terminate, s.NotifyClientTerminationResponse),
        ("UpdateOffset", pulling.update_offset, s.UpdateOffsetResponse),
        ("GetOffset", pulling.get_offset, s.GetOffsetResponse),
        ("QueryOffset", pulling.query_offset, s.QueryOffsetResponse),
        ("EndTransaction", Ending(broker).end, s.EndTransactionResponse),
        ("RecallMessage", Recalling(broker).recall, s.RecallMessageResponse),
        ("SyncLiteSubscription", LiteSyncing(broker).sync, s.SyncLiteSubscriptionResponse),
    ]
    return [
        replace(rpc(MESSAGING + "SendMessage", sending.send, s.SendMessageResponse), plain=sending.plain),
        *(rpc(MESSAGING + name, handler, response) for name, handler, response in unary),
        rpc(
            MESSAGING + "ReceiveMessage",
            Receiving(broker, popping).receive,
            s.ReceiveMessageResponse,
            Kind.SERVER_STREAM,
        ),
        rpc(MESSAGING + "PullMessage", pulling.pull, s.PullMessageResponse, Kind.SERVER_STREAM),
    ]
