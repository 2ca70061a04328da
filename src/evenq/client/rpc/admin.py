"""`evenq.v1.Admin`: topics, groups, brokers. Any broker answers for the whole cluster."""

from __future__ import annotations

from typing import Any, TypeVar

from evenq.client.core.views import (
    BrokerView,
    ClusterView,
    DiagnosisView,
    FindingView,
    GroupDetails,
    GroupQueueView,
    GroupView,
    MemberView,
    OffsetMoveView,
    PlacementView,
    QueueView,
    TopicDetails,
    TopicView,
)
from evenq.client.rpc.calls import Calls, model_queue
from evenq.client.rpc.messages import type_of
from evenq.model import BalancePolicy, MessageType, Weight
from evenq.model.retry import RetryPolicy
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.evenq.v1 import admin_pb2, diagnosis_pb2, groups_pb2

__all__ = ["AdminCalls"]

ADMIN = "/evenq.v1.Admin/"

Answer = TypeVar("Answer")


class AdminCalls(Calls):
    """All raise what the answer's status stands for."""

    async def create_topic(self, topic: str, queues: int, message_type: MessageType) -> list[PlacementView]:
        request = admin_pb2.CreateTopicRequest(topic=topic, queues=queues, message_type=type_of(message_type))
        answer = await self._ask("CreateTopic", request, admin_pb2.CreateTopicResponse)
        return [
            PlacementView(broker_name=p.broker_name, queues=p.entry.write_queues, error=p.error)
            for p in answer.placements
        ]

    async def delete_topic(self, topic: str) -> None:
        await self._ask("DeleteTopic", admin_pb2.DeleteTopicRequest(topic=topic), admin_pb2.DeleteTopicResponse)

    async def list_topics(self, *, include_system: bool) -> list[TopicView]:
        request = admin_pb2.ListTopicsRequest(include_system=include_system)
        answer = await self._ask("ListTopics", request, admin_pb2.ListTopicsResponse)
        return [
            TopicView(
                topic=t.topic,
                message_type=_type(t.message_type),
                brokers=t.brokers,
                queues=t.queues,
                messages=t.messages,
            )
            for t in answer.topics
        ]

    async def describe_topic(self, topic: str) -> TopicDetails:
        request = admin_pb2.DescribeTopicRequest(topic=topic)
        answer = await self._ask("DescribeTopic", request, admin_pb2.DescribeTopicResponse)
        queues = [
            QueueView(
                queue=model_queue(q.queue),
                min_offset=q.min_offset,
                max_offset=q.max_offset,
                last_store_ms=q.last_store_ms,
                permission=v2.Permission.Name(q.permission),
            )
            for q in answer.queues
        ]
        return TopicDetails(
            topic=topic, message_type=_type(answer.message_type), queues=tuple(queues), groups=tuple(answer.groups)
        )

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
    ) -> None:
        request = admin_pb2.CreateGroupRequest(
            group=group, ordered=ordered, max_attempts=max_attempts, strategy=strategy, start_from=start_from
        )
        if retry is not None:
            told = request.retry
            told.kind, told.delays_ms[:] = retry.kind.value, retry.delays_ms
            told.initial_ms, told.max_ms, told.multiplier = retry.initial_ms, retry.max_ms, retry.multiplier
        if balance is not None:
            policy = request.balance
            policy.SetInParent()
            policy.weight, policy.moves_max = balance.weight.value, balance.moves_max
            policy.hold_ms, policy.hold_lag_max = balance.hold_ms, balance.hold_lag_max
        await self._ask("CreateGroup", request, admin_pb2.CreateGroupResponse)

    async def delete_group(self, group: str) -> None:
        await self._ask("DeleteGroup", admin_pb2.DeleteGroupRequest(group=group), admin_pb2.DeleteGroupResponse)

    async def list_groups(self) -> list[GroupView]:
        answer = await self._ask("ListGroups", admin_pb2.ListGroupsRequest(), admin_pb2.ListGroupsResponse)
        return [_group(group) for group in answer.groups]

    async def describe_group(self, group: str) -> GroupDetails:
        request = admin_pb2.DescribeGroupRequest(group=group)
        answer = await self._ask("DescribeGroup", request, admin_pb2.DescribeGroupResponse)
        queues = [
            GroupQueueView(
                queue=model_queue(q.queue),
                committed=q.committed,
                max_offset=q.max_offset,
                lag=q.lag,
                inflight=q.inflight,
                owner=q.owner,
            )
            for q in answer.queues
        ]
        return GroupDetails(
            summary=_group(answer.summary),
            members=tuple(_member(member) for member in answer.members),
            queues=tuple(queues),
        )

    async def diagnose_group(self, group: str, *, watch_ms: int, stuck_ms: int) -> DiagnosisView:
        request = diagnosis_pb2.DiagnoseGroupRequest(group=group, watch_ms=watch_ms, stuck_ms=stuck_ms)
        answer = await self._ask("DiagnoseGroup", request, diagnosis_pb2.DiagnoseGroupResponse)
        return DiagnosisView(
            findings=tuple(
                FindingView(
                    kind=one.kind,
                    severity=one.severity,
                    subject=one.subject,
                    seen=one.seen,
                    fix=one.fix,
                    command=one.command,
                )
                for one in answer.findings
            ),
            decides=answer.decides,
            members=answer.members,
            queues=answer.queues,
            brokers=tuple(answer.brokers),
            silent=tuple(answer.silent),
        )

    async def reset_offsets(
        self, group: str, *, topic: str, to: str, value: int, source_group: str, dry_run: bool
    ) -> list[OffsetMoveView]:
        request = admin_pb2.ResetOffsetsRequest(
            group=group,
            topic=topic,
            to=admin_pb2.OffsetTarget.Value(to),
            value=value,
            source_group=source_group,
            dry_run=dry_run,
        )
        answer = await self._ask("ResetOffsets", request, admin_pb2.ResetOffsetsResponse)
        return [
            OffsetMoveView(
                queue=model_queue(move.queue),
                before=move.before,
                after=move.after,
                inflight=move.inflight,
                owner=move.owner,
                error=move.error,
                note=move.note,
            )
            for move in answer.moves
        ]

    async def list_brokers(self) -> list[BrokerView]:
        answer = await self._ask("ListBrokers", admin_pb2.ListBrokersRequest(), admin_pb2.ListBrokersResponse)
        return [_broker(broker) for broker in answer.brokers]

    async def describe_cluster(self) -> ClusterView:
        request = admin_pb2.DescribeClusterRequest()
        answer = await self._ask("DescribeCluster", request, admin_pb2.DescribeClusterResponse)
        return ClusterView(
            cluster=answer.cluster,
            brokers=tuple(_broker(broker) for broker in answer.brokers),
            nameservers=tuple(answer.nameservers),
            rebalancer=answer.rebalancer,
            rebalancer_answers=answer.rebalancer_answers,
            topics=answer.topics,
            groups=answer.groups,
        )

    async def _ask(self, rpc: str, request: Any, answer_type: type[Answer]) -> Answer:
        made: Any = answer_type
        answer = made.FromString(await self.at_access_point(ADMIN + rpc, request.SerializeToString()))
        check(answer.status)
        told: Answer = answer
        return told


def _type(number: v2.MessageType.ValueType) -> MessageType:
    return MessageType.MIXED if number == v2.MESSAGE_TYPE_UNSPECIFIED else MessageType(v2.MessageType.Name(number))


def _group(wire: admin_pb2.GroupSummary) -> GroupView:
    return GroupView(
        group=wire.group,
        ordered=wire.ordered,
        max_attempts=wire.max_attempts,
        strategy=wire.strategy,
        members=wire.members,
        topics=wire.topics,
        lag=wire.lag,
        balance=BalancePolicy(
            weight=Weight(wire.balance.weight),
            moves_max=wire.balance.moves_max,
            hold_ms=wire.balance.hold_ms,
            hold_lag_max=wire.balance.hold_lag_max,
        ),
    )


def _member(wire: groups_pb2.Member) -> MemberView:
    return MemberView(
        client_id=wire.client_id,
        language=wire.language,
        version=wire.version,
        protocol=wire.protocol,
        model=groups_pb2.MessageModel.Name(wire.model),
        subscriptions={entry.topic: entry.filter.expression or "*" for entry in wire.subscriptions},
        joined_ms=wire.joined_ms,
        zone=wire.zone,
        instance=wire.instance,
        address=wire.address,
        capacity=wire.capacity or 1.0,
    )


def _broker(wire: admin_pb2.BrokerSummary) -> BrokerView:
    return BrokerView(
        name=wire.broker.name,
        broker_id=wire.broker.id,
        cluster=wire.broker.cluster,
        addresses=tuple(f"{listener.host}:{listener.port}" for listener in wire.broker.listeners),
        version=wire.broker.version,
        start_ms=wire.broker.start_ms,
        topics=wire.topics,
        messages_in=wire.messages_in,
        messages_out=wire.messages_out,
        log_bytes=wire.log_bytes,
        connections=wire.connections,
        answered=wire.answered,
    )
