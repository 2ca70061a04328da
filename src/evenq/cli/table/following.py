"""`evenq table follow`: writes the files of a topic, or of all topics that are declared tables, as messages arrive."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from evenq.cli.contexts.settling import in_namespace
from evenq.cli.table.commands import make_backoff, topic_error, topic_export, untyped
from evenq.client.async_admin import Admin
from evenq.client.topic_source import TopicSource
from evenq.errors import Error, SettingsError
from evenq.model.names import table_topic
from evenq.runtime.allocator import use_one_arena
from evenq.runtime.backoff import Backoff
from evenq.serving.program.logs import errors_only, setup_logs
from evenq.serving.program.run import parent_watch
from evenq.tables.exporting import TopicExport

log = logging.getLogger(__name__)
EVERY_MS_MIN: Final = 100
LIST_EVERY_MS: Final = 5_000
"""Pause between two looks for topics that were declared tables."""


class FailureLog:
    """Failures of an export in a log: one line when a kind begins at a place, and one when the place works again."""

    def __init__(self, began: str = "%s is not exported, retrying: %s", ended: str = "%s is exported again") -> None:
        """`began`: text for a place and an error; `ended`: for the place."""
        self._began, self._ended = began, ended
        self._known: dict[str, type[Error]] = {}

    def now(self, failures: dict[str, Error]) -> None:
        """Logs what changed since the last call. `failures`: by queue or topic."""
        for place, error in failures.items():
            if self._known.get(place) is not type(error):
                self._known[place] = type(error)
                log.warning(self._began, place, error.message)
        for place in [place for place in self._known if place not in failures]:
            del self._known[place]
            log.info(self._ended, place)

    def forget(self, places: Iterable[str]) -> None:
        """Drops failures at places that are not tried any more, without a line."""
        for place in places:
            self._known.pop(place, None)


@dataclass(slots=True)
class _Followed:
    """One topic, whose failures delay itself only."""

    run: TopicExport | None = None
    backoff: Backoff = field(default_factory=make_backoff)
    due_ms: int = 0
    """Monotonic time of the next attempt."""
    failures: dict[str, Error] = field(default_factory=dict)
    """Of the last attempt, by queue or topic."""
    unreported: Error | None = None
    """Why brokers do not know the ends of its files."""


class _Follower:
    """The exports of all topics, one after the other: the memory of one file is needed at a time."""

    def __init__(self, options: argparse.Namespace, source: TopicSource, admin: Admin | None) -> None:
        """`admin`: lists the tables. None: the topic is an option; raises SettingsError, TableChanged."""
        self._options, self._source, self._admin = options, source, admin
        self._topics: dict[str, _Followed] = {}
        if admin is None:
            self._topics[options.topic] = _Followed(topic_export(options, options.topic, source, _log_file))
        self._listed_ms = -LIST_EVERY_MS
        self._failures = FailureLog()
        self._reports = FailureLog("retention of %s does not wait: %s", "retention of %s waits")
        self._lists = FailureLog("the %s cannot be read, retrying: %s", "the %s can be read again")
        self.stopping = asyncio.Event()

    def stop(self) -> None:
        self.stopping.set()
        for topic in self._topics.values():
            if topic.run is not None:
                topic.run.stopping = True

    async def turn(self) -> None:
        """Writes the files that can be written now. Failures are in the log."""
        if self._admin is not None:
            await self._list(self._admin)
        for name, topic in self._topics.items():
            if self.stopping.is_set() or self._source.clock.monotonic_ms() < topic.due_ms:
                continue
            await self._export(name, topic)
        self._failures.now({place: error for topic in self._topics.values() for place, error in topic.failures.items()})
        self._reports.now(
            {name: topic.unreported for name, topic in self._topics.items() if topic.unreported is not None}
        )

    async def _export(self, name: str, topic: _Followed) -> None:
        """Runs one turn of a topic."""
        try:
            if topic.run is None:
                topic.run = topic_export(self._options, name, self._source, _log_file)
            turn = await topic.run.turn()
            topic.failures = {str(queue): error for queue, error in turn.failures.items()}
            topic.unreported = turn.unreported
        except Error as error:
            topic.failures = {name: topic_error(error, name)}
        if topic.failures:
            topic.due_ms = self._source.clock.monotonic_ms() + topic.backoff.next_ms()
        else:
            topic.backoff.reset()

    async def _list(self, admin: Admin) -> None:
        """Finds the topics with a table group. The last list serves while no broker answers."""
        now_ms = self._source.clock.monotonic_ms()
        if now_ms < self._listed_ms + LIST_EVERY_MS:
            return
        first, self._listed_ms = self._listed_ms < 0, now_ms
        try:
            declared = (table_topic(one.group) for one in await admin.list_groups())
        except Error as error:
            self._lists.now({"list of groups": error})
            return
        self._lists.now({})
        topics = sorted(topic for topic in declared if topic and in_namespace(self._options.namespace, topic))
        if first or topics != [*self._topics]:
            hint = "none yet; declare one: evenq topic create TOPIC --table"
            log.info("topics with a table: %s", ", ".join(topics) or hint)
        for name in self._topics.keys() - topics:
            self._failures.forget(self._topics[name].failures)
            self._reports.forget([name])
        self._topics = {topic: self._topics.get(topic) or _Followed() for topic in topics}


def follow(options: argparse.Namespace) -> None:
    if options.topic is None and options.table_schema is not None:
        raise SettingsError("--table-schema belongs to one topic: name the topic")
    use_one_arena()
    setup_logs("INFO", program="table")
    try:
        with errors_only("evenq.client"):  # outages are logged here, once
            asyncio.run(_follow(options))
    except Error as error:
        raise topic_error(error, options.topic or "TOPIC") from error


async def _follow(options: argparse.Namespace) -> None:
    timeout_ms = options.timeout * 1000
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(TopicSource(endpoint=options.endpoint, timeout_ms=timeout_ms))
        admin = None
        if options.topic is None:
            admin = await stack.enter_async_context(Admin(endpoint=options.endpoint, timeout_ms=timeout_ms))
            await admin.list_groups()  # a wrong endpoint, or a missing right, ends the command
        else:
            await source.queues(options.topic)
        follower, loop = _Follower(options, source, admin), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, follower.stop)
        for watch in parent_watch(follower.stop):  # `evenq up --tables` was killed
            stack.callback(watch.cancel)
        every_ms = max(EVERY_MS_MIN, options.every)
        log.info("following %s into %s", options.topic or "all tables", options.to)
        while not follower.stopping.is_set():
            await follower.turn()
            with suppress(TimeoutError):
                await asyncio.wait_for(follower.stopping.wait(), every_ms / 1000)
        log.info("ended")


def _log_file(path: str, rows: int, misfits: int) -> None:
    log.info("wrote %s, %d rows%s", path, rows, untyped(misfits))
