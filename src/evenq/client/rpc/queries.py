"""Queries of the admin: stored messages, their history, clients and dead letters, and the replay of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evenq.client.core.admin.query_views import (
    CallerView,
    ClientsView,
    ClientView,
    DeadLettersView,
    FoundMessagesView,
    MessageView,
    ReplayView,
    ScheduledView,
    TracesView,
)
from evenq.client.rpc.calls import Calls
from evenq.client.rpc.transactions import half_message_of
from evenq.client.rpc.translation import filter_of, wire_queue
from evenq.client.rpc.transport import V2, AccessPointSilent, silence
from evenq.client.rpc.views import view
from evenq.errors import BadRequest, ConnectionFailed, MessageNotFound, NotFound, PreconditionFailed, RequestTimeout
from evenq.model import FilterExpression, MessageQueue
from evenq.model.names import GIVEN_UP_TOPIC
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq.wire.stubs.evenq.v1 import dead_letters_pb2 as dead

ADMIN = "/evenq.v1.Admin/"
DEAD_LETTERS = "/evenq.v1.DeadLetters/"
V2_ADMIN = "/apache.rocketmq.v2.Admin/"
FOUND_MAX = 1_000
REPLAY_MS_MAX = 86_400_000
"""Longest replay; one with a rate may take long."""

Answer = TypeVar("Answer")


class QueryCalls(Calls):
    """Calls that raise the error that the response's status stands for."""

    async def find_messages(
        self,
        topic: str,
        *,
        key: str,
        message_id: str = "",
        begin_ms: int,
        end_ms: int,
        queue: MessageQueue | None,
        offset: int | None,
        newest_first: bool,
        limit: int,
        body_max: int,
        after: Mapping[MessageQueue, int] | None,
    ) -> FoundMessagesView:
        if not 1 <= limit <= FOUND_MAX:
            raise BadRequest(f"limit is {limit} messages, the range is 1 to {FOUND_MAX}")
        if offset is not None and (queue is None or not topic):
            raise BadRequest("an offset needs its topic and queue: give both")
        request = admin_pb2.FindMessagesRequest(
            topic=topic,
            message_id=message_id,
            key=key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            newest_first=newest_first,
            count_max=limit,
            body_max=body_max,
        )
        if queue is not None:
            request.queue.CopyFrom(wire_queue(queue))
        if offset is not None:
            request.by_offset, request.offset = True, offset
        for at, next_offset in (after or {}).items():
            request.positions.add(queue=wire_queue(at), offset=next_offset)
        return view(FoundMessagesView, await self.ask("FindMessages", request, admin_pb2.FindMessagesResponse))

    async def get_message(
        self, message_id: str, *, topic: str, queue: MessageQueue | None, offset: int | None, body_max: int
    ) -> MessageView:
        if bool(message_id) == (offset is not None):
            raise BadRequest("give the message's id, or its topic, queue and offset")
        page = await self.find_messages(
            topic,
            key="",
            message_id=message_id,
            begin_ms=0,
            end_ms=0,
            queue=queue,
            offset=offset,
            newest_first=bool(message_id),
            limit=1,
            body_max=body_max,
            after=None,
        )
        if not page.messages or (offset is not None and page.messages[0].offset != offset):
            where = f"{queue.broker_name}/{queue.queue_id}" if queue is not None else ""
            what = f"id {message_id}" if message_id else f"offset {offset} in {where}"
            missing = f"; brokers that did not answer: {', '.join(page.silent)}" if page.silent else ""
            raise MessageNotFound(
                f"no message with {what} is stored (any more); evenq message find TOPIC shows stored messages{missing}"
            )
        return page.messages[0]

    async def trace_message(self, message_id: str, *, topic: str, group: str) -> TracesView:
        request = admin_pb2.TraceMessageRequest(topic=topic, message_id=message_id, group=group)
        response = await self.ask("TraceMessage", request, admin_pb2.TraceMessageResponse)
        return view(TracesView, response)

    async def list_clients(self, group: str) -> ClientsView:
        request = admin_pb2.ListClientsRequest(group=group)
        response = await self.ask("ListClients", request, admin_pb2.ListClientsResponse)
        return view(ClientsView, response)

    async def describe_client(self, client_id: str) -> list[ClientView]:
        listed = await self.list_clients("")
        clients = [client for client in listed.clients if client.client_id == client_id]
        if not clients:
            missing = f"; brokers that did not answer: {', '.join(listed.silent)}" if listed.silent else ""
            raise NotFound(
                f"no client {client_id!r} is connected to the cluster; evenq client list shows those that are{missing}"
            )
        return clients

    async def list_scheduled(self, topic: str, *, limit: int) -> ScheduledView:
        if not 1 <= limit <= FOUND_MAX:
            raise BadRequest(f"limit is {limit} messages, the range is 1 to {FOUND_MAX}")
        request = admin_pb2.ListScheduledRequest(topic=topic, max=limit)
        return view(ScheduledView, await self.ask("ListScheduled", request, admin_pb2.ListScheduledResponse))

    async def describe_caller(self) -> CallerView:
        request = admin_pb2.DescribeCallerRequest()
        return view(CallerView, await self.ask("DescribeCaller", request, admin_pb2.DescribeCallerResponse))

    async def begin_again(self, queue: MessageQueue, offset: int) -> str:
        """Stores the message of a transaction that was given up as an open one again. Returns its id."""
        request = admin_pb2.FindMessagesRequest(topic=GIVEN_UP_TOPIC, by_offset=True, offset=offset, count_max=1)
        request.queue.CopyFrom(wire_queue(queue))
        found = await self.ask("FindMessages", request, admin_pb2.FindMessagesResponse)
        if not found.messages or found.messages[0].message.system_properties.queue_offset != offset:
            raise MessageNotFound(
                f"no transaction is at offset {offset} of {queue.broker_name}/{queue.queue_id} (any more); "
                f"`evenq message tail {GIVEN_UP_TOPIC}` shows those that were given up"
            )
        again = half_message_of(found.messages[0].message)
        data = await self._once(
            V2 + "SendMessage",
            service_pb2.SendMessageRequest(messages=[again]).SerializeToString(),
            see="the scheduled messages of its topic",
        )
        response = service_pb2.SendMessageResponse.FromString(data)
        check(response.status)
        for entry in response.entries:
            check(entry.status)
        message_id = again.system_properties.message_id
        opened = await self.list_scheduled(again.topic.name, limit=FOUND_MAX)
        if not opened.more and not opened.silent and message_id not in {one.message_id for one in opened.messages}:
            raise PreconditionFailed(
                f"the broker takes message {message_id} for a repeated send and did not store it; try again when its "
                "setting duplicates_window_ms has passed (60 s by default)"
            )
        return message_id

    async def client_stack(self, client_id: str) -> str:
        request = v2_admin.PrintThreadStackTraceRequest(client_id=client_id)
        kind = v2_admin.PrintThreadStackTraceResponse
        return (await self.ask("PrintThreadStackTrace", request, kind, service=V2_ADMIN)).thread_stack_trace

    async def list_dead_letters(
        self, group: str, *, limit: int, bodies: bool, message_id: str, waiting: bool
    ) -> DeadLettersView:
        if limit < 0:
            raise BadRequest(f"limit is {limit} dead letters of each broker, the minimum is 0 (which means 100)")
        request = dead.ListDeadLettersRequest(
            group=group, max=limit, bodies=bodies, message_id=message_id, waiting=waiting
        )
        return view(
            DeadLettersView, await self.ask("List", request, dead.ListDeadLettersResponse, service=DEAD_LETTERS)
        )

    async def replay_dead_letters(
        self,
        group: str,
        *,
        expression: FilterExpression,
        to_topic: str,
        per_second: float,
        limit: int,
        dry_run: bool,
        on_progress: Callable[[ReplayView], None] | None,
    ) -> list[ReplayView]:
        """Returns each broker's last report."""
        request = dead.ReplayDeadLettersRequest(
            group=group,
            filter=filter_of(expression),
            to_topic=to_topic,
            per_second=per_second,
            max=limit,
            dry_run=dry_run,
        )
        last: dict[str, ReplayView] = {}
        frames = self.stream_at_access_point(
            DEAD_LETTERS + "Replay", request.SerializeToString(), timeout_ms=REPLAY_MS_MAX
        )
        try:
            async for frame in frames:
                progress = dead.ReplayProgress.FromString(frame)
                if not progress.broker_name:
                    check(progress.status)
                report = last[progress.broker_name] = view(ReplayView, progress)
                if on_progress is not None:
                    on_progress(report)
        except ConnectionFailed as error:
            if not last:
                raise silence(error) from error
            raise ConnectionFailed(
                f"{error}; dead letters replayed until now are marked: start the replay again to continue"
            ) from error
        return [last[name] for name in sorted(last)]

    async def ask(
        self, rpc: str, request: Any, answer_type: type[Answer], *, service: str = ADMIN, once: bool = False
    ) -> Answer:
        """Makes one call at the access point; `once`: it is not repeated at another one, whatever became of it.

        Raises AccessPointSilent, RequestTimeout, and the status's error.
        """
        made: Any = answer_type
        if once:
            data = await self._once(service + rpc, request.SerializeToString())
        else:
            data = await self.at_access_point(service + rpc, request.SerializeToString())
        response = made.FromString(data)
        check(response.status)
        typed: Answer = response
        return typed

    async def _once(self, method: str, request: bytes, *, see: str = "`evenq offset show`") -> bytes:
        try:
            return await self.unary(self.access_point, method, request)
        except (ConnectionFailed, RequestTimeout) as error:
            why = f"{error}; the change may have been made or not: see {see} before you repeat it"
            raise (RequestTimeout(why) if isinstance(error, RequestTimeout) else AccessPointSilent(why)) from error
