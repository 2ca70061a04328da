"""`evenq.v1.Admin`: topics, groups, brokers. Any broker answers for the whole cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evenq.client.core.admin.broker_group_views import BrokerGroupView, MoveAnswer, UncleanPlanView
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
    SimulationView,
    TopicDetails,
    TopicView,
    WithdrawView,
)
from evenq.client.rpc.calls import ASSIGNMENT
from evenq.client.rpc.messages import type_of
from evenq.client.rpc.queries import QueryCalls
from evenq.client.rpc.translation import wire_queue
from evenq.client.rpc.transport import AccessPointSilent
from evenq.client.rpc.views import explained_by_locks, view, views
from evenq.errors import BadRequest, ConnectionFailed, InternalError, NotFound, NotImplementedYet
from evenq.model import BalancePolicy, Message, MessageQueue, MessageType, Permission
from evenq.model.names import is_system_topic
from evenq.model.retry import RetryPolicy
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, diagnosis_pb2

COPY_MAX, COPIES_MAX = 999_999_999, 9
"""Highest copy number of a broker group, and its largest number of copies."""


class AdminCalls(QueryCalls):
    """Calls that raise the error that the answer's status stands for."""

    async def create_topic(
        self,
        topic: str,
        queues: int,
        message_type: MessageType | None,
        *,
        brokers: Mapping[str, int] | None = None,
        retention_ms: int | None = None,
    ) -> list[PlacementView]:
        request = admin_pb2.CreateTopicRequest(
            topic=topic,
            queues=queues,
            message_type=type_of(message_type) if message_type is not None else v2.MESSAGE_TYPE_UNSPECIFIED,
            mixed=message_type is MessageType.MIXED,
            retention_ms=retention_ms,
        )
        for broker, count in (brokers or {}).items():
            request.brokers.add(broker_name=broker, queues=count)
        response = await self.ask("CreateTopic", request, admin_pb2.CreateTopicResponse)
        return views(PlacementView, response.placements)

    async def delete_topic(self, topic: str) -> None:
        await self.ask("DeleteTopic", admin_pb2.DeleteTopicRequest(topic=topic), admin_pb2.DeleteTopicResponse)

    async def list_topics(self, *, include_system: bool) -> list[TopicView]:
        request = admin_pb2.ListTopicsRequest(include_system=include_system)
        response = await self.ask("ListTopics", request, admin_pb2.ListTopicsResponse)
        return views(TopicView, response.topics)

    async def create_schedule(
        self, name: str, message: Message, *, cron: str, every_ms: int, missed: str, missed_max: int
    ) -> ScheduleView:
        schedule = admin_pb2.Schedule(
            topic=message.topic,
            name=name,
            cron=cron,
            every_ms=every_ms,
            missed=missed,
            missed_max=missed_max,
            body=message.body,
            tag=message.tag or "",
            keys=message.keys,
            message_group=message.message_group or "",
            properties=message.properties,
        )
        request = admin_pb2.PutScheduleRequest(schedule=schedule)
        return view(ScheduleView, (await self.ask("PutSchedule", request, admin_pb2.PutScheduleResponse)).state)

    async def list_schedules(self, topic: str, name: str = "") -> SchedulesView:
        request = admin_pb2.ListSchedulesRequest(topic=topic, name=name)
        return view(SchedulesView, await self.ask("ListSchedules", request, admin_pb2.ListSchedulesResponse))

    async def describe_schedule(self, topic: str, name: str) -> ScheduleView:
        listed = await self.list_schedules(topic, name)
        if not listed.schedules:
            missing = f"; brokers that did not answer: {', '.join(listed.silent)}" if listed.silent else ""
            raise NotFound(f"topic {topic} has no schedule {name!r}; see `evenq schedule list {topic}`{missing}")
        return listed.schedules[0]

    async def pause_schedule(self, topic: str, name: str, *, paused: bool) -> ScheduleView:
        request = admin_pb2.PauseScheduleRequest(topic=topic, name=name, paused=paused)
        return view(ScheduleView, (await self.ask("PauseSchedule", request, admin_pb2.PauseScheduleResponse)).state)

    async def run_schedule(self, topic: str, name: str, message_id: str) -> str:
        request = admin_pb2.RunScheduleRequest(topic=topic, name=name, message_id=message_id)
        return (await self.ask("RunSchedule", request, admin_pb2.RunScheduleResponse)).message_id

    async def move_schedule(self, topic: str, name: str, to: str) -> ScheduleView:
        request = admin_pb2.MoveScheduleRequest(topic=topic, name=name, to=to)
        return view(ScheduleView, (await self.ask("MoveSchedule", request, admin_pb2.MoveScheduleResponse)).state)

    async def delete_schedule(self, topic: str, name: str) -> None:
        request = admin_pb2.DeleteScheduleRequest(topic=topic, name=name)
        await self.ask("DeleteSchedule", request, admin_pb2.DeleteScheduleResponse)

    async def list_lite_topics(self) -> list[LiteTopicView]:
        request = admin_pb2.ListTopicsRequest(lite=True)
        response = await self.ask("ListTopics", request, admin_pb2.ListTopicsResponse)
        return views(LiteTopicView, response.lite_topics)

    async def describe_topic(self, topic: str) -> TopicDetails:
        request = admin_pb2.DescribeTopicRequest(topic=topic)
        response = await self.ask("DescribeTopic", request, admin_pb2.DescribeTopicResponse)
        return view(TopicDetails, response, topic=topic)

    async def scale_topic(
        self, topic: str, queues: int, *, broker: str, force: bool, close_unread: bool, dry_run: bool = False
    ) -> list[ResizeView]:
        request = admin_pb2.ScaleTopicRequest(
            topic=topic,
            queues=queues,
            broker_name=broker,
            force=force,
            close_unread=close_unread,
            dry_run=dry_run,
        )
        response = await self.ask("ScaleTopic", request, admin_pb2.ScaleTopicResponse)
        return _landed(response.brokers, f"topic {topic} was not {'looked at' if dry_run else 'changed'}")

    async def withdraw_topic(
        self, topic: str, broker: str, *, close_unread: bool, force: bool, dry_run: bool = False
    ) -> WithdrawView:
        request = admin_pb2.ScaleTopicRequest(
            topic=topic, broker_name=broker, close_unread=close_unread, force=force, dry_run=dry_run
        )
        response = await self.ask("ScaleTopic", request, admin_pb2.ScaleTopicResponse)
        if not response.brokers:
            raise InternalError(f"{self.access_point} returned nothing about topic {topic} on broker {broker}")
        return view(WithdrawView, response.brokers[0])

    async def permit_topic(self, topic: str, permission: Permission, *, broker: str) -> list[ResizeView]:
        number = v2.Permission.Value(permission.name)
        request = admin_pb2.PermitTopicRequest(topic=topic, permission=number, broker_name=broker)
        response = await self.ask("PermitTopic", request, admin_pb2.PermitTopicResponse)
        return _landed(response.brokers, f"the permission of topic {topic} was not changed")

    async def drain_broker(self, broker: str, *, resume: bool = False) -> DrainView:
        change = admin_pb2.DrainBrokerRequest.RESUME if resume else admin_pb2.DrainBrokerRequest.DRAIN
        request = admin_pb2.DrainBrokerRequest(broker_name=broker, change=change)
        return view(DrainView, await self.ask("DrainBroker", request, admin_pb2.DrainBrokerResponse))

    async def look_at_broker(self, broker: str) -> DrainView:
        request = admin_pb2.DrainBrokerRequest(broker_name=broker)
        return view(DrainView, await self.ask("DrainBroker", request, admin_pb2.DrainBrokerResponse))

    async def forget_broker(self, broker: str) -> None:
        request = admin_pb2.ForgetBrokerRequest(broker_name=broker)
        await self.ask("ForgetBroker", request, admin_pb2.ForgetBrokerResponse)

    async def create_group(
        self,
        group: str,
        *,
        ordered: bool | None,
        max_attempts: int,
        strategy: str,
        start_from: str,
        retry: RetryPolicy | None = None,
        balance: BalancePolicy | None = None,
    ) -> tuple[str, ...]:
        request = admin_pb2.CreateGroupRequest(
            group=group, ordered=ordered, max_attempts=max_attempts, strategy=strategy, start_from=start_from
        )
        if retry is not None:
            pauses = request.retry
            pauses.kind, pauses.delays_ms[:] = retry.kind.value, retry.delays_ms
            pauses.initial_ms, pauses.max_ms, pauses.multiplier = retry.initial_ms, retry.max_ms, retry.multiplier
        if balance is not None:
            policy = request.balance
            policy.SetInParent()
            policy.weight, policy.moves_max = balance.weight.value, balance.moves_max
            policy.hold_ms, policy.hold_lag_max = balance.hold_ms, balance.hold_lag_max
        return tuple((await self.ask("CreateGroup", request, admin_pb2.CreateGroupResponse)).warnings)

    async def delete_group(self, group: str) -> None:
        await self.ask("DeleteGroup", admin_pb2.DeleteGroupRequest(group=group), admin_pb2.DeleteGroupResponse)

    async def list_groups(self) -> list[GroupView]:
        response = await self.ask("ListGroups", admin_pb2.ListGroupsRequest(), admin_pb2.ListGroupsResponse)
        return views(GroupView, response.groups)

    async def describe_group(self, group: str) -> GroupDetails:
        request = admin_pb2.DescribeGroupRequest(group=group)
        response = await self.ask("DescribeGroup", request, admin_pb2.DescribeGroupResponse)
        return view(GroupDetails, response)

    async def group_offsets(self, group: str, topic: str) -> list[GroupQueueView]:
        queues = (await self.describe_group(group)).queues
        return sorted((one for one in queues if topic in {"", one.queue.topic}), key=lambda one: one.queue)

    async def explain_group(self, group: str, topic: str) -> ExplainView:
        try:
            return view(ExplainView, await self._explain(group, topic), group=group)
        except AccessPointSilent:
            raise
        except NotImplementedYet:
            decides = "no rebalancer: members and brokers compute it"
        except ConnectionFailed as error:
            decides = f"the rebalancer does not answer: {error}"
        return explained_by_locks(await self.describe_group(group), topic, decides)

    async def simulate_group(
        self, group: str, *, topic: str, members: int, queues: int, strategy: str, lose_zone: str
    ) -> list[SimulationView]:
        if not (members or queues or strategy or lose_zone):
            raise BadRequest("there is nothing to simulate: give one of members, queues, strategy and lose_zone")
        now = await self._explain(group, topic)
        topics = sorted({row.queue.topic for row in now.queues if not is_system_topic(row.queue.topic)})
        if not topics:
            raise BadRequest(
                f"group {group} has no assignment yet, so there is nothing to compare with; start its members"
            )
        views = []
        for name in topics:
            request = assignment_pb2.SimulateRequest(
                group=group, topic=name, members=members, queues=queues, strategy=strategy, lose_zone=lose_zone
            )
            response = await self.ask("Simulate", request, assignment_pb2.SimulateResponse, service=ASSIGNMENT)
            views.append(view(SimulationView, response, topic=name))
        return views

    async def _explain(self, group: str, topic: str) -> assignment_pb2.ExplainResponse:
        request = assignment_pb2.ExplainRequest(group=group, topic=topic)
        return await self.ask("Explain", request, assignment_pb2.ExplainResponse, service=ASSIGNMENT)

    async def diagnose_group(self, group: str, *, watch_ms: int, stuck_ms: int) -> DiagnosisView:
        request = diagnosis_pb2.DiagnoseGroupRequest(group=group, watch_ms=watch_ms, stuck_ms=stuck_ms)
        response = await self.ask("DiagnoseGroup", request, diagnosis_pb2.DiagnoseGroupResponse)
        return view(DiagnosisView, response)

    async def reset_offsets(
        self,
        group: str,
        *,
        topic: str,
        queues: Iterable[MessageQueue] = (),
        to: str,
        value: int,
        source_group: str,
        dry_run: bool,
    ) -> list[OffsetMoveView]:
        request = admin_pb2.ResetOffsetsRequest(
            group=group,
            topic=topic,
            queues=map(wire_queue, queues),
            to=admin_pb2.OffsetTarget.Value(to),
            value=value,
            source_group=source_group,
            dry_run=dry_run,
        )
        once = request.to == admin_pb2.SKIP and not dry_run
        if once:  # a second skip would pass over other messages: find an access point that answers, then call it once
            request.dry_run = True
            await self.ask("ResetOffsets", request, admin_pb2.ResetOffsetsResponse)
            request.dry_run = False
        response = await self.ask("ResetOffsets", request, admin_pb2.ResetOffsetsResponse, once=once)
        return views(OffsetMoveView, response.moves)

    async def list_brokers(self) -> list[BrokerView]:
        return views(BrokerView, (await self._brokers()).brokers)

    async def list_missing_brokers(self) -> list[MissingBrokerView]:
        return views(MissingBrokerView, (await self._brokers()).missing)

    async def _brokers(self) -> admin_pb2.ListBrokersResponse:
        return await self.ask("ListBrokers", admin_pb2.ListBrokersRequest(), admin_pb2.ListBrokersResponse)

    async def describe_cluster(self) -> ClusterView:
        request = admin_pb2.DescribeClusterRequest()
        response = await self.ask("DescribeCluster", request, admin_pb2.DescribeClusterResponse)
        return view(ClusterView, response)

    async def move_leader(self, broker: str, *, to: int | None, epoch: int) -> MoveAnswer:
        """Hands over, if the group is still in the epoch."""
        request = admin_pb2.MoveLeaderRequest(broker_name=broker, to=_copy_number(to), epoch=epoch)
        response = await self.ask("MoveLeader", request, admin_pb2.MoveLeaderResponse)
        return MoveAnswer(response.leader, response.epoch)

    async def add_copy(self, broker: str, copy: int, address: str) -> BrokerGroupView:
        new = admin_pb2.NewCopy(copy=_copy_number(copy), address=address)
        return await self._change_copies(admin_pb2.ChangeCopiesRequest(broker_name=broker, add=new))

    async def remove_copy(self, broker: str, copy: int) -> BrokerGroupView:
        """Removes a copy that does not lead."""
        return await self._change_copies(admin_pb2.ChangeCopiesRequest(broker_name=broker, remove=_copy_number(copy)))

    async def set_in_sync_min(self, broker: str, copies: int) -> BrokerGroupView:
        if not 1 <= copies <= COPIES_MAX:
            raise BadRequest(f"{copies} copies cannot be required: a broker group has 1 to {COPIES_MAX}")
        return await self._change_copies(admin_pb2.ChangeCopiesRequest(broker_name=broker, in_sync_min=copies))

    async def elect_unclean(
        self, broker: str, copy: int | None, *, accept_data_loss: bool, reason: str, despite_better: bool, epoch: int
    ) -> UncleanPlanView:
        request = admin_pb2.ElectUncleanRequest(
            broker_name=broker,
            copy=_copy_number(copy),
            accept_data_loss=accept_data_loss,
            reason=reason,
            despite_better=despite_better,
            epoch=epoch,
        )
        return view(UncleanPlanView, await self.ask("ElectUnclean", request, admin_pb2.ElectUncleanResponse))

    async def _change_copies(self, request: admin_pb2.ChangeCopiesRequest) -> BrokerGroupView:
        return view(BrokerGroupView, (await self.ask("ChangeCopies", request, admin_pb2.ChangeCopiesResponse)).group)


def _copy_number(copy: int | None) -> int | None:
    """Returns the number; None: no copy is named. Raises BadRequest."""
    if copy is not None and not 0 <= copy <= COPY_MAX:
        raise BadRequest(f"copy {copy}: copies have numbers from 0 to {COPY_MAX}")
    return copy


def _landed(brokers: Iterable[admin_pb2.ResizedTopic], what: str) -> list[ResizeView]:
    brokers = list(brokers)
    failed = [f"{one.broker_name} ({one.error})" for one in brokers if one.error]
    if failed:
        raise ConnectionFailed(f"{what} on {', '.join(failed)}; repeat it")
    return views(ResizeView, brokers)
