"""Queries of the admin: messages, their history, clients, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from evenq.client.core.admin.query_views import (
    ClientsView,
    ClientView,
    DeadLettersView,
    FoundMessagesView,
    MessageView,
    ReplayView,
    TracesView,
)
from evenq.model import FilterExpression, MessageQueue

if TYPE_CHECKING:
    from evenq.client.rpc.admin import AdminCalls

__all__ = ["AsyncQueries"]


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
        """Stored messages of a topic, at most `limit` (1 to 1,000), without a group and without changing anything.

        By `key`, by the time they were stored (ms since the epoch; 0 = open), of one `queue`, from its `offset` on.
        Bodies are cut to `body_max` bytes (0 = whole). `after` is `positions` of the previous result, to continue.
        Raises TopicNotFound, BadRequest.
        """
        return await self._calls.find_messages(
            topic, key=key, begin_ms=begin_ms, end_ms=end_ms, queue=queue, offset=offset, newest_first=newest_first,
            limit=limit, body_max=body_max, after=after,
        )  # fmt: skip

    async def get_message(
        self,
        message_id: str = "",
        *,
        topic: str = "",
        queue: MessageQueue | None = None,
        offset: int | None = None,
        body_max: int = 0,
    ) -> MessageView:
        """One message by its id, searched in all topics or in `topic`, or by its topic, queue and offset. The body is
        cut to `body_max` bytes (0 = whole). Raises MessageNotFound, TopicNotFound, BadRequest.
        """
        return await self._calls.get_message(message_id, topic=topic, queue=queue, offset=offset, body_max=body_max)

    async def peek_messages(
        self, topic: str, *, queue: MessageQueue | None = None, limit: int = 10, body_max: int = 0
    ) -> FoundMessagesView:
        """The newest messages of a topic or of one `queue`, the newest first, at most `limit` (1 to 1,000). Raises
        TopicNotFound, BadRequest.
        """
        return await AsyncQueries.find_messages(
            self, topic, queue=queue, newest_first=True, limit=limit, body_max=body_max
        )

    async def trace_message(self, message_id: str, *, topic: str = "", group: str = "") -> TracesView:
        """The history of a message: where its copies are stored, and each group's state on them (or that of `group`).
        Raises MessageNotFound, GroupNotFound.
        """
        return await self._calls.trace_message(message_id, topic=topic, group=group)

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Recall a delayed message before it is due; `recall_handle` is that of its `SendResult`. Returns its id, also
        when done twice. Raises BadRequest when it is too late, or for a handle of another topic.
        """
        return await self._calls.recall_message(topic, recall_handle)

    async def list_clients(self, *, group: str = "") -> ClientsView:
        """Producers and consumers of both protocols, or the members of one `group`."""
        return await self._calls.list_clients(group)

    async def describe_client(self, client_id: str) -> list[ClientView]:
        """One client, once for each of its groups. Raises NotFound if it does not talk to the cluster now."""
        return await self._calls.describe_client(client_id)

    async def client_stack(self, client_id: str) -> str:
        """The stacks of a client's threads, as its SDK reports them. Raises NotFound, and RequestTimeout or
        NotImplementedYet when the client does not answer.
        """
        return await self._calls.client_stack(client_id)

    async def list_dead_letters(
        self, group: str = "", *, limit: int = 100, bodies: bool = False, message_id: str = "", waiting: bool = False
    ) -> DeadLettersView:
        """A group's newest dead letters, at most `limit` of each broker, and how many there are; without a group only
        the counts of all. `waiting`: only those that were not replayed; `message_id`: only this one.
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
        """Send dead letters once more to the topics that they came from, or to `to_topic`; each is sent at most once,
        also when an interrupted replay is started again. Waits until all is done, a day at most.

        `per_second` 0: as fast as it goes; `limit` 0: all. `dry_run` sends nothing: `would` of each result says what
        there is to send and where to. `on_progress` is called in the SDK's loop with each broker's newest count and
        must not wait. Returns the last count of each broker. Raises GroupNotFound, BadRequest, ConnectionFailed.
        """
        return await self._calls.replay_dead_letters(
            group, expression=FilterExpression(filter) if isinstance(filter, str) else filter, to_topic=to_topic,
            per_second=per_second, limit=limit, dry_run=dry_run, on_progress=on_progress,
        )  # fmt: skip
