"""Settings of groups as brokers tell them to each other, page by page (`loops.groups.settings`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evenq.model import BalancePolicy, GroupConfig
from evenq.model.retry import RetryPolicy
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import groups_pb2, peers_pb2
from evenq_broker.loops.wire.translation import balance_of, group_settings, retry_of

__all__ = ["PeerSettings", "SettingsPage", "ask_settings", "page_of", "settings_page"]

OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


class PeerSettings:
    """One group's settings as another broker tells them; nothing of them is checked yet."""

    __slots__ = ("_message", "group", "max_attempts", "ordered", "revised_ms", "start_from", "strategy")

    def __init__(self, group: str, message: groups_pb2.GroupSettings) -> None:
        self._message = message
        self.group = group
        self.ordered = message.ordered
        self.max_attempts = message.max_attempts
        self.strategy = message.strategy
        self.start_from = message.start_from
        self.revised_ms = message.revised_ms
        """When an operator asked for them, ms since the epoch."""

    def retry(self) -> RetryPolicy:
        """Raises BadRequest for what makes no sense."""
        return retry_of(self._message.retry)

    def balance(self) -> BalancePolicy:
        """Raises BadRequest for what makes no sense."""
        return balance_of(self._message.balance)


class SettingsPage(NamedTuple):
    """Some of a broker's groups, ascending by name."""

    groups: list[PeerSettings]
    more: bool
    """There are others behind them."""


def ask_settings(broker_name: str, *, back: bool, after: str) -> bytes:
    """Asks for the groups behind `after`. `back`: the one that is asked has just asked us."""
    return peers_pb2.GroupSettingsRequest(broker_name=broker_name, back=back, after=after).SerializeToString()


def page_of(response: bytes) -> SettingsPage:
    """The answer to `ask_settings`. Raises what its status says."""
    message = peers_pb2.GroupSettingsResponse.FromString(response)
    check(message.status)  # before the groups: a refusal must not look like a last page without any
    return SettingsPage([PeerSettings(entry.group, entry.settings) for entry in message.groups], message.more)


def settings_page(groups: Sequence[GroupConfig], *, more: bool) -> bytes:
    """The answer with these groups."""
    return peers_pb2.GroupSettingsResponse(
        status=OK,
        groups=[peers_pb2.NamedSettings(group=group.name, settings=group_settings(group)) for group in groups],
        more=more,
    ).SerializeToString()
