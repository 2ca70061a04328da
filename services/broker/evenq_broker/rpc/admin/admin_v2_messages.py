"""The calls of `apache.rocketmq.v2.Admin` about messages, and commands to clients over their telemetry streams.

A broker that has a stream of the client sends the command: one of its `command_brokers`. The protocol has no command
for the state of a client's caches; that comes from the brokers' data.
"""

from __future__ import annotations

import base64

from google.protobuf.message import DecodeError

from evenq.errors import BadRequest, Forbidden, GroupNotFound, MessageNotFound, NotFound, NotImplementedYet
from evenq.serving.auth.calls import ADMIN_V2, rpc
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.wire.convert import requested_ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2 as evenq_pb2
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import filter_of
from evenq_broker.rpc.admin.groups import Groups
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.clients.client_list import EVENQ_CONSUMER, ClientList
from evenq_broker.rpc.cluster.forwarding import MARK, forward, owner_of
from evenq_broker.rpc.diagnosis.queries import COUNT_MAX, find_everywhere
from evenq_broker.rpc.sending.send import SendHandler

_PAGE = 32


def rpcs(
    kernel: Kernel,
    *,
    cluster: ClusterLink,
    client_list: ClientList,
    clients: ConnectedClients,
    sending: SendHandler,
    groups: Groups,
) -> list[Rpc]:
    messages = _MessageAdmin(kernel, cluster=cluster, sending=sending)
    asking = _Asking(kernel, cluster=cluster, client_list=client_list, clients=clients, groups=groups)
    return [
        rpc(ADMIN_V2 + "QueryMessage", messages.query),
        rpc(ADMIN_V2 + "AdminSendMessage", messages.send),
        rpc(ADMIN_V2 + "PrintThreadStackTrace", asking.stack),
        rpc(ADMIN_V2 + "VerifyMessage", asking.verify),
        rpc(ADMIN_V2 + "GetConsumerRunningInfo", asking.running_info),
    ]


class _MessageAdmin:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink, sending: SendHandler) -> None:
        self._kernel = kernel
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._sending = cluster, sending

    async def query(self, data: bytes, context: RpcContext) -> bytes:
        """Finds messages by id, key, queue or time, in pages: by page number, or the `scroll_id` of the last answer."""
        request = parsed(admin_pb2.ListMessageRequest, data, context)
        kind = request.WhichOneof("search_key")
        if kind in {"subscription", "lite_topic"}:
            raise NotImplementedYet(f"messages are not searched by {kind}; give message_id, message_key or times")
        size = request.page_size or request.max_message_nums or _PAGE
        skipped = max(0, request.page_num - 1) * size if request.page_num > 0 and not request.scroll_id else 0
        if not 0 < size <= COUNT_MAX or skipped + size > COUNT_MAX:
            raise BadRequest(
                f"page {max(1, request.page_num)} of {size} messages is beyond the first {COUNT_MAX}; "
                "continue with scroll_id, or search a shorter time"
            )
        search = evenq_pb2.FindMessagesRequest(
            topic=request.topic.name,
            message_id=request.message_id,
            key=request.message_key,
            begin_ms=max(0, requested_ms_of(request.begin_timestamp, "begin_timestamp")),
            end_ms=max(0, requested_ms_of(request.end_timestamp, "end_timestamp")),
            count_max=skipped + size,
        )
        if request.HasField("queue_id"):
            search.queue.broker_name, search.queue.queue_id = request.broker_name, request.queue_id
        if request.scroll_id:
            search.positions.extend(_positions(request.scroll_id))
        matches = await find_everywhere(self._kernel, search, context, cluster=self._cluster)
        response = admin_pb2.ListMessageResponse(status=OK)
        response.messages.extend(one.message for one in matches.messages[skipped:])
        if matches.more and not kind:
            rest = evenq_pb2.FindMessagesRequest(positions=matches.positions)
            response.scroll_id = base64.urlsafe_b64encode(rest.SerializeToString()).decode()
        return response.SerializeToString()

    async def send(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.AdminSendMessageRequest, data, context)
        send_request = service_pb2.SendMessageRequest()
        message = send_request.messages.add(
            topic=request.topic, body=request.body, user_properties=request.user_properties
        )
        system = message.system_properties
        system.CopyFrom(request.system_properties)
        if request.HasField("tag"):
            system.tag = request.tag
        if request.key:
            system.keys.append(request.key)
        if not system.message_id:
            system.message_id = f"{self._runtime.rng.getrandbits(136):034X}"
        if not system.message_type:
            system.message_type = _fitting(self._catalog, request.topic.name, system)
        response = service_pb2.SendMessageResponse.FromString(
            await self._sending.send(send_request.SerializeToString(), context)
        )
        message_id = response.entries[0].message_id if response.entries else ""
        return admin_pb2.AdminSendMessageResponse(status=response.status, message_id=message_id).SerializeToString()


class _Asking:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        client_list: ClientList,
        clients: ConnectedClients,
        groups: Groups,
    ) -> None:
        self._kernel = kernel
        self._runtime = kernel.runtime
        self._cluster, self._client_list, self._clients, self._groups = cluster, client_list, clients, groups

    async def stack(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.PrintThreadStackTraceRequest, data, context)
        address = await self._elsewhere(request.client_id, context)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        nonce = self._clients.commands.nonce()
        command = service_pb2.TelemetryCommand()
        command.print_thread_stack_trace_command.nonce = nonce
        reply = await self._clients.commands.ask(request.client_id, nonce, command)
        response = admin_pb2.PrintThreadStackTraceResponse(status=_verdict(reply))
        if reply.thread_stack_trace.HasField("thread_stack_trace"):
            response.thread_stack_trace = reply.thread_stack_trace.thread_stack_trace
        return response.SerializeToString()

    async def verify(self, data: bytes, context: RpcContext) -> bytes:
        """Sends a stored message to the client's listener and returns its result as the status. No progress changes.

        The client gets the body: it must be in the named group, and the caller must have the right to consume.
        """
        request = parsed(admin_pb2.VerifyMessageRequest, data, context)
        topic = request.topic.name
        search = evenq_pb2.FindMessagesRequest(topic=topic, message_id=request.message_id, count_max=1)
        if not request.message_id:
            raise BadRequest("the request names no message id; give the one that the send returned")
        if topic and not context.may_topic(Action.CONSUME, topic):
            raise Forbidden(f"the listener gets the message's body: that also requires consume on topic {topic}")
        matches = (await find_everywhere(self._kernel, search, context, cluster=self._cluster)).messages
        if not matches:
            raise MessageNotFound(f"no message {request.message_id!r} in topic {topic or 'any'}")
        await self._must_be_of(request.client_id, request.group.name)
        address = await self._elsewhere(request.client_id, context)
        if address is not None:
            return await forward(self._runtime, address, data, context)
        nonce = self._clients.commands.nonce()
        command = service_pb2.TelemetryCommand()
        command.verify_message_command.nonce = nonce
        message = command.verify_message_command.message
        message.CopyFrom(matches[0].message)
        message.system_properties.delivery_attempt = 1
        message.system_properties.receipt_handle = f"verify-{nonce}"  # SDKs require one; no call accepts it
        reply = await self._clients.commands.ask(request.client_id, nonce, command)
        return admin_pb2.VerifyMessageResponse(status=_verdict(reply)).SerializeToString()

    async def running_info(self, data: bytes, context: RpcContext) -> bytes:
        """Returns what the brokers know of one member: the protocol has no command for its own figures."""
        request = parsed(admin_pb2.GetConsumerRunningInfoRequest, data, context)
        group = request.group.name
        clients = (await self._client_list.everywhere(group)).clients
        mine = [one for one in clients if one.client_id == request.client_id]
        if not mine:
            raise NotFound(f"no client {request.client_id!r} in group {group}; see `evenq client list --group {group}`")
        client = mine[0]
        info = admin_pb2.ConsumerRunningInfo()
        info.properties.update(
            {
                "language": client.language,
                "version": client.version,
                "kind": client.kind,
                "protocol": client.protocol,
                "brokers": ",".join(client.brokers),
                "inflight": str(client.inflight),
                "joined_ms": str(client.joined_ms),
                "last_seen_ms": str(client.last_seen_ms),
            }
        )
        for entry in client.subscriptions:
            expression = filter_of(entry.filter)
            info.subscriptions[entry.topic].type = definition_pb2.TAG if not entry.filter.type else definition_pb2.SQL
            info.subscriptions[entry.topic].expression = expression.expression
        await self._queues(group, client, info)
        return admin_pb2.GetConsumerRunningInfoResponse(status=OK, consumer_running_info=info).SerializeToString()

    async def _queues_of(self, group: str) -> list[evenq_pb2.GroupQueue]:
        try:
            return list((await self._groups.everywhere(group)).queues)
        except GroupNotFound:
            return []

    async def _queues(self, group: str, client: evenq_pb2.ClientSummary, info: admin_pb2.ConsumerRunningInfo) -> None:
        owned = {(queue.topic, queue.broker_name, queue.queue_id) for queue in client.owned}
        for at in await self._queues_of(group):
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
        clients = (await self._client_list.everywhere(group)).clients
        if all(one.client_id != client_id for one in clients):
            raise NotFound(f"no client {client_id!r} in group {group}; see `evenq client list --group {group}`")

    async def _elsewhere(self, client_id: str, context: RpcContext) -> str | None:
        """Returns the address of another broker that reaches the client; None: this one. Raises NotFound."""
        if not client_id:
            raise BadRequest("the request names no client; see `evenq client list`")
        if self._clients.streams.reaches(client_id) or MARK in context.headers:
            return None
        known = [one for one in (await self._client_list.everywhere()).clients if one.client_id == client_id]
        for one in known:
            for name in one.command_brokers:
                address = owner_of(self._kernel, name, context, cluster=self._cluster)
                if address is not None:
                    return address
        if any(one.kind == EVENQ_CONSUMER for one in known):
            raise NotImplementedYet(f"client {client_id!r} is an evenq member; these accept no commands yet")
        what = "has no open telemetry stream" if known else "is not known to any broker"
        raise NotFound(f"client {client_id!r} {what}; see `evenq client list`")


def _verdict(reply: service_pb2.TelemetryCommand) -> definition_pb2.Status:
    return reply.status if reply.HasField("status") and reply.status.code else OK


def _fitting(
    catalog: Catalog, topic: str, system: definition_pb2.SystemProperties
) -> definition_pb2.MessageType.ValueType:
    if system.message_group:
        return definition_pb2.FIFO
    if system.HasField("delivery_timestamp"):
        return definition_pb2.DELAY
    known = catalog.topics.get(topic)
    kind = "NORMAL" if known is None or str(known.message_type) == "MIXED" else str(known.message_type)
    return definition_pb2.MessageType.Value(kind)


def _positions(scroll_id: str) -> list[evenq_pb2.QueuePosition]:
    try:
        rest = evenq_pb2.FindMessagesRequest.FromString(base64.urlsafe_b64decode(scroll_id.encode()))
    except (ValueError, DecodeError) as error:
        raise BadRequest("the scroll_id is not valid; give the one of the previous answer") from error
    return list(rest.positions)
