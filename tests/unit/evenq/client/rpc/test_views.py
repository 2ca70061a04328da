"""Every view of the admin can be made of its message: each of its fields has a source there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from evenq.client.core.admin import backup_views, broker_group_views, query_views
from evenq.client.core.admin import views as admin_views
from evenq.client.rpc.views import view
from evenq.model import MessageType
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, backup_pb2, dead_letters_pb2, diagnosis_pb2

MESSAGES: dict[type, Any] = {
    admin_views.ClusterView: admin_pb2.DescribeClusterResponse,
    admin_views.DiagnosisView: diagnosis_pb2.DiagnoseGroupResponse,
    admin_views.DrainView: admin_pb2.DrainBrokerResponse,
    admin_views.ExplainView: assignment_pb2.ExplainResponse,
    admin_views.GroupDetails: admin_pb2.DescribeGroupResponse,
    admin_views.LiteTopicView: admin_pb2.LiteTopicSummary,
    admin_views.OffsetMoveView: admin_pb2.OffsetMove,
    admin_views.PlacementView: admin_pb2.TopicPlacement,
    admin_views.ResizeView: admin_pb2.ResizedTopic,
    admin_views.SimulationView: assignment_pb2.SimulateResponse,
    admin_views.TopicDetails: admin_pb2.DescribeTopicResponse,
    admin_views.TopicView: admin_pb2.TopicSummary,
    admin_views.WithdrawView: admin_pb2.ResizedTopic,
    backup_views.BackupHead: backup_pb2.BackupHead,
    broker_group_views.BrokerGroupView: admin_pb2.BrokerGroup,
    broker_group_views.UncleanPlanView: admin_pb2.ElectUncleanResponse,
    query_views.ClientsView: admin_pb2.ListClientsResponse,
    query_views.DeadLettersView: dead_letters_pb2.ListDeadLettersResponse,
    query_views.FoundMessagesView: admin_pb2.FindMessagesResponse,
    query_views.ReplayView: dead_letters_pb2.ReplayProgress,
    query_views.TracesView: admin_pb2.TraceMessageResponse,
}
GIVEN: dict[type, dict[str, str]] = {
    admin_views.ExplainView: {"group": "g"},
    admin_views.SimulationView: {"topic": "t"},
    admin_views.TopicDetails: {"topic": "t"},
}


def with_one_of_each(message: Any) -> Any:
    """Adds one message to each repeated field, so that the views in the view are made too."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.is_repeated:
            with_one_of_each(getattr(message, field.name).add())
        elif field.message_type.full_name.startswith("evenq.v1."):
            getattr(message, field.name).SetInParent()
            with_one_of_each(getattr(message, field.name))
    return message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_each_field_of_a_view_has_a_source_in_its_message(kind: type) -> None:
    given = GIVEN.get(kind, {})
    assert isinstance(view(kind, MESSAGES[kind](), **given), kind)
    assert isinstance(view(kind, with_one_of_each(MESSAGES[kind]()), **given), kind)


def test_a_field_without_a_source_is_an_error() -> None:
    @dataclass(frozen=True)
    class Unknown:
        elsewhere: int = 0

    with pytest.raises(AttributeError, match="elsewhere"):
        view(Unknown, admin_pb2.TopicSummary())


def test_an_optional_number_is_none_if_it_is_negative_or_not_sent() -> None:
    copy = admin_pb2.BrokerCopy(log_end=-1, lag_bytes=0, log_epoch=-1)
    made = view(broker_group_views.BrokerCopyView, copy)
    assert (made.log_end, made.lag_bytes, made.log_epoch, made.committed_end) == (None, 0, None, None)


def test_a_topic_without_a_type_is_mixed() -> None:
    assert view(admin_views.TopicView, admin_pb2.TopicSummary()).message_type is MessageType.MIXED
