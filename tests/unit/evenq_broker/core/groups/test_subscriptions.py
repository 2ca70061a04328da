"""Members of one group that filter a topic differently (RG-8, wire contract 5.4)."""

from evenq_broker.core.groups.members import Member, Protocol
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of

from evenq.model import FilterExpression, FilterType, MessageModel, Subscription


def member(client_id: str, *subscriptions: Subscription, model: MessageModel = MessageModel.CLUSTERING) -> Member:
    return Member(client_id=client_id, protocol=Protocol.V2, subscriptions=subscriptions, model=model)


def test_the_same_tags_in_another_order_are_no_difference() -> None:
    members = [
        member("a", Subscription("t", FilterExpression("x || y")), Subscription("u")),
        member("b", Subscription("t", FilterExpression("y||x")), Subscription("u", FilterExpression(" * "))),
        member("c"),
    ]
    assert different_filters(wanted_of(members)) == {}


def test_who_wants_what_is_told_topic_by_topic() -> None:
    sql = FilterExpression("a > 1", FilterType.SQL)
    members = [
        member("b", Subscription("t", sql), Subscription("u")),
        member("a", Subscription("t", FilterExpression(" a > 1 ", FilterType.SQL))),
        member("c", Subscription("t", FilterExpression("a > 1"))),
    ]
    assert different_filters(wanted_of(members)) == {"t": {sql: ["a", "b"], FilterExpression("a > 1"): ["c"]}}


def test_broadcasting_members_have_a_progress_of_their_own_and_may_differ() -> None:
    members = [
        member("a", Subscription("t"), model=MessageModel.BROADCASTING),
        member("b", Subscription("t", FilterExpression("x"))),
    ]
    assert different_filters(wanted_of(members)) == {}
