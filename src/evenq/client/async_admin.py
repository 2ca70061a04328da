"""The asyncio admin, `evenq.aio.Admin`: topics, groups, brokers of a cluster, through any broker.

async with evenq.aio.Admin(endpoint="127.0.0.1:8081") as admin:
    await admin.create_topic("orders", queues=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenq.client.async_queries import AsyncQueries
from evenq.client.core.admin.broker_group_views import BrokerGroupView, LeaderMoveView, UncleanPlanView
from evenq.client.core.admin.views import (
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
from evenq.client.loops.admin.changing_copies import copies_grown, copy_removed, copy_replaced, must_accept
from evenq.client.loops.admin.moving import leader_moved
from evenq.client.loops.admin.resizing import drained, scaled, withdrawn
from evenq.client.loops.admin.scale_in import scale_in_checked
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
    """Every call raises the server's error: TopicNotFound, IllegalTopic, GroupNotFound, ConnectionFailed ...

    A method calls another one by its class: `self` may be the sync admin.
    """

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 0,
        message_type: MessageType | str | None = None,
        brokers: Mapping[str, int] | None = None,
        retention_ms: int | None = None,
    ) -> list[PlacementView]:
        """Create a topic on every broker with equal numbers of queues (TQ-2), or on chosen ones; `queues` per broker, 0
        = the server's default.

        `brokers` names the brokers that get it, each with its number of queues (0 = `queues`), for example
        `{"broker-a": 8, "broker-b": 2}` (TQ-4); such a topic stays there, also when it is created again without
        `brokers`. An existing topic gets more queues or keeps them, never fewer. `message_type` None: NORMAL, or
        unchanged; a NORMAL, FIFO, DELAY or TRANSACTION topic may become MIXED and accepts all four kinds from then on.
        `retention_ms` is how long messages are kept: 0 = for ever, -1 = the server's setting, None = unchanged. Returns
        the brokers that have it; one that failed has an `error`. Raises IllegalTopic, BadRequest, MessageTypeConflict,
        NotFound for an unknown broker.
        """
        return await self._calls.create_topic(
            topic, queues, topic_type(message_type), brokers=brokers, retention_ms=retention_ms
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its messages."""
        await self._calls.delete_topic(topic)

    async def list_topics(self, *, include_system: bool = False) -> list[TopicView]:
        """All topics of the cluster."""
        return await self._calls.list_topics(include_system=include_system)

    async def list_lite_topics(self) -> list[LiteTopicView]:
        """The lite topics of LITE topics, one for each broker that has it; 10,000 at most."""
        return await self._calls.list_lite_topics()

    async def describe_topic(self, topic: str) -> TopicDetails:
        """Its queues and the groups that read them."""
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
        """Give the topic more or fewer queues (1 to 4,096 per broker), on all brokers that have it or on `broker`.

        Additional queues are open at once. Removed ones accept no messages any more, and are closed once every group
        has read them (RT-8), or at once with `force`. Messages that no group has read at all keep them open, too,
        because a later group would miss them, unless `close_unread`. `dry_run` changes nothing and returns what is in
        the queues that would be closed. `wait_ms` 0 does one step and returns what is left (each view's `done`; call
        again to continue), else it waits at most that time and then raises RequestTimeout. Raises TopicNotFound,
        BadRequest, and ConnectionFailed for a broker that did not carry it out.
        """
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
        """Remove a topic from one of its brokers: nothing more is sent to it there, and when every group has read its
        messages there, the topic and its messages are deleted on that broker. Not for the last broker of a topic.

        Messages that no group reads keep it there, unless `close_unread`; so do delayed messages and open transactions
        of the broker; `force` removes it in any case, with unread messages. `dry_run` changes nothing and returns what
        is there. `wait_ms` 0 does one step and returns what is left (`gone` is False; call again to continue), else it
        waits at most that time and then raises RequestTimeout. To stop half-way: `permit_topic(topic, "read-write",
        broker=broker)`. Raises TopicNotFound, NotFound, BadRequest.
        """
        return await withdrawn(
            self._calls, self._context.clock, topic, broker, close_unread=close_unread, force=force, dry_run=dry_run,
            wait_ms=wait_ms,
        )  # fmt: skip

    async def permit_topic(self, topic: str, permission: Permission | str, *, broker: str = "") -> list[ResizeView]:
        """Set the permission of its queues, on all brokers that have it or on `broker`: READ_WRITE, READ (no sending),
        WRITE (no reading) or NONE. Raises TopicNotFound, BadRequest, ConnectionFailed for a broker that did not carry
        it out.
        """
        return await self._calls.permit_topic(topic, permission_of(permission), broker=broker)

    async def drain_broker(self, broker: str, *, wait_ms: int = 0) -> DrainView:
        """Let a broker accept no new messages while those it has are read; it may be stopped once it is `empty`.
        `wait_ms` as for `scale_topic`. The state survives restarts of the broker, until `resume_broker`.
        """
        return await drained(self._calls, self._context.clock, broker, wait_ms=wait_ms)

    async def resume_broker(self, broker: str) -> DrainView:
        """Let a drained broker accept messages again."""
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
        """Create a group on every broker, or change it: arguments left out stay unchanged, or are the default of a new
        group (not ordered, 17 attempts, no strategy for QueryAssignment, LAST, the classic pauses, even shares).
        `start_from` is LAST or FIRST; `retry` (`evenq.model.retry`) says how long a failed message waits, `balance`
        (`evenq.model.balance`) how a rebalancer shares the queues. `strategy` NONE removes the group's own: members
        divide the queues themselves again. Returns warnings: sentences about settings that may not work as intended.
        Raises BadRequest for a strategy that is unknown, or that a server cannot follow (CONFIG; MACHINE_ROOM without a
        rebalancer).
        """
        return await self._calls.create_group(
            group, ordered=ordered, max_attempts=max_attempts, strategy=strategy, start_from=start_from, retry=retry,
            balance=balance,
        )  # fmt: skip

    async def delete_group(self, group: str) -> None:
        """Delete a group with all its progress."""
        await self._calls.delete_group(group)

    async def list_groups(self) -> list[GroupView]:
        """All consumer groups of the cluster."""
        return await self._calls.list_groups()

    async def describe_group(self, group: str) -> GroupDetails:
        """Its members, and its progress in each queue."""
        return await self._calls.describe_group(group)

    async def explain_group(self, group: str, *, topic: str = "") -> ExplainView:
        """Which member has which queue, since when and why, for all its topics or for one. Without a rebalancer: which
        member holds which lock, and `decides` says so. Raises GroupNotFound.
        """
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
        """Changes of the assignment with other numbers of `members` or `queues` per broker, another `strategy`, or
        without the members and brokers of a zone; one result per topic. Nothing is changed. Raises BadRequest if no
        such argument is given or nothing was decided yet, NotImplementedYet without a rebalancer.
        """
        return await self._calls.simulate_group(
            group, topic=topic, members=members, queues=queues, strategy=strategy, lose_zone=lose_zone
        )

    async def diagnose_group(self, group: str, *, watch_ms: int = 0, stuck_ms: int = 0) -> DiagnosisView:
        """Problems of a group, each with one fix; without findings it is healthy. A finding that may be
        momentary counts if it is still there after `watch_ms` (0 = 1,500, at most 10,000); a queue is stuck after
        `stuck_ms` (0 = the broker's setting). Raises GroupNotFound, BadRequest.
        """
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
        """Move a group, with running members or without, on all brokers; one result per queue. Only a plan unless
        `dry_run=False`.

        Where: `to` is `earliest`, `latest` or an offset; or the first message stored at `timestamp_ms` (since the
        epoch) or later; or `skip` messages forward; or to the offsets of `like_group`. Without a topic: all topics that
        the group has read; with `queues`: only these, all of `topic`. Raises GroupNotFound, TopicNotFound, BadRequest.
        """
        target, value = reset_target(to, timestamp_ms, skip, like_group)
        return await self._calls.reset_offsets(
            group, topic=topic, queues=queues, to=target, value=value, source_group=like_group, dry_run=dry_run
        )

    async def group_offsets(self, group: str, *, topic: str = "") -> list[GroupQueueView]:
        """The offsets of a group on each queue of all its topics, or of one; queues of unreachable brokers are left out
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
        return await Admin.reset_offsets(
            self, group, topic=topic, queues=queues, to="latest", skip=count, dry_run=dry_run
        )

    async def clone_offsets(
        self,
        group: str,
        *,
        like_group: str,
        topic: str = "",
        queues: Sequence[MessageQueue] = (),
        dry_run: bool = True,
    ) -> list[OffsetMoveView]:
        """Move a group to the offsets of `like_group`; queues that `like_group` never read are not moved. Otherwise as
        `reset_offsets`.
        """
        return await Admin.reset_offsets(
            self, group, topic=topic, queues=queues, like_group=like_group, dry_run=dry_run
        )

    async def list_brokers(self) -> list[BrokerView]:
        """All live brokers."""
        return await self._calls.list_brokers()

    async def list_missing_brokers(self) -> list[MissingBrokerView]:
        """Brokers that others knew and that are missing, with the messages they hold. In ascending order of name."""
        return await self._calls.list_missing_brokers()

    async def check_scale_in(self, brokers: Sequence[str], *, allow_unread: bool = False) -> list[ScaleInView]:
        """Whether brokers may be removed: each result's `problem` is empty if nothing that its broker holds would be
        missed. It has to be drained and read to the end, and another broker has to accept messages; with `allow_unread`
        it may hold messages that no group ever read, and dead letters. Changes nothing.
        """
        return await scale_in_checked(self._calls, brokers, allow_unread=allow_unread)

    async def forget_broker(self, broker: str) -> None:
        """Let all brokers forget one that is gone for good: it is no longer missing, and its messages come back only if
        it does. Raises NotFound if it is not missing, PreconditionFailed if it is running.
        """
        await self._calls.forget_broker(broker)

    async def move_leader(self, broker: str, *, to: int | None = None, wait_ms: int = 10_000) -> LeaderMoveView:
        """Let another copy of a broker group lead: the copy `to`, or the best of those in sync. Clients wait for a
        moment, nothing is lost and nothing repeated. Waits until it serves, `wait_ms` at most. Raises NotFound (no
        such group or copy), PreconditionFailed (the copy is not in sync, there is one copy, or no copy leads); then
        nothing has changed.
        """
        return await leader_moved(self._calls, self._context.clock, broker, to=to, wait_ms=wait_ms)

    async def add_copy(self, broker: str, copy: int, address: str) -> BrokerGroupView:
        """Add a copy to a broker group that runs: its number, and `host:port` at which the other copies reach it. It
        begins with an empty folder, copies, and counts once it has everything. Gives the group as it is then. Raises
        NotFound (no such group), PreconditionFailed (the number is taken, or there are nine copies), HaNotAvailable
        (the group record could not be written in time, and may be later).
        """
        return await self._calls.add_copy(broker, copy, address)

    async def remove_copy(self, broker: str, copy: int) -> BrokerGroupView:
        """Remove a copy from a broker group that runs; if it leads, another one leads first. Its process is not
        stopped, and waits. Raises NotFound, PreconditionFailed (too few would be in sync; says who is missing),
        HaNotAvailable.
        """
        return await copy_removed(self._calls, self._context.clock, broker, copy)

    async def replace_copy(
        self, broker: str, copy: int, *, new: int, address: str, wait_ms: int = 600_000
    ) -> BrokerGroupView:
        """Add the copy `new` at `address`, wait until it is in sync, `wait_ms` at most, then remove `copy`. Raises what
        both do, and RequestTimeout: then the new one stays, and a repeat goes on.
        """
        clock = self._context.clock
        return await copy_replaced(self._calls, clock, broker, copy, new=new, address=address, wait_ms=wait_ms)

    async def grow_copies(
        self, broker: str, members: Mapping[int, str], *, in_sync_min: int, wait_ms: int = 600_000
    ) -> BrokerGroupView:
        """Add those of `members` (copy -> address) that a broker group lacks, wait until all are in sync, `wait_ms` at
        most, then let `in_sync_min` of them be needed. A group that has all that is left alone. Raises BadRequest, and
        RequestTimeout with what is missing: a repeat goes on.
        """
        clock = self._context.clock
        return await copies_grown(self._calls, clock, broker, members, in_sync_min=in_sync_min, wait_ms=wait_ms)

    async def set_in_sync_min(self, broker: str, copies: int) -> BrokerGroupView:
        """From now on this many copies of a broker group must be in sync, or nothing is taken. Raises NotFound,
        PreconditionFailed (fewer are in sync, or the group has fewer), HaNotAvailable.
        """
        return await self._calls.set_in_sync_min(broker, copies)

    async def plan_unclean_election(
        self, broker: str, *, copy: int | None = None, reason: str = "", despite_better: bool = False
    ) -> UncleanPlanView:
        """The loss if a copy of a broker group led that is not in sync (`copy`; None: not chosen yet),
        and why that would be refused. Changes nothing. The endpoint must be the address of a copy for the other copies,
        as in `replication.members`: a group without a leader serves no clients. Raises BadRequest (another group's
        copy).
        """
        return await self._calls.elect_unclean(
            broker, copy, accept_data_loss=False, reason=reason, despite_better=despite_better, epoch=0
        )

    async def elect_unclean(
        self, broker: str, copy: int, *, accept_data_loss: bool, reason: str = "", despite_better: bool = False,
        epoch: int = 0,
    ) -> UncleanPlanView:  # fmt: skip
        """Let a copy lead that lacks acknowledged messages: the last resort when all that may lead are lost for good.
        What only they had is lost; it stays in the group record that this was done. `accept_data_loss` must be True.
        `epoch`: of the plan that was looked at; in another one nothing is done. `despite_better`: also if another copy
        answers that has more, with a `reason`. The endpoint: as for `plan_unclean_election`. Raises PreconditionFailed
        (a leader lives, a copy answers that may lead or has more; nothing was changed), ConnectionFailed and
        HaNotAvailable (it may be done yet: look).
        """
        must_accept(accept_data_loss)
        return await self._calls.elect_unclean(
            broker, copy, accept_data_loss=True, reason=reason, despite_better=despite_better, epoch=epoch
        )

    async def describe_cluster(self) -> ClusterView:
        """A summary of the cluster, with the copies of each broker. An endpoint may also be the address of a copy for
        the other copies: then it is about that group alone, and works without a leader, too.
        """
        return await self._calls.describe_cluster()

    async def close(self) -> None:
        """Close the connections."""
        await self._context.let_go(self._calls.net)
