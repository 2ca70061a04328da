"""An admin client whose answers a test sets, and views with the fields that figures read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import BrokerView, ClusterView, GroupView, TopicView
from evenq.errors import ConnectionFailed, Error
from evenq.model import MessageType
from evenq.runtime.clock import FakeClock

Value = TypeVar("Value")


class FakeAdmin:
    """Answers three calls; an Error is raised. Each answer takes `takes_ms` of the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clusters: ClusterView | Error = cluster()
        self.topics: list[TopicView] | Error = []
        self.groups: list[GroupView] | Error = []
        self.takes_ms = 0
        self.calls = 0
        self._clock = clock

    @property
    def client(self) -> Admin:
        return cast("Admin", self)

    async def describe_cluster(self) -> ClusterView:
        return await self._answer(self.clusters)

    async def list_topics(self) -> list[TopicView]:
        return await self._answer(self.topics)

    async def list_groups(self) -> list[GroupView]:
        return await self._answer(self.groups)

    def fail(self) -> None:
        self.clusters = self.topics = self.groups = ConnectionFailed("no broker answers")

    async def _answer(self, value: Value | Error) -> Value:
        self.calls += 1
        if self.takes_ms:
            await self._clock.sleep_ms(self.takes_ms)
        if isinstance(value, Error):
            raise value
        return value


def cluster(brokers: Iterable[BrokerView] = (), **fields: Any) -> ClusterView:
    values: dict[str, Any] = {
        "cluster": "default",
        "brokers": tuple(brokers),
        "nameservers": (),
        "rebalancer": "",
        "rebalancer_answers": False,
        "topics": 0,
        "groups": 0,
    }
    return ClusterView(**(values | fields))


def broker(name: str = "a", *, messages_in: int = 0, messages_out: int = 0, answered: bool = True) -> BrokerView:
    return BrokerView(
        name=name,
        broker_id=0,
        cluster="default",
        addresses=(),
        version="1",
        start_ms=1,
        topics=0,
        messages_in=messages_in,
        messages_out=messages_out,
        log_bytes=0,
        connections=0,
        answered=answered,
    )


def topic(name: str, messages: int = 0) -> TopicView:
    return TopicView(topic=name, message_type=MessageType.NORMAL, brokers=1, queues=1, messages=messages)


def group(name: str, lag: int = 0, *, silent: tuple[str, ...] = ()) -> GroupView:
    return GroupView(
        group=name, ordered=False, max_attempts=1, strategy="", members=0, topics=0, lag=lag, silent=silent
    )
