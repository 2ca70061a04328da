"""Who a member says that it is."""

from evenq.client.core.groups.introduction import Introduction
from evenq.model import FilterExpression, MessageModel


def test_rg_6_a_join_tells_the_subscriptions_of_its_time_and_since_when_they_hold() -> None:
    wanted = {"t": FilterExpression()}
    member = Introduction(
        group="g",
        model=MessageModel.CLUSTERING,
        subscriptions=wanted,
        zone="z",
        instance="web-0",
        capacity=2.0,
        incarnation=255,
        now_ms=7,
    )
    first = member.join()
    wanted["u"] = FilterExpression("a")
    member.changed(9)
    second = member.join()
    assert (set(first.subscriptions), first.version) == ({"t"}, 7)
    assert (set(second.subscriptions), second.version) == ({"t", "u"}, 9)
    assert (second.zone, second.instance, second.capacity, second.incarnation) == ("z", "web-0", 2.0, 255)
    assert first.hands_over
    assert member.other_name("me") == "me~ff"


def test_a_member_that_keeps_its_queues_when_a_broker_closes_says_so() -> None:
    member = Introduction(
        group="g",
        model=MessageModel.CLUSTERING,
        subscriptions={},
        zone="",
        instance="",
        capacity=1.0,
        incarnation=1,
        now_ms=7,
        hands_over=False,
    )
    assert not member.join().hands_over
