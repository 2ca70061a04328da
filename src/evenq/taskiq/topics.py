"""Topics of tasks, created when they are missing.

A broker of evenq may create an unknown topic itself, but then with the type of its first message: a topic whose first
task is not delayed would refuse delayed ones. Each topic is looked up once per process.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Protocol

from evenq.client.core.admin.views import PlacementView, TopicDetails
from evenq.client.loops.clients.troubles import Troubles, is_permanent
from evenq.errors import Error, Forbidden, TopicNotFound, Unauthorized
from evenq.model import MessageType
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.taskiq.task_messages import TaskTopics

log = logging.getLogger(__name__)

PATIENCE_MS = 30_000
"""Time for which a start, or the first task of a topic, waits for a broker."""
KNOWN_MAX = 10_000
WITHOUT_GRANT = (Forbidden, Unauthorized)
WAITED_FOR = (TopicNotFound, *WITHOUT_GRANT)
"""Errors that end without a restart of a worker, once an operator creates the topic or the grant."""


class TopicCalls(Protocol):
    """The calls of an admin that this module needs."""

    async def describe_topic(self, topic: str) -> TopicDetails: ...

    async def create_topic(
        self, topic: str, *, queues: int = 0, message_type: MessageType | str | None = None
    ) -> list[PlacementView]: ...


class TopicCreator:
    """Looks up topics, and creates those that are missing."""

    def __init__(self, admin: TopicCalls, topics: TaskTopics, *, who: str, clock: Clock, rng: random.Random) -> None:
        """`who` begins the log lines, such as `group workers`."""
        self._admin = admin
        self._topics = topics
        self._clock = clock
        self._rng = rng
        self._troubles = Troubles(clock, who=who)
        self._known: set[str] = set()
        self._turn = asyncio.Lock()

    async def ensure(self, topic: str) -> None:
        """Creates the topic if it does not exist. Waits up to 30 s for a broker that answers, then raises its error.
        Raises Forbidden if the topic does not exist and the caller may not create it.
        """
        await self._ensure(topic, until_ms=self._clock.monotonic_ms() + PATIENCE_MS)

    async def ensure_patiently(self, topic: str) -> None:
        """Does the same for a worker, which outlasts its operators' changes: waits for a broker, for the topic, or for
        the grant to create it, and logs that once.
        """
        await self._ensure(topic, until_ms=None)

    async def _ensure(self, topic: str, until_ms: int | None) -> None:
        pauses = Backoff(self._rng, first_ms=100, max_ms=2_000)
        while topic not in self._known:
            try:
                async with self._turn:
                    if topic not in self._known:
                        await self._look(topic)
            except Error as error:
                if until_ms is None:
                    ends = is_permanent(error) and not isinstance(error, WAITED_FOR)
                else:
                    ends = not error.retryable or self._clock.monotonic_ms() >= until_ms
                if ends:
                    raise
                self._troubles.failed(f"looking for topic {topic}", error)
                await self._clock.sleep_ms(pauses.next_ms())
            else:
                self._troubles.well(f"looking for topic {topic}")
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known.add(topic)

    async def _look(self, topic: str) -> None:
        wanted = self._topics.kind(topic)
        try:
            details = await self._admin.describe_topic(topic)
        except TopicNotFound:
            queues = self._topics.priorities if wanted is MessageType.PRIORITY else 0
            try:
                await self._admin.create_topic(topic, queues=queues, message_type=wanted)
            except WITHOUT_GRANT as error:
                command = f"evenq topic create {topic} --type {wanted}" + (f" --queues {queues}" if queues else "")
                raise Forbidden(
                    f"topic {topic} does not exist, and {error}. Create it with `{command}`, or grant `create` on "
                    f"topic:{topic}"
                ) from error
            log.info("created topic %s for %s messages", topic, wanted)
            return
        except WITHOUT_GRANT as error:  # sending or receiving needs no such grant
            log.info("topic %s is not looked up: %s", topic, error)
            return
        if details.message_type is not wanted:
            log.warning(
                "topic %s takes %s messages, tasks may need %s; %s",
                topic,
                details.message_type,
                wanted,
                f"`evenq topic create {topic} --type MIXED` lets it take delayed tasks"
                if wanted is MessageType.MIXED
                else "use another topic for tasks with priorities",
            )
