"""What an admin may look at: stored messages, their way, clients, dead letters; and two calls beside `evenq.v1.Admin`,
the replay of dead letters and the recall of a delayed message. `AdminCalls` builds on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evenq.client.core.admin.query_views import (
    ClientsView,
    ClientView,
    DeadLettersView,
    FoundMessagesView,
    MessageView,
    ReplayView,
    TracesView,
)
from evenq.client.rpc.calls import Calls, silence
from evenq.client.rpc.query_views import client_view, dead_letters, found_messages, replay_view, trace_view
from evenq.client.rpc.translation import filter_of, wire_queue
from evenq.errors import BadRequest, ConnectionFailed, MessageNotFound, NotFound
from evenq.model import FilterExpression, MessageQueue
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import admin_pb2 as v2_admin
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq.wire.stubs.evenq.v1 import dead_letters_pb2 as dead

__all__ = ["ADMIN", "Answer", "QueryCalls"]

ADMIN = "/evenq.v1.Admin/"
DEAD_LETTERS = "/evenq.v1.DeadLetters/"
V2_ADMIN = "/apache.rocketmq.v2.Admin/"
FOUND_MAX = 1_000
REPLAY_MS_MAX = 86_400_000
"""A replay with a rate takes as long as it takes; a day at most."""

Answer = TypeVar("Answer")


class QueryCalls(Calls):
    """All raise what the response's status stands for."""

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
            raise BadRequest("an offset means nothing without its topic and queue: name both")
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
        return found_messages(await self.ask("FindMessages", request, admin_pb2.FindMessagesResponse))

    async def get_message(
        self, message_id: str, *, topic: str, queue: MessageQueue | None, offset: int | None, body_max: int
    ) -> MessageView:
        if bool(message_id) == (offset is not None):
            raise BadRequest("name a message by its id, or by its topic, queue and offset")
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
                f"no message with {what} is stored (any more); evenq message find TOPIC shows what is there{missing}"
            )
        return page.messages[0]

    async def trace_message(self, message_id: str, *, topic: str, group: str) -> TracesView:
        request = admin_pb2.TraceMessageRequest(topic=topic, message_id=message_id, group=group)
        response = await self.ask("TraceMessage", request, admin_pb2.TraceMessageResponse)
        return TracesView(traces=tuple(map(trace_view, response.traces)), silent=tuple(response.silent))

    async def list_clients(self, group: str) -> ClientsView:
        request = admin_pb2.ListClientsRequest(group=group)
        response = await self.ask("ListClients", request, admin_pb2.ListClientsResponse)
        return ClientsView(clients=tuple(map(client_view, response.clients)), silent=tuple(response.silent))

    async def describe_client(self, client_id: str) -> list[ClientView]:
        listed = await self.list_clients("")
        clients = [client for client in listed.clients if client.client_id == client_id]
        if not clients:
            missing = f"; brokers that did not answer: {', '.join(listed.silent)}" if listed.silent else ""
            raise NotFound(
                f"no client {client_id!r} talks to the cluster now; evenq client list shows who does{missing}"
            )
        return clients

    async def client_stack(self, client_id: str) -> str:
        request = v2_admin.PrintThreadStackTraceRequest(client_id=client_id)
        kind = v2_admin.PrintThreadStackTraceResponse
        return (await self.ask("PrintThreadStackTrace", request, kind, service=V2_ADMIN)).thread_stack_trace

    async def list_dead_letters(
        self, group: str, *, limit: int, bodies: bool, message_id: str, waiting: bool
    ) -> DeadLettersView:
        if limit < 0:
            raise BadRequest(f"limit is {limit} dead letters of each broker, the least is 0 (for 100)")
        request = dead.ListDeadLettersRequest(
            group=group, max=limit, bodies=bodies, message_id=message_id, waiting=waiting
        )
        return dead_letters(await self.ask("List", request, dead.ListDeadLettersResponse, service=DEAD_LETTERS))

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
        """The last word of each broker."""
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
                view = last[progress.broker_name] = replay_view(progress)
                if on_progress is not None:
                    on_progress(view)
        except ConnectionFailed as error:
            if not last:
                raise silence(error) from error
            raise ConnectionFailed(
                f"{error}; dead letters replayed until now are marked: start the replay again to continue"
            ) from error
        return [last[name] for name in sorted(last)]

    async def ask(self, rpc: str, request: Any, answer_type: type[Answer], *, service: str = ADMIN) -> Answer:
        """One call at the access point. Raises AccessPointSilent, RequestTimeout, what the status stands for."""
        made: Any = answer_type
        data = await self.at_access_point(service + rpc, request.SerializeToString())
        response = made.FromString(data)
        check(response.status)
        typed: Answer = response
        return typed
