"""Queries of the admin: messages, their history, clients, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

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
from evenq.model import FilterExpression, MessageQueue

if TYPE_CHECKING:
    from evenq.client.rpc.admin import AdminCalls


class AsyncQueries:
    """The part of `evenq.aio.Admin` that queries, and acts on a single message or client."""

    _calls: AdminCalls

    async def find_messages(
        self,
        topic: str,
        *,
        key: str = "",
        begin_ms: int = 0,
        end_ms: int = 0,
        queue: MessageQueue | None = None,
        offset: int | None = None,
        newest_first: bool = False,
        limit: int = 32,
        body_max: int = 0,
        after: Mapping[MessageQueue, int] | None = None,
    ) -> FoundMessagesView:
        """Returns stored messages of a topic, at most `limit` (1 to 1,000). No group's progress changes.

        Select by `key`, by time of storing (ms since the epoch; 0 = open), by `queue`, from `offset` of the queue on.
        Bodies are cut to `body_max` bytes (0 = whole). To continue, give `positions` of the previous result as `after`.
        Raises TopicNotFound, BadRequest.
        """
        return await self._calls.find_messages(
            topic,
            key=key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            queue=queue,
            offset=offset,
            newest_first=newest_first,
            limit=limit,
            body_max=body_max,
            after=after,
        )

    async def get_message(
        self,
        message_id: str = "",
        *,
        topic: str = "",
        queue: MessageQueue | None = None,
        offset: int | None = None,
        body_max: int = 0,
    ) -> MessageView:
        """Returns one message by its id, searched in all topics or in `topic`, or by its topic, queue and offset. The
        body is cut to `body_max` bytes (0 = whole). Raises MessageNotFound, TopicNotFound, BadRequest.
        """
        return await self._calls.get_message(message_id, topic=topic, queue=queue, offset=offset, body_max=body_max)

    async def peek_messages(
        self, topic: str, *, queue: MessageQueue | None = None, limit: int = 10, body_max: int = 0
    ) -> FoundMessagesView:
        """Returns the newest messages of a topic or `queue`, at most `limit` (1 to 1,000), as `find_messages` does."""
        return await AsyncQueries.find_messages(
            self, topic, queue=queue, newest_first=True, limit=limit, body_max=body_max
        )

    async def trace_message(self, message_id: str, *, topic: str = "", group: str = "") -> TracesView:
        """Returns the copies of a message and their states in each group. Raises MessageNotFound, GroupNotFound."""
        return await self._calls.trace_message(message_id, topic=topic, group=group)

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Cancels a delayed message before it is due; `recall_handle` is that of its `SendResult`. Returns the message
        id, also when called twice. Raises BadRequest if it is too late, or for a handle of another topic.
        """
        return await self._calls.recall_message(topic, recall_handle)

    async def list_scheduled(self, topic: str = "", *, limit: int = 100) -> ScheduledView:
        """Returns delayed messages that are not due yet, and messages of open transactions: of a topic or of all, those
        that are due next, at most `limit` (1 to 1,000). Raises TopicNotFound, BadRequest.
        """
        return await self._calls.list_scheduled(topic, limit=limit)

    async def check_again(self, queue: MessageQueue, offset: int) -> str:
        """Makes the brokers check a transaction again that they gave up. `queue`, `offset`: its message in the topic
        `TRANS_CHECK_MAX_TIME_TOPIC`. Returns the message id.

        The message is stored as an open transaction with its first id, and producers of its topic are called for the
        outcome as for a new one. The given-up copy stays. Raises MessageNotFound, BadRequest, PreconditionFailed (the
        broker takes it for a repeated send; try again a minute later), and errors of a send.
        """
        return await self._calls.begin_again(queue, offset)

    async def describe_caller(self) -> CallerView:
        """Returns the user of this client and its grants, as the broker that answers knows them."""
        return await self._calls.describe_caller()

    async def list_clients(self, *, group: str = "") -> ClientsView:
        """Returns producers and consumers of both protocols, or the members of one `group`."""
        return await self._calls.list_clients(group)

    async def describe_client(self, client_id: str) -> list[ClientView]:
        """Returns one client, once for each of its groups. Raises NotFound if it is not connected now."""
        return await self._calls.describe_client(client_id)

    async def client_stack(self, client_id: str) -> str:
        """Returns the stacks of a client's threads. Raises NotFound, RequestTimeout, NotImplementedYet."""
        return await self._calls.client_stack(client_id)

    async def list_dead_letters(
        self, group: str = "", *, limit: int = 100, bodies: bool = False, message_id: str = "", waiting: bool = False
    ) -> DeadLettersView:
        """Returns a group's newest dead letters, at most `limit` and 4 MiB per broker, and their number; without a
        group only the numbers of all groups. `waiting`: only those that were not replayed. `message_id`: only this one.
        """
        return await self._calls.list_dead_letters(
            group, limit=limit, bodies=bodies, message_id=message_id, waiting=waiting
        )

    async def replay_dead_letters(
        self,
        group: str,
        *,
        filter: str | FilterExpression = "*",  # noqa: A002  # the field's word
        to_topic: str = "",
        per_second: float = 0.0,
        limit: int = 0,
        dry_run: bool = False,
        on_progress: Callable[[ReplayView], None] | None = None,
    ) -> list[ReplayView]:
        """Sends dead letters again to the topics that they came from, or to `to_topic`, and waits until all is done, at
        most a day. Each is sent at most once, also when an interrupted replay is started again.

        `per_second` 0: no limit; `limit` 0: all. `dry_run` sends nothing: `would` of each result has the topics and
        numbers of messages. `on_progress` is called in the SDK's loop with each broker's newest count and must not
        block. Returns the last count of each broker. Raises GroupNotFound, BadRequest, ConnectionFailed.
        """
        return await self._calls.replay_dead_letters(
            group,
            expression=FilterExpression(filter) if isinstance(filter, str) else filter,
            to_topic=to_topic,
            per_second=per_second,
            limit=limit,
            dry_run=dry_run,
            on_progress=on_progress,
        )
