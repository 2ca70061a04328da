"""The calls of `apache.rocketmq.v2.Admin` about messages, and its questions to clients over their telemetry streams.

A client is asked by a broker that has a stream of it: its `command_brokers`. What a client cannot be asked for (it has
no words for its caches) is told from the broker's side of it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest, Forbidden, GroupNotFound, MessageNotFound, NotFound, NotImplementedYet
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.wire.convert import ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2 as evenq_pb2
from evenq_broker.loops.translation import filter_of
from evenq_broker.rpc.access import ADMIN_V2, rpc
from evenq_broker.rpc.admin import describe_group
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.client_list import EVENQ_CONSUMER, clients_everywhere
from evenq_broker.rpc.forwarding import MARK, forward, owner_of
from evenq_broker.rpc.queries import COUNT_MAX, find_everywhere
from evenq_broker.rpc.send import Sending

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
_PAGE = 32


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    messages, asking = _Messages(broker), _Asking(broker)
    a = admin_pb2
    unary = [
        ("QueryMessage", messages.query, a.ListMessageResponse),
        ("AdminSendMessage", messages.send, a.AdminSendMessageResponse),
        ("PrintThreadStackTrace", asking.stack, a.PrintThreadStackTraceResponse),
        ("VerifyMessage", asking.verify, a.VerifyMessageResponse),
        ("GetConsumerRunningInfo", asking.running_info, a.GetConsumerRunningInfoResponse),
    ]
    return [rpc(ADMIN_V2 + name, handler, response) for name, handler, response in unary]


class _Messages:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sending = Sending(broker)

    async def query(self, request: bytes, context: RpcContext) -> bytes:
        """By id, key, place or time, in pages: give the `scroll_id` of the answer before, or a page number."""
        asked = parsed(admin_pb2.ListMessageRequest, request, context)
        kind = asked.WhichOneof("search_key")
        if kind in {"subscription", "lite_topic"}:
            raise NotImplementedYet(f"messages are not searched by {kind}; give message_id, message_key or times")
        size = asked.page_size or asked.max_message_nums or _PAGE
        skipped = max(0, asked.page_num - 1) * size if asked.page_num > 0 and not asked.scroll_id else 0
        if not 0 < size <= COUNT_MAX or skipped + size > COUNT_MAX:
            raise BadRequest(
                f"page {max(1, asked.page_num)} of {size} messages is beyond the first {COUNT_MAX}; "
                "go on with scroll_id, or search a shorter time"
            )
        told = evenq_pb2.FindMessagesRequest(
            topic=asked.topic.name,
            message_id=asked.message_id,
            key=asked.message_key,
            begin_ms=max(0, ms_of(asked.begin_timestamp)) if asked.HasField("begin_timestamp") else 0,
            end_ms=max(0, ms_of(asked.end_timestamp)) if asked.HasField("end_timestamp") else 0,
            count_max=skipped + size,
        )
        if asked.HasField("queue_id"):
            told.queue.broker_name, told.queue.queue_id = asked.broker_name, asked.queue_id
        if asked.scroll_id:
            told.positions.extend(_positions(asked.scroll_id))
        found = await find_everywhere(self._broker, told, context)
        answer = admin_pb2.ListMessageResponse(status=OK)
        answer.messages.extend(one.message for one in found.messages[skipped:])
        if found.more and not kind:
            rest = evenq_pb2.FindMessagesRequest(positions=found.positions)
            answer.scroll_id = base64.urlsafe_b64encode(rest.SerializeToString()).decode()
        return answer.SerializeToString()

    async def send(self, request: bytes, context: RpcContext) -> bytes:
        """Store one message, as a producer would."""
        asked = parsed(admin_pb2.AdminSendMessageRequest, request, context)
        told = service_pb2.SendMessageRequest()
        message = told.messages.add(topic=asked.topic, body=asked.body, user_properties=asked.user_properties)
        system = message.system_properties
        system.CopyFrom(asked.system_properties)
        if asked.HasField("tag"):
            system.tag = asked.tag
        if asked.key:
            system.keys.append(asked.key)
        if not system.message_id:
            system.message_id = f"{self._broker.rng.getrandbits(136):034X}"
        if not system.message_type:
            system.message_type = _fitting(self._broker, asked.topic.name, system)
        answer = service_pb2.SendMessageResponse.FromString(await self._sending.send(told.SerializeToString(), context))
        message_id = answer.entries[0].message_id if answer.entries else ""
        return admin_pb2.AdminSendMessageResponse(status=answer.status, message_id=message_id).SerializeToString()


class _Asking:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def stack(self, request: bytes, context: RpcContext) -> bytes:
        """What the client's threads do, in its own words."""
        asked = parsed(admin_pb2.PrintThreadStackTraceRequest, request, context)
        address = await self._elsewhere(asked.client_id, context)
        if address is not None:
            return await forward(self._broker, address, request, context)
        nonce = self._broker.commands.nonce()
        command = service_pb2.TelemetryCommand()
        command.print_thread_stack_trace_command.nonce = nonce
        told = await self._broker.commands.ask(asked.client_id, nonce, command)
        answer = admin_pb2.PrintThreadStackTraceResponse(status=_verdict(told))
        if told.thread_stack_trace.HasField("thread_stack_trace"):
            answer.thread_stack_trace = told.thread_stack_trace.thread_stack_trace
        return answer.SerializeToString()

    async def verify(self, request: bytes, context: RpcContext) -> bytes:
        """Let the client's listener work on a stored message; its verdict is the status. No progress changes.

        The client gets the body: it must be of the group named, and the caller one who may consume the topic.
        """
        asked = parsed(admin_pb2.VerifyMessageRequest, request, context)
        topic = asked.topic.name
        wanted = evenq_pb2.FindMessagesRequest(topic=topic, message_id=asked.message_id, count_max=1)
        if not asked.message_id:
            raise BadRequest("the request names no message id; give the one that the send answered")
        if topic and not context.may_topic(Action.CONSUME, topic):
            raise Forbidden(f"the listener gets the message's body: that needs consume on topic {topic}, too")
        found = (await find_everywhere(self._broker, wanted, context)).messages
        if not found:
            raise MessageNotFound(f"no message {asked.message_id!r} in topic {topic or 'any'}")
        await self._must_be_of(asked.client_id, asked.group.name)
        address = await self._elsewhere(asked.client_id, context)
        if address is not None:
            return await forward(self._broker, address, request, context)
        nonce = self._broker.commands.nonce()
        command = service_pb2.TelemetryCommand()
        command.verify_message_command.nonce = nonce
        message = command.verify_message_command.message
        message.CopyFrom(found[0].message)
        message.system_properties.delivery_attempt = 1
        message.system_properties.receipt_handle = f"verify-{nonce}"  # SDKs look for one; no call takes it
        told = await self._broker.commands.ask(asked.client_id, nonce, command)
        return admin_pb2.VerifyMessageResponse(status=_verdict(told)).SerializeToString()

    async def running_info(self, request: bytes, context: RpcContext) -> bytes:
        """What the brokers know of one member: the protocol has no question for its own figures."""
        asked = parsed(admin_pb2.GetConsumerRunningInfoRequest, request, context)
        group = asked.group.name
        clients = (await clients_everywhere(self._broker, group)).clients
        mine = [one for one in clients if one.client_id == asked.client_id]
        if not mine:
            raise NotFound(f"no client {asked.client_id!r} in group {group}; see `evenq client list --group {group}`")
        client = mine[0]
        info = admin_pb2.ConsumerRunningInfo()
        info.properties.update({
            "language": client.language,
            "version": client.version,
            "kind": client.kind,
            "protocol": client.protocol,
            "brokers": ",".join(client.brokers),
            "inflight": str(client.inflight),
            "joined_ms": str(client.joined_ms),
            "last_seen_ms": str(client.last_seen_ms),
        })  # fmt: skip
        for entry in client.subscriptions:
            wanted = filter_of(entry.filter)
            info.subscriptions[entry.topic].type = definition_pb2.TAG if not entry.filter.type else definition_pb2.SQL
            info.subscriptions[entry.topic].expression = wanted.expression
        await self._queues(group, client, info)
        return admin_pb2.GetConsumerRunningInfoResponse(status=OK, consumer_running_info=info).SerializeToString()

    async def _queues(self, group: str, client: evenq_pb2.ClientSummary, info: admin_pb2.ConsumerRunningInfo) -> None:
        owned = {(queue.topic, queue.broker_name, queue.queue_id) for queue in client.owned}
        for at in await _group_queues(self._broker, group):
            key = (at.queue.topic, at.queue.broker_name, at.queue.queue_id)
            if owned and key not in owned:
                continue
            item = info.message_queue_table.add()
            item.message_queue.topic.name, item.message_queue.id = at.queue.topic, at.queue.queue_id
            item.message_queue.broker.name = at.queue.broker_name
            item.process_queue_info.commit_offset = max(0, at.committed)
            item.process_queue_info.cached_msg_count = at.inflight
            item.process_queue_info.locked = key in owned

    async def _must_be_of(self, client_id: str, group: str) -> None:
        """Raises NotFound for a client that is not in the group; without a group any client is meant."""
        if not group or not client_id:
            return
        clients = (await clients_everywhere(self._broker, group)).clients
        if all(one.client_id != client_id for one in clients):
            raise NotFound(f"no client {client_id!r} in group {group}; see `evenq client list --group {group}`")

    async def _elsewhere(self, client_id: str, context: RpcContext) -> str | None:
        """The address of a broker that can ask the client, if it is another one. Raises NotFound: nobody can."""
        if not client_id:
            raise BadRequest("the request names no client; see `evenq client list`")
        if self._broker.streams.reaches(client_id) or MARK in context.headers:
            return None
        known = [one for one in (await clients_everywhere(self._broker)).clients if one.client_id == client_id]
        for one in known:
            for name in one.command_brokers:
                address = owner_of(self._broker, name, context)
                if address is not None:
                    return address
        if any(one.kind == EVENQ_CONSUMER for one in known):
            raise NotImplementedYet(f"client {client_id!r} is an evenq member; these answer no questions yet")
        what = "has no open telemetry stream" if known else "is not known to any broker"
        raise NotFound(f"client {client_id!r} {what}; see `evenq client list`")


async def _group_queues(broker: Broker, group: str) -> list[evenq_pb2.GroupQueue]:
    try:
        return list((await describe_group(broker, group)).queues)
    except GroupNotFound:
        return []


def _verdict(told: service_pb2.TelemetryCommand) -> definition_pb2.Status:
    return told.status if told.HasField("status") and told.status.code else OK


def _fitting(
    broker: Broker, topic: str, system: definition_pb2.SystemProperties
) -> definition_pb2.MessageType.ValueType:
    if system.message_group:
        return definition_pb2.FIFO
    if system.HasField("delivery_timestamp"):
        return definition_pb2.DELAY
    known = broker.topics.get(topic)
    kind = "NORMAL" if known is None or str(known.message_type) == "MIXED" else str(known.message_type)
    return definition_pb2.MessageType.Value(kind)


def _positions(scroll_id: str) -> list[evenq_pb2.QueuePosition]:
    try:
        rest = evenq_pb2.FindMessagesRequest.FromString(base64.urlsafe_b64decode(scroll_id.encode()))
    except (ValueError, DecodeError) as error:
        raise BadRequest("the scroll_id is none of ours; give the one of the answer before") from error
    return list(rest.positions)
