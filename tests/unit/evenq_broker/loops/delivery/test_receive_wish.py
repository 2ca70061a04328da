"""What a receive wants: whether order binds it, and on whose life its deliveries depend."""

from __future__ import annotations

import pytest
from evenq_broker.core.delivery.filters import EVERYTHING
from evenq_broker.loops.delivery.receive_wish import ReceiveWish

from evenq.model import GroupConfig, MessageType, TopicConfig


def wish_of(message_type: MessageType, *, ordered: bool, client_id: str = "") -> ReceiveWish:
    group = GroupConfig(name="g", group_id=1, ordered=ordered)
    topic = TopicConfig(name="t", topic_id=2, message_type=message_type)
    return ReceiveWish(group, topic, EVERYTHING, client_id, 7_000)


@pytest.mark.parametrize(
    ("message_type", "of_no_order", "of_order"),
    [
        (MessageType.NORMAL, False, True),
        (MessageType.FIFO, False, True),
        (MessageType.LITE, True, True),
        (MessageType.PRIORITY, False, False),
    ],
)
def test_lite_topics_are_always_in_order_and_priorities_never(
    message_type: MessageType, of_no_order: bool, of_order: bool
) -> None:
    assert wish_of(message_type, ordered=False).ordered is of_no_order
    assert wish_of(message_type, ordered=True).ordered is of_order


def test_a_delivery_lasts_as_its_client_lives_or_as_long_as_was_wanted() -> None:
    assert wish_of(MessageType.NORMAL, ordered=False).invisible_ms == 7_000
    assert wish_of(MessageType.NORMAL, ordered=False, client_id="c").invisible_ms is None
