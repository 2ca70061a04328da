"""Members that own queues divide them by themselves while their group has no strategy: the locks say who has what."""

from __future__ import annotations

from evenq_broker.core.diagnosis.group_facts import ALL_MEMBERS, BrokerPart, GroupFacts, MemberAt, QueueAt
from evenq_broker.core.diagnosis.own_division import own_division, owner_of
from evenq_broker.core.groups.members import Member, Protocol

from evenq.model import FilterExpression, MessageQueue, Subscription

TOPIC = "orders"


def member(client_id: str, protocol: Protocol = Protocol.EVENQ, topic: str = TOPIC, strategy: str = "AVG") -> MemberAt:
    wanted = (Subscription(topic, FilterExpression("*")),)
    known = Member(client_id=client_id, protocol=protocol, subscriptions=wanted, strategy=strategy)
    return MemberAt(member=known, age_ms=60_000, silent_ms=0, lease_ms=10_000)


def facts(*members: MemberAt, holders: str = "aabb") -> GroupFacts:
    queues = tuple(
        QueueAt(queue=MessageQueue(TOPIC, "x", number), holder=holder.strip()) for number, holder in enumerate(holders)
    )
    return GroupFacts(group="g", brokers=(BrokerPart(broker_name="x", members=members, queues=queues),))


def test_locks_say_who_has_each_queue_and_the_reason_says_who_divides_and_by_what() -> None:
    own = own_division(facts(member("a"), member("b")), {TOPIC})
    assert [at.holder for at in own.queues] == list("aabb")
    assert own.reasons[TOPIC] == "2 members divide 4 queues by AVG: the group has no strategy"
    assert (own.strategy, own.idle) == ("AVG", {})


def test_a_member_of_an_older_version_divides_by_the_default() -> None:
    assert own_division(facts(member("a", strategy=""), member("b")), {TOPIC}).strategy == "AVG"


def test_members_without_a_queue_are_named_with_the_reason() -> None:
    three = [member(name) for name in "abc"]
    assert own_division(facts(*three, holders="ab"), {TOPIC}).idle == {
        "c": "3 members share 2 queues; add queues, or run 2 members at most"
    }
    assert own_division(facts(*three), {TOPIC}).idle == {"c": "it holds no queue's lock"}


def test_a_client_that_locks_nothing_gets_nothing_beside_members_that_do() -> None:
    mixed = facts(member("a"), member("sdk", Protocol.V2), holders="aa ")
    own = own_division(mixed, {TOPIC})
    assert "give the group a strategy" in own.idle["sdk"]
    assert [owner_of(at, mixed) for at in own.queues] == ["a", "a", ALL_MEMBERS]
    alone = facts(member("a"), holders="a ")
    assert [owner_of(at, alone) for at in own_division(alone, {TOPIC}).queues] == ["a", ""]


def test_where_all_members_compete_nothing_is_divided() -> None:
    own = own_division(facts(member("sdk", Protocol.V2), holders="  "), {TOPIC})
    assert (own.queues, own.reasons, own.idle) == ([], {}, {})
