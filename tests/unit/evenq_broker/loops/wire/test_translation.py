"""What goes over the wire comes back as it was."""

from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.loops.wire.translation import (
    balance_message,
    balance_of,
    broker_state,
    broker_view,
    member_message,
    member_of,
    message_type_number,
    message_type_of,
)

from evenq.errors import BadRequest
from evenq.model import (
    BalancePolicy,
    BrokerAddress,
    FilterExpression,
    FilterType,
    MessageModel,
    MessageType,
    Permission,
    QueueCounts,
    Subscription,
    Weight,
)
from evenq.wire.stubs.evenq.v1 import groups_pb2


@pytest.mark.parametrize("kind", list(MessageType))
def test_a_broker_comes_back_as_it_went(kind: MessageType) -> None:
    counts = QueueCounts(broker_name="a", read_queues=3, write_queues=2, permission=Permission.READ, message_type=kind)
    view = RegisteredBroker(
        name="a",
        cluster="c",
        epoch=4,
        incarnation="abc",
        addresses=(BrokerAddress("default", "h", 1), BrokerAddress("external", "e", 2)),
        version="1",
        start_ms=5,
        copies=2,
        followers=("b:8083",),
        data_version=6,
        topics={"t": counts},
    )
    assert broker_view(broker_state(view)) == view


def test_a_broker_without_an_address_is_nobody() -> None:
    assert broker_view(broker_state(RegisteredBroker(name="a", addresses=()))) is None


def test_a_member_comes_back_as_it_went() -> None:
    member = Member(
        client_id="x",
        protocol=Protocol.EVENQ,
        language="PYTHON",
        version="1",
        model=MessageModel.BROADCASTING,
        subscriptions=(
            Subscription("t", FilterExpression("a || b"), 7),
            Subscription("u", FilterExpression("a > 1", FilterType.SQL), 8),
        ),
        joined_ms=9,
        zone="b",
        instance="rides-3",
        address="10.0.0.7",
        capacity=2.5,
    )
    assert member_of(member_message(member), joined_ms=9, address="10.0.0.7") == member


def test_a_message_type_that_nobody_knows_is_refused() -> None:
    with pytest.raises(BadRequest, match="message type 99"):
        message_type_of(99)
    assert message_type_of(0, unspecified=MessageType.NORMAL) is MessageType.NORMAL
    assert message_type_of(message_type_number(MessageType.FIFO)) is MessageType.FIFO


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"zone": "z" * 256}, "the zone 'zzz.* is not valid: give at most 255 printable"),
        ({"instance": "a\nb"}, "the instance .* is not valid"),
        ({"capacity": -1.0}, "the capacity is -1; give more than 0"),
        ({"capacity": float("nan")}, "the capacity is nan"),
    ],
)
def test_labels_and_capacities_have_bounds(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        member_of(groups_pb2.Member(client_id="x", **given), joined_ms=0)


def test_a_balance_policy_comes_back_as_it_went() -> None:
    policy = BalancePolicy(weight=Weight.CAPACITY, moves_max=3, hold_ms=4, hold_lag_max=5)
    assert balance_of(balance_message(policy)) == policy
    with pytest.raises(BadRequest, match="weight 'HEAVY' is unknown; give one of LAG, CAPACITY, or none"):
        balance_of(groups_pb2.BalancePolicy(weight="HEAVY"))
    with pytest.raises(BadRequest, match="moves_max is -1"):
        balance_of(groups_pb2.BalancePolicy(moves_max=-1))
