"""The asyncio admin, `evenq.aio.Admin`, and what it shares with the sync one.

async with evenq.aio.Admin(endpoint="127.0.0.1:8081") as admin:
    await admin.create_topic("orders", queues=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenq.client.async_queries import AsyncQueries
from evenq.client.core.broker_group_views import BrokerGroupView, LeaderMoveView, UncleanPlanView
from evenq.client.core.views import (
    BrokerView,
    ClusterView,
    DiagnosisView,
    DrainView,
    ExplainView,
    GroupDetails,
    GroupQueueView,
    GroupView,
    LiteTopicView,
    MissingBrokerView,
    OffsetMoveView,
    PlacementView,
    ResizeView,
    ScaleInView,
    SimulationView,
    TopicDetails,
    TopicView,
    WithdrawView,
)
from evenq.client.faces import AsyncFace, SdkClient
from evenq.client.loops.changing_copies import copies_grown, copy_removed, copy_replaced, must_accept
from evenq.client.loops.moving import leader_moved
from evenq.client.loops.resizing import drained, scaled, withdrawn
from evenq.client.loops.scale_in import scale_in_checked
from evenq.client.plans import permission_of, reset_target, topic_type
from evenq.client.wiring import ClientContext, admin_calls, new_client_id
from evenq.model import BalancePolicy, MessageQueue, MessageType, Permission
from evenq.model.retry import RetryPolicy
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["Admin", "AdminClient"]


class AdminClient(SdkClient):
    """An admin, as both faces have it."""

    def __init__(
        self,
        *,
        endpoint: str = "",
        timeout_ms: int = 10_000,
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """Usable at once. `endpoint` as of `evenq.Producer`; `timeout_ms` bounds each call."""
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self._calls = self._in_loop(admin_calls, self._context, new_client_id(self._context.clock), timeout_ms)


class Admin(AsyncQueries, AsyncFace, AdminClient):
    """Topics, groups, brokers; see `evenq.Admin`."""

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 0,
        message_type: MessageType | str | None = None,
        brokers: Mapping[str, int] | None = None,
        retention_ms: int | None = None,
    ) -> list[PlacementView]:
        """On every broker with equal counts (TQ-2), or on chosen ones; see `evenq.Admin.create_topic`."""
        return await self._calls.create_topic(
            topic, queues, topic_type(message_type), brokers=brokers, retention_ms=retention_ms
        )

    async def delete_topic(self, topic: str) -> None:
        """With all its messages."""
        await self._calls.delete_topic(topic)

    async def list_topics(self, *, include_system: bool = False) -> list[TopicView]:
        """All topics of the cluster."""
        return await self._calls.list_topics(include_system=include_system)

    async def list_lite_topics(self) -> list[LiteTopicView]:
        """The lite topics of LITE topics, one for each broker that has it; 10,000 at most."""
        return await self._calls.list_lite_topics()

    async def describe_topic(self, topic: str) -> TopicDetails:
        """Its queues and who reads them."""
        return await self._calls.describe_topic(topic)

    async def scale_topic(
        self,
        topic: str,
        *,
        queues: int,
        broker: str = "",
        force: bool = False,
        close_unread: bool = False,
        dry_run: bool = False,
        wait_ms: int = 0,
    ) -> list[ResizeView]:
        """More or fewer queues per broker; see `evenq.Admin.scale_topic`."""
        return await scaled(
            self._calls, self._context.clock, topic, queues, broker=broker, force=force, close_unread=close_unread,
            dry_run=dry_run, wait_ms=wait_ms,
        )  # fmt: skip

    async def withdraw_topic(
        self,
        topic: str,
        *,
        broker: str,
        close_unread: bool = False,
        force: bool = False,
        dry_run: bool = False,
        wait_ms: int = 0,
    ) -> WithdrawView:
        """Let a topic leave one of its brokers; see `evenq.Admin.withdraw_topic`."""
        return await withdrawn(
            self._calls, self._context.clock, topic, broker, close_unread=close_unread, force=force, dry_run=dry_run,
            wait_ms=wait_ms,
        )  # fmt: skip

    async def permit_topic(self, topic: str, permission: Permission | str, *, broker: str = "") -> list[ResizeView]:
        """What its queues are for: READ_WRITE, READ, WRITE or NONE."""
        return await self._calls.permit_topic(topic, permission_of(permission), broker=broker)

    async def drain_broker(self, broker: str, *, wait_ms: int = 0) -> DrainView:
        """No new messages there, so that it may be stopped once it is `empty`; see `evenq.Admin.drain_broker`."""
        return await drained(self._calls, self._context.clock, broker, wait_ms=wait_ms)

    async def resume_broker(self, broker: str) -> DrainView:
        """Let a drained broker take messages again."""
        return await self._calls.drain_broker(broker, resume=True)

    async def create_group(
        self,
        group: str,
        *,
        ordered: bool | None = None,
        max_attempts: int = 0,
        strategy: str = "",
        start_from: str = "",
        retry: RetryPolicy | None = None,
        balance: BalancePolicy | None = None,
    ) -> tuple[str, ...]:
        """Create on every broker, or change: what is not given stays; see `evenq.Admin.create_group`."""
        return await self._calls.create_group(
            group, ordered=ordered, max_attempts=max_attempts, strategy=strategy, start_from=start_from, retry=retry,
            balance=balance,
        )  # fmt: skip

    async def delete_group(self, group: str) -> None:
        """With all its progress."""
        await self._calls.delete_group(group)

    async def list_groups(self) -> list[GroupView]:
        """All consumer groups of the cluster."""
        return await self._calls.list_groups()

    async def describe_group(self, group: str) -> GroupDetails:
        """Its members, and its progress in each queue."""
        return await self._calls.describe_group(group)

    async def explain_group(self, group: str, *, topic: str = "") -> ExplainView:
        """Who has which queue, since when and why; see `evenq.Admin.explain_group`."""
        return await self._calls.explain_group(group, topic)

    async def simulate_group(
        self,
        group: str,
        *,
        topic: str = "",
        members: int = 0,
        queues: int = 0,
        strategy: str = "",
        lose_zone: str = "",
    ) -> list[SimulationView]:
        """What would change if; see `evenq.Admin.simulate_group`."""
        return await self._calls.simulate_group(
            group, topic=topic, members=members, queues=queues, strategy=strategy, lose_zone=lose_zone
        )

    async def diagnose_group(self, group: str, *, watch_ms: int = 0, stuck_ms: int = 0) -> DiagnosisView:
        """What is wrong with it, each finding with one fix; see `evenq.Admin.diagnose_group`."""
        return await self._calls.diagnose_group(group, watch_ms=watch_ms, stuck_ms=stuck_ms)

    async def reset_offsets(
        self,
        group: str,
        *,
        topic: str = "",
        queues: Sequence[MessageQueue] = (),
        to: str | int = "latest",
        timestamp_ms: int | None = None,
        skip: int | None = None,
        like_group: str = "",
        dry_run: bool = True,
    ) -> list[OffsetMoveView]:
        """Move a live group on all brokers; see `evenq.Admin.reset_offsets`."""
        target, value = reset_target(to, timestamp_ms, skip, like_group)
        return await self._calls.reset_offsets(
            group, topic=topic, queues=queues, to=target, value=value, source_group=like_group, dry_run=dry_run
        )

    async def group_offsets(self, group: str, *, topic: str = "") -> list[GroupQueueView]:
        """Where a group is on each queue of all its topics, or of one; queues of brokers that are away are left out
        (`describe_group` names those). Raises GroupNotFound.
        """
        return await self._calls.group_offsets(group, topic)

    async def skip_offsets(
        self,
        group: str,
        *,
        topic: str = "",
        queues: Sequence[MessageQueue] = (),
        count: int | None = None,
        dry_run: bool = True,
    ) -> list[OffsetMoveView]:
        """Move a group over the next `count` messages of each queue, or over all there are; otherwise as
        `reset_offsets`.
        """
        return await self.reset_offsets(group, topic=topic, queues=queues, to="latest", skip=count, dry_run=dry_run)

    async def clone_offsets(
        self,
        group: str,
        *,
        like_group: str,
        topic: str = "",
        queues: Sequence[MessageQueue] = (),
        dry_run: bool = True,
    ) -> list[OffsetMoveView]:
        """Move a group to where `like_group` is; queues that it never read stay. Otherwise as `reset_offsets`."""
        return await self.reset_offsets(group, topic=topic, queues=queues, like_group=like_group, dry_run=dry_run)

    async def list_brokers(self) -> list[BrokerView]:
        """All live brokers."""
        return await self._calls.list_brokers()

    async def list_missing_brokers(self) -> list[MissingBrokerView]:
        """Brokers that others knew and that are not there; see `evenq.Admin.list_missing_brokers`."""
        return await self._calls.list_missing_brokers()

    async def check_scale_in(self, brokers: Sequence[str], *, allow_unread: bool = False) -> list[ScaleInView]:
        """Whether brokers may be taken away; see `evenq.Admin.check_scale_in`."""
        return await scale_in_checked(self._calls, brokers, allow_unread=allow_unread)

    async def forget_broker(self, broker: str) -> None:
        """Let the others forget a broker that is gone for good; see `evenq.Admin.forget_broker`."""
        await self._calls.forget_broker(broker)

    async def move_leader(self, broker: str, *, to: int | None = None, wait_ms: int = 10_000) -> LeaderMoveView:
        """Let another copy of a broker group lead; see `evenq.Admin.move_leader`."""
        return await leader_moved(self._calls, self._context.clock, broker, to=to, wait_ms=wait_ms)

    async def add_copy(self, broker: str, copy: int, address: str) -> BrokerGroupView:
        """Add a copy to a broker group; see `evenq.Admin.add_copy`."""
        return await self._calls.add_copy(broker, copy, address)

    async def remove_copy(self, broker: str, copy: int) -> BrokerGroupView:
        """Remove a copy from a broker group; see `evenq.Admin.remove_copy`."""
        return await copy_removed(self._calls, self._context.clock, broker, copy)

    async def replace_copy(
        self, broker: str, copy: int, *, new: int, address: str, wait_ms: int = 600_000
    ) -> BrokerGroupView:
        """Add one copy, then remove another one; see `evenq.Admin.replace_copy`."""
        clock = self._context.clock
        return await copy_replaced(self._calls, clock, broker, copy, new=new, address=address, wait_ms=wait_ms)

    async def grow_copies(
        self, broker: str, members: Mapping[int, str], *, in_sync_min: int, wait_ms: int = 600_000
    ) -> BrokerGroupView:
        """Add the copies that a broker group lacks; see `evenq.Admin.grow_copies`."""
        clock = self._context.clock
        return await copies_grown(self._calls, clock, broker, members, in_sync_min=in_sync_min, wait_ms=wait_ms)

    async def set_in_sync_min(self, broker: str, copies: int) -> BrokerGroupView:
        """This many copies must be in sync; see `evenq.Admin.set_in_sync_min`."""
        return await self._calls.set_in_sync_min(broker, copies)

    async def plan_unclean_election(
        self, broker: str, *, copy: int | None = None, reason: str = "", despite_better: bool = False
    ) -> UncleanPlanView:
        """What an unclean election would lose; see `evenq.Admin.plan_unclean_election`."""
        return await self._calls.elect_unclean(
            broker, copy, accept_data_loss=False, reason=reason, despite_better=despite_better, epoch=0
        )

    async def elect_unclean(
        self, broker: str, copy: int, *, accept_data_loss: bool, reason: str = "", despite_better: bool = False,
        epoch: int = 0,
    ) -> UncleanPlanView:  # fmt: skip
        """Let a copy lead that lacks acknowledged messages; see `evenq.Admin.elect_unclean`."""
        must_accept(accept_data_loss)
        return await self._calls.elect_unclean(
            broker, copy, accept_data_loss=True, reason=reason, despite_better=despite_better, epoch=epoch
        )

    async def describe_cluster(self) -> ClusterView:
        """The cluster at a glance."""
        return await self._calls.describe_cluster()

    async def close(self) -> None:
        """End the connections."""
        await self._context.let_go(self._calls.net)
