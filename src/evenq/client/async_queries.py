"""Looking, with the asyncio admin; see `evenq.client.queries`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from evenq.client.core.query_views import (
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
    """The part of `evenq.aio.Admin` that looks; see `evenq.Admin`."""

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
        """Stored messages of a topic; see `evenq.Admin.find_messages`."""
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
        """One message by its id, or by its place; see `evenq.Admin.get_message`."""
        return await self._calls.get_message(message_id, topic=topic, queue=queue, offset=offset, body_max=body_max)

    async def peek_messages(
        self, topic: str, *, queue: MessageQueue | None = None, limit: int = 10, body_max: int = 0
    ) -> FoundMessagesView:
        """The newest messages of a topic or of one `queue`, the newest first; see `evenq.Admin.peek_messages`."""
        return await self.find_messages(topic, queue=queue, newest_first=True, limit=limit, body_max=body_max)

    async def trace_message(self, message_id: str, *, topic: str = "", group: str = "") -> TracesView:
        """What became of a message; see `evenq.Admin.trace_message`."""
        return await self._calls.trace_message(message_id, topic=topic, group=group)

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a delayed message back before its time; see `evenq.Admin.recall_message`."""
        return await self._calls.recall_message(topic, recall_handle)

    async def list_clients(self, *, group: str = "") -> ClientsView:
        """Producers and consumers of both protocols, or the members of one `group`; see `evenq.Admin.list_clients`."""
        return await self._calls.list_clients(group)

    async def describe_client(self, client_id: str) -> list[ClientView]:
        """One client, once for each of its groups; see `evenq.Admin.describe_client`."""
        return await self._calls.describe_client(client_id)

    async def client_stack(self, client_id: str) -> str:
        """What a client's threads do, as its SDK tells it; see `evenq.Admin.client_stack`."""
        return await self._calls.client_stack(client_id)

    async def list_dead_letters(
        self, group: str = "", *, limit: int = 100, bodies: bool = False, message_id: str = "", waiting: bool = False
    ) -> DeadLettersView:
        """A group's newest dead letters; see `evenq.Admin.list_dead_letters`."""
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
        """Send dead letters once more, each at most once; see `evenq.Admin.replay_dead_letters`."""
        return await self._calls.replay_dead_letters(
            group, expression=FilterExpression(filter) if isinstance(filter, str) else filter, to_topic=to_topic,
            per_second=per_second, limit=limit, dry_run=dry_run, on_progress=on_progress,
        )  # fmt: skip
