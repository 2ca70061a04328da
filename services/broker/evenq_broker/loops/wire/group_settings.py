"""Group settings as brokers send them to each other, page by page (`loops.groups.settings`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evenq.model import BalancePolicy, GroupConfig
from evenq.model.retry import RetryPolicy
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import groups_pb2, peers_pb2
from evenq_broker.loops.wire.translation import balance_of, group_settings, retry_of

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


class PeerSettings:
    """One group's settings from another broker, unchecked."""

    __slots__ = ("_message", "group", "max_attempts", "ordered", "revised_ms", "start_from", "strategy")

    def __init__(self, group: str, message: groups_pb2.GroupSettings) -> None:
        self._message = message
        self.group = group
        self.ordered = message.ordered
        self.max_attempts = message.max_attempts
        self.strategy = message.strategy
        self.start_from = message.start_from
        self.revised_ms = message.revised_ms
        """When an operator requested them, ms since the epoch."""

    def retry(self) -> RetryPolicy:
        """Returns the retry policy. Raises BadRequest for an invalid one."""
        return retry_of(self._message.retry)

    def balance(self) -> BalancePolicy:
        """Returns the balance policy. Raises BadRequest for an invalid one."""
        return balance_of(self._message.balance)


class SettingsPage(NamedTuple):
    """Some of a broker's groups, ascending by name."""

    groups: list[PeerSettings]
    more: bool


def ask_settings(broker_name: str, *, back: bool, after: str) -> bytes:
    """Queries the groups behind `after`. `back`: the called broker has just called this one."""
    return peers_pb2.GroupSettingsRequest(broker_name=broker_name, back=back, after=after).SerializeToString()


def page_of(response: bytes) -> SettingsPage:
    """Returns the answer to `ask_settings`. Raises the error of its status."""
    message = peers_pb2.GroupSettingsResponse.FromString(response)
    check(message.status)  # before the groups: a rejection must not look like a last page without any
    return SettingsPage([PeerSettings(entry.group, entry.settings) for entry in message.groups], message.more)


def settings_page(groups: Sequence[GroupConfig], *, more: bool) -> bytes:
    """Returns the answer with these groups."""
    return peers_pb2.GroupSettingsResponse(
        status=OK,
        groups=[peers_pb2.NamedSettings(group=group.name, settings=group_settings(group)) for group in groups],
        more=more,
    ).SerializeToString()
