"""Admin for asyncio, `evenq.aio.Admin`: topics, groups, brokers of a cluster, through any broker.

async with evenq.aio.Admin(endpoint="127.0.0.1:8081") as admin:
    await admin.create_topic("orders", queues=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from evenq.client.async_queries import AsyncQueries
from evenq.client.core.admin.broker_group_views import BrokerGroupView, LeaderMoveView, UncleanPlanView
from evenq.client.core.admin.query_views import SchedulesView, ScheduleView
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
from evenq.client.loops.admin.resizing import drained, scale_in_checked, scaled, withdrawn
from evenq.client.plans import check_recurring, interval_ms, permission_of, reset_target, topic_type
from evenq.client.wiring import ClientContext, admin_calls, new_client_id
from evenq.model import BalancePolicy, Message, MessageQueue, MessageType, Permission
from evenq.model.retry import RetryPolicy
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls


class AdminClient(SdkClient):
    """The part that the sync and the asyncio admin share."""

    def __init__(
        self,
        *,
        endpoint: str = "",
        timeout_ms: int = 10_000,
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """No start is needed. `endpoint` as in `evenq.Producer`; `timeout_ms`: limit of each call."""
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self._calls = self._in_loop(admin_calls, self._context, new_client_id(self._context.clock), timeout_ms)


class Admin(AsyncQueries, AsyncFace, AdminClient):
    """Admin of a cluster. Each call raises the server's error: TopicNotFound, IllegalTopic, GroupNotFound ...

    A method calls another one through its class, because `self` may be the sync admin.
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
        """Creates a topic on every broker, each with the same number of queues (TQ-2), or on chosen brokers.

        `queues` is per broker; 0 = the server's default. An existing topic gets more queues or keeps them, never fewer.
        `brokers` names the brokers that get the topic, each with its number of queues (0 = `queues`), for example
        `{"broker-a": 8, "broker-b": 2}` (TQ-4). The topic stays on them, also when it is created again without
        `brokers`. `message_type` None: NORMAL, or unchanged. A NORMAL, FIFO, DELAY or TRANSACTION topic may become
        MIXED, and then accepts all four types. `retention_ms` is how long messages are kept: 0 = without limit, -1 =
        the server's setting, None = unchanged. Returns the brokers that have the topic; a failed one has an `error`.
        Raises IllegalTopic, BadRequest, MessageTypeConflict, and NotFound for an unknown broker.
        """
        return await self._calls.create_topic(
            topic, queues, topic_type(message_type), brokers=brokers, retention_ms=retention_ms
        )

    async def delete_topic(self, topic: str) -> None:
        """Deletes a topic with all its messages and schedules."""
        await self._calls.delete_topic(topic)

    async def list_topics(self, *, include_system: bool = False) -> list[TopicView]:
        """Returns all topics of the cluster."""
        return await self._calls.list_topics(include_system=include_system)

    async def list_lite_topics(self) -> list[LiteTopicView]:
        """Returns the lite topics of all LITE topics, one entry per broker that has it; at most 10,000."""
        return await self._calls.list_lite_topics()

    async def create_schedule(
        self,
        name: str,
        message: Message,
        *,
        schedule: str = "",
        every: timedelta | str | int | None = None,
        missed: str = "one",
        missed_max: int = 0,
    ) -> ScheduleView:
        """Makes the brokers send a message again and again, or changes that; durable when it returns.

        `schedule` is a cron expression with the name of a time zone, `"0 6 * * MON-FRI Europe/Berlin"` (without one:
        UTC). `every` is an interval instead: `"10m"`, a timedelta or ms, 1 s or more. `name` is unique in the topic.
        The same definition again changes nothing, another one counts from now. `missed`: of the times that pass while
        it cannot fire, `"one"` fires the last, `"skip"` too if it is 60 s late at most, `"all"` the last `missed_max`
        (0 = 100). The message has 16 KiB at most. Raises BadRequest, TopicNotFound, TooManyRequests,
        MessageTypeConflict, and HaNotAvailable while a broker is away that may have the name.
        """
        check_recurring(message)
        return await self._calls.create_schedule(
            name,
            message,
            cron=schedule,
            every_ms=interval_ms(every),
            missed=missed,
            missed_max=missed_max,
        )

    async def list_schedules(self, topic: str = "") -> SchedulesView:
        """Returns the schedules of a topic, or of all, without bodies and properties."""
        return await self._calls.list_schedules(topic)

    async def describe_schedule(self, topic: str, name: str) -> ScheduleView:
        """Returns one schedule. Raises NotFound."""
        return await self._calls.describe_schedule(topic, name)

    async def pause_schedule(self, topic: str, name: str) -> ScheduleView:
        """Stops the firings of a schedule until it is resumed. Raises NotFound."""
        return await self._calls.pause_schedule(topic, name, paused=True)

    async def resume_schedule(self, topic: str, name: str) -> ScheduleView:
        """Makes a schedule count from now. Times of the pause are not missed ones. Raises NotFound."""
        return await self._calls.pause_schedule(topic, name, paused=False)

    async def run_schedule(self, topic: str, name: str, *, message_id: str = "") -> str:
        """Sends the message of a schedule now, besides its firings; returns the message id. A repeated call with one
        `message_id` stores one message. Raises NotFound, and errors of a send.
        """
        # An id of the client, because the call may be repeated at another access point.
        message_id = message_id or f"{self._context.rng.getrandbits(136):034X}"
        return await self._calls.run_schedule(topic, name, message_id)

    async def move_schedule(self, topic: str, name: str, *, to: str = "") -> ScheduleView:
        """Makes broker `to` keep a schedule; empty: the broker that would keep a new one of its name. Each time still
        has one message. After any failure it can be repeated, and continues. Raises NotFound, BadRequest for a broker
        that does not accept messages of the topic, and PreconditionFailed while it moves to another broker.
        """
        return await self._calls.move_schedule(topic, name, to)

    async def delete_schedule(self, topic: str, name: str) -> None:
        """Deletes a schedule. Raises NotFound."""
        await self._calls.delete_schedule(topic, name)

    async def describe_topic(self, topic: str) -> TopicDetails:
        """Returns the queues of a topic and the groups that read them."""
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
        """Changes a topic's number of queues (1 to 4,096 per broker), on all its brokers or on `broker`.

        New queues are open immediately. Removed ones accept no more messages and are closed when every group has read
        them (RT-8), or immediately with `force`. Messages that no group has read keep a queue open, because a later
        group would miss them; `close_unread` closes it in spite of them. `dry_run` changes nothing and returns what is
        in the queues that would be closed. `wait_ms` 0 does one step and returns what is left: call again until each
        entry is `done`. Otherwise it waits at most that time and then raises RequestTimeout. Raises TopicNotFound,
        BadRequest, and ConnectionFailed if a broker did not apply the change.
        """
        return await scaled(
            self._calls,
            self._context.clock,
            topic,
            queues,
            broker=broker,
            force=force,
            close_unread=close_unread,
            dry_run=dry_run,
            wait_ms=wait_ms,
        )

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
        """Removes a topic from one of its brokers, but never from its last one.

        The broker accepts no more messages for the topic. When every group has read those that it has, the topic and
        its messages are deleted there. Messages that no group reads, and schedules, keep it there, unless
        `close_unread`; so do the broker's delayed messages and open transactions. `force` removes it in any case, with
        unread messages. `dry_run` changes nothing and returns what is there. `wait_ms` 0 does one step and returns what
        is left: call again until `gone`. Otherwise it waits at most that time and then raises RequestTimeout. To
        cancel: `permit_topic(topic, "read-write", broker=broker)`. Raises TopicNotFound, NotFound, BadRequest.
        """
        return await withdrawn(
            self._calls,
            self._context.clock,
            topic,
            broker,
            close_unread=close_unread,
            force=force,
            dry_run=dry_run,
            wait_ms=wait_ms,
        )

    async def permit_topic(self, topic: str, permission: Permission | str, *, broker: str = "") -> list[ResizeView]:
        """Sets the permission of a topic's queues, on all its brokers or on `broker`: READ_WRITE, READ (no sending),
        WRITE (no reading) or NONE. Raises TopicNotFound, BadRequest, and ConnectionFailed if a broker did not apply the
        change.
        """
        return await self._calls.permit_topic(topic, permission_of(permission), broker=broker)

    async def drain_broker(self, broker: str, *, wait_ms: int = 0) -> DrainView:
        """Makes a broker refuse new messages while its own are read; it may be stopped once it is `empty`. `wait_ms` as
        in `scale_topic`. The state survives restarts of the broker, until `resume_broker`.
        """
        return await drained(self._calls, self._context.clock, broker, wait_ms=wait_ms)

    async def resume_broker(self, broker: str) -> DrainView:
        """Makes a drained broker accept messages again."""
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
        """Creates a group on every broker, or changes it. Arguments left out stay unchanged.

        Defaults of a new group: not ordered, 17 attempts, no strategy on the server, LAST, the classic retry delays,
        equal shares. `start_from` is LAST or FIRST. `retry` (`evenq.model.retry`) is how long a failed message waits;
        `balance` (`evenq.model.balance`) is how a rebalancer shares the queues. `strategy` NONE removes the group's
        own: members divide the queues themselves again. Returns warnings about settings that may not work as intended.
        Raises BadRequest for a strategy that is unknown or that a server cannot follow (CONFIG; MACHINE_ROOM without a
        rebalancer).
        """
        return await self._calls.create_group(
            group,
            ordered=ordered,
            max_attempts=max_attempts,
            strategy=strategy,
            start_from=start_from,
            retry=retry,
            balance=balance,
        )

    async def delete_group(self, group: str) -> None:
        """Deletes a group with all its progress."""
        await self._calls.delete_group(group)

    async def list_groups(self) -> list[GroupView]:
        """Returns all consumer groups of the cluster."""
        return await self._calls.list_groups()

    async def describe_group(self, group: str) -> GroupDetails:
        """Returns the members of a group and its progress in each queue."""
        return await self._calls.describe_group(group)

    async def explain_group(self, group: str, *, topic: str = "") -> ExplainView:
        """Returns which member has which queue, since when and why, for all topics of the group or for one. Without a
        rebalancer: which member holds which lock, as `decides` states. Raises GroupNotFound.
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
        """Returns how the assignment would change with other numbers of `members` or `queues` per broker, another
        `strategy`, or without the members and brokers of a zone; one result per topic. Changes nothing.

        Raises BadRequest without such an argument or if nothing is assigned yet, NotImplementedYet without a
        rebalancer.
        """
        return await self._calls.simulate_group(
            group, topic=topic, members=members, queues=queues, strategy=strategy, lose_zone=lose_zone
        )

    async def diagnose_group(self, group: str, *, watch_ms: int = 0, stuck_ms: int = 0) -> DiagnosisView:
        """Returns the problems of a group, each with one fix; a group without findings is healthy.

        A finding that may be momentary counts if it lasts for `watch_ms` (0 = 1,500, at most 10,000). A queue is stuck
        after `stuck_ms` (0 = the broker's setting). Raises GroupNotFound, BadRequest.
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
        """Moves a group, with running members or without, on all brokers. Only returns the plan unless `dry_run=False`.

        Give one target: `to` (`earliest`, `latest` or an offset), `timestamp_ms` (the first message stored at that time
        or later, since the epoch), `skip` (messages forward) or `like_group` (the offsets of that group). Without a
        topic: all topics that the group has read. `queues`: only these queues of `topic`. Returns one result per queue.
        Raises GroupNotFound, TopicNotFound, BadRequest.
        """
        target, value = reset_target(to, timestamp_ms, skip, like_group)
        return await self._calls.reset_offsets(
            group, topic=topic, queues=queues, to=target, value=value, source_group=like_group, dry_run=dry_run
        )

    async def group_offsets(self, group: str, *, topic: str = "") -> list[GroupQueueView]:
        """Returns the offsets of a group, of all topics or one, at reachable brokers. Raises GroupNotFound."""
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
        """Moves a group over the next `count` messages of each queue (None: all); otherwise as `reset_offsets`."""
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
        """Moves a group to the offsets of `like_group` in queues that it has read; otherwise as `reset_offsets`."""
        return await Admin.reset_offsets(
            self, group, topic=topic, queues=queues, like_group=like_group, dry_run=dry_run
        )

    async def list_brokers(self) -> list[BrokerView]:
        """Returns all live brokers."""
        return await self._calls.list_brokers()

    async def list_missing_brokers(self) -> list[MissingBrokerView]:
        """Returns brokers that others remember and that are missing, with the messages they hold, sorted by name."""
        return await self._calls.list_missing_brokers()

    async def check_scale_in(self, brokers: Sequence[str], *, allow_unread: bool = False) -> list[ScaleInView]:
        """Returns for each broker whether it may be removed: its `problem` is empty if nothing that it holds would be
        lost.

        It must be drained and read to the end, and another broker must accept messages. With `allow_unread` it may hold
        dead letters, messages that no group ever read, and schedules. Changes nothing.
        """
        return await scale_in_checked(self._calls, brokers, allow_unread=allow_unread)

    async def forget_broker(self, broker: str) -> None:
        """Makes all brokers forget a broker that will not return: it is no longer missing. Its messages return only if
        it does. Raises NotFound if it is not missing, PreconditionFailed if it is running.
        """
        await self._calls.forget_broker(broker)

    async def move_leader(self, broker: str, *, to: int | None = None, wait_ms: int = 10_000) -> LeaderMoveView:
        """Makes another copy of a broker group the leader: the copy `to`, or the best of those in sync. Waits until it
        serves, at most `wait_ms`.

        Clients pause for a moment; no message is lost or repeated. Raises NotFound (no such group or copy) and
        PreconditionFailed (the copy is not in sync, there is one copy, or no copy leads); then nothing has changed.
        """
        return await leader_moved(self._calls, self._context.clock, broker, to=to, wait_ms=wait_ms)

    async def add_copy(self, broker: str, copy: int, address: str) -> BrokerGroupView:
        """Adds a copy to a running broker group: its number, and the `host:port` at which the other copies reach it. It
        begins with an empty folder, copies the log, and counts once it has everything.

        Returns the group as it is then. Raises NotFound (no such group), PreconditionFailed (the number is in use, or
        there are nine copies), HaNotAvailable (the group record was not written in time; it may still be written).
        """
        return await self._calls.add_copy(broker, copy, address)

    async def remove_copy(self, broker: str, copy: int) -> BrokerGroupView:
        """Removes a copy from a running broker group; if it leads, another copy becomes the leader first. Its process
        is not stopped, and waits. Raises NotFound, PreconditionFailed (too few copies would be in sync),
        HaNotAvailable.
        """
        return await copy_removed(self._calls, self._context.clock, broker, copy)

    async def replace_copy(
        self, broker: str, copy: int, *, new: int, address: str, wait_ms: int = 600_000
    ) -> BrokerGroupView:
        """Adds the copy `new` at `address`, waits until it is in sync, at most `wait_ms`, then removes `copy`. Raises
        the errors of both, and RequestTimeout: then the new copy stays, and a repeated call continues.
        """
        clock = self._context.clock
        return await copy_replaced(self._calls, clock, broker, copy, new=new, address=address, wait_ms=wait_ms)

    async def grow_copies(
        self, broker: str, members: Mapping[int, str], *, in_sync_min: int, wait_ms: int = 600_000
    ) -> BrokerGroupView:
        """Adds those of `members` (copy -> address) that a broker group lacks, waits until all are in sync, at most
        `wait_ms`, then requires `in_sync_min` of them. A group that has all of this is not changed. Raises BadRequest,
        and RequestTimeout that names what is missing: a repeated call continues.
        """
        clock = self._context.clock
        return await copies_grown(self._calls, clock, broker, members, in_sync_min=in_sync_min, wait_ms=wait_ms)

    async def set_in_sync_min(self, broker: str, copies: int) -> BrokerGroupView:
        """Sets how many copies of a broker group must be in sync; with fewer, no messages are accepted. Raises
        NotFound, PreconditionFailed (fewer are in sync, or the group has fewer), HaNotAvailable.
        """
        return await self._calls.set_in_sync_min(broker, copies)

    async def plan_unclean_election(
        self, broker: str, *, copy: int | None = None, reason: str = "", despite_better: bool = False
    ) -> UncleanPlanView:
        """Returns the loss if a copy that is not in sync (`copy`; None: not chosen yet) led its broker group, and the
        reason why that would be refused. Changes nothing.

        The endpoint must be the address of a copy for the other copies, as in `replication.members`, because a group
        without a leader serves no clients. Raises BadRequest (a copy of another group).
        """
        return await self._calls.elect_unclean(
            broker, copy, accept_data_loss=False, reason=reason, despite_better=despite_better, epoch=0
        )

    async def elect_unclean(
        self,
        broker: str,
        copy: int,
        *,
        accept_data_loss: bool,
        reason: str = "",
        despite_better: bool = False,
        epoch: int = 0,
    ) -> UncleanPlanView:
        """Makes a copy the leader that lacks acknowledged messages: the last resort when all that may lead are lost for
        good.

        Messages that only those had are lost, and the group record keeps that this was done. `accept_data_loss` must be
        True. `epoch`: that of the plan; in another epoch nothing is done. `despite_better`: also if another copy that
        answers has more; needs a `reason`. The endpoint: as in `plan_unclean_election`. Raises PreconditionFailed (a
        leader lives, or a copy answers that may lead or has more; nothing was changed), ConnectionFailed and
        HaNotAvailable (it may have been done: look at the group).
        """
        must_accept(accept_data_loss)
        return await self._calls.elect_unclean(
            broker, copy, accept_data_loss=True, reason=reason, despite_better=despite_better, epoch=epoch
        )

    async def describe_cluster(self) -> ClusterView:
        """Returns a summary of the cluster, with the copies of each broker. The endpoint may also be the address of a
        copy for the other copies: then it describes that group alone, also without a leader.
        """
        return await self._calls.describe_cluster()

    async def close(self) -> None:
        """Closes the connections."""
        await self._context.let_go(self._calls.net)
