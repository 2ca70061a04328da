"""Each kind of trouble is found in a group that has it, alone, and a healthy group has none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.core.diagnosis.diagnosis import HANGS_MS, findings
from evenq_broker.core.diagnosis.findings import SETTLED_MS, TRANSIENT, FindingKind
from evenq_broker.core.diagnosis.group_facts import (
    AssignedQueues,
    BrokerPart,
    Decided,
    GivenQueue,
    GroupFacts,
    LostBroker,
    MemberAt,
    QueueAt,
    ScheduleTroubles,
)
from evenq_broker.core.groups.members import Member, Protocol

from evenq.cli.parser import make_parser
from evenq.model import (
    FilterExpression,
    Generation,
    MessageModel,
    MessageQueue,
    MessageType,
    Permission,
    QueueCounts,
    Subscription,
)

_QUOTED = re.compile(r"`(evenq [^`]+)`")
TOPIC = "orders"
BROKERS = ("a", "b")
QUEUES = [MessageQueue(TOPIC, broker, queue_id) for broker in BROKERS for queue_id in range(2)]
LONG_MS = 60_000
OWNERS = ("m1", "m2", "m1", "m2")


def _counts(broker: str, read: int, write: int) -> QueueCounts:
    return QueueCounts(
        broker_name=broker,
        read_queues=read,
        write_queues=write,
        permission=Permission.READ_WRITE,
        message_type=MessageType.NORMAL,
    )


def member(
    client_id: str, *, age_ms: int = LONG_MS, silent_ms: int = 100, lost: bool = False, **result: Any
) -> MemberAt:
    result.setdefault("protocol", Protocol.EVENQ)
    result.setdefault("subscriptions", (Subscription(TOPIC, FilterExpression("*")),))
    known = Member(client_id=client_id, address="10.0.0.1", **result)
    return MemberAt(member=known, age_ms=age_ms, silent_ms=silent_ms, lease_ms=10_000, lost=lost)


def sdk(client_id: str, **result: Any) -> MemberAt:
    return member(client_id, protocol=Protocol.V2, **result)


def group(
    *members: MemberAt,
    owners: tuple[str, ...] = OWNERS,
    given: tuple[str, ...] | None = OWNERS,
    idle: dict[str, str] | None = None,
    counts: tuple[int, int] = (2, 2),
    queue: Callable[[QueueAt], QueueAt] = lambda at: at,
    assigned: tuple[AssignedQueues, ...] = (),
    zones: tuple[str, str] = ("", ""),
    settings: tuple[dict[str, str], dict[str, str]] = ({}, {}),
    stranded: int = 0,
    permission: Permission = Permission.READ_WRITE,
    age_ms: int = LONG_MS,
    **facts: Any,
) -> GroupFacts:
    """Two brokers with two queues each; `given` None: no rebalancer."""
    everybody = members or (member("m1"), member("m2"))
    parts = []
    for broker in BROKERS:
        held = [(one, owner) for one, owner in zip(QUEUES, owners, strict=True) if one.broker_name == broker]
        parts.append(
            BrokerPart(
                broker_name=broker,
                members=everybody,
                queues=tuple(queue(QueueAt(queue=one, holder=owner, committed=5)) for one, owner in held),
                assigned=assigned if broker == "a" else (),
                counts={TOPIC: replace(_counts(broker, *counts), permission=permission)},
                stranded=(QueueAt(queue=MessageQueue(TOPIC, broker, 3), lag=stranded),) if stranded else (),
                settings=settings[BROKERS.index(broker)],
                revised_ms=BROKERS.index(broker),
            )
        )
    decided = None
    if given is not None:
        rows = [
            GivenQueue(queue=one, owner=owner, age_ms=age_ms, broker_zone=zones[BROKERS.index(one.broker_name)])
            for one, owner in zip(QUEUES, given, strict=True)
        ]
        decided = Decided(strategy="STICKY", queues=tuple(rows), idle=idle or {})
        facts.setdefault("rebalancer", "rebalancer:8083")
    facts.setdefault("decided", decided)
    return GroupFacts(group="g", strategy="STICKY", brokers=tuple(parts), **facts)


def scheduled(troubles: ScheduleTroubles) -> GroupFacts:
    first, *others = group().brokers
    return replace(group(), brokers=(replace(first, schedules=(troubles,)), *others))


def kinds(now: GroupFacts, before: GroupFacts | None = None) -> list[FindingKind]:
    return [one.kind for one in findings(now, before)]


def first(change: Callable[[QueueAt], QueueAt]) -> Callable[[QueueAt], QueueAt]:
    return lambda at: change(at) if at.queue == QUEUES[0] else at


def tags(expression: str) -> tuple[Subscription, ...]:
    return (Subscription(TOPIC, FilterExpression(expression)),)


OTHER = (Subscription("invoices", FilterExpression("*")),)
UNREAD = (0, 0)
SHARED_BY_ALL = Decided(queues=tuple(GivenQueue(queue=MessageQueue(TOPIC, b, -1), owner="*") for b in BROKERS))
MORE = ("m1", "m2", "m3", "m4", "m5")
FIVE = [member(client_id) for client_id in MORE]
ONE_EACH = MORE[:4]


def refusing(facts: GroupFacts, **refused: tuple[str, ...]) -> GroupFacts:
    """The same, where one broker refuses these clients some topics."""
    first_part, *others = facts.brokers
    return replace(facts, brokers=(replace(first_part, refused=refused), *others))


def fifo(facts: GroupFacts) -> GroupFacts:
    """The same, with a topic of type FIFO."""
    counts = [replace(_counts(broker, 2, 2), message_type=MessageType.FIFO) for broker in BROKERS]
    parts = zip(facts.brokers, counts, strict=True)
    return replace(facts, brokers=tuple(replace(part, counts={TOPIC: one}) for part, one in parts))


def table(*, unmoved_ms: int) -> GroupFacts:
    """The group of a table whose files end 7 messages before one queue, without members as always."""
    at = QueueAt(queue=QUEUES[0], committed=3, lag=7, unmoved_ms=unmoved_ms)
    parts = (BrokerPart(broker_name="a", queues=(at,)),)
    return replace(group(), group=f"evenq-table-{TOPIC}", decided=None, rebalancer="", brokers=parts)


HEALTHY = {
    "a table whose exporter waits for the end of a window": table(unmoved_ms=900_000),
    "a FIFO topic whose queues members own": fifo(group()),
    "a FIFO topic and SDKs in an ordered group": fifo(
        group(sdk("s1"), owners=("",) * 4, decided=SHARED_BY_ALL, ordered=True)
    ),
    "no FIFO topic": group(member("m1", unordered=True), member("m2")),
    "no retry topic yet": group(decided=replace(group().decided or Decided(), problems=("%RETRY%g: not there",))),
    "given by the rebalancer": group(),
    "shared by locks": group(given=None),
    "popped by everybody": group(sdk("s1"), sdk("s2"), owners=("",) * 4, decided=SHARED_BY_ALL),
    "a topic of broadcasting members": group(
        member("m1", model=MessageModel.BROADCASTING), owners=("",) * 4, given=None
    ),
    "nobody there, nothing to read": replace(
        group(owners=("",) * 4, given=None), brokers=(BrokerPart(broker_name="a"),)
    ),
    "members that have just come": group(member("m1", age_ms=10), owners=("",) * 4, given=None),
    "just decided, not yet taken": group(owners=("",) * 4, age_ms=10),
    "a hand-over under way": group(owners=("m2", "m1", "m2", "m1"), age_ms=HANGS_MS - 1),
    "a busy queue that moves": group(queue=lambda at: replace(at, lag=1_000, unmoved_ms=5_000, inflight=20)),
    "the same settings everywhere": group(settings=({"strategy": "AVG"}, {"strategy": "AVG"})),
    "a broker that does not have the group": group(settings=({"strategy": "AVG"}, {})),
    "a bad message now and then": replace(
        group(),
        brokers=tuple(replace(part, retries_waiting=1, failed=4, delivered=10) for part in group().brokers),
    ),
    "a broker that another one misses, and that answers": replace(
        group(), brokers=(replace(group().brokers[0], lost=(LostBroker("b", 5_000),)), group().brokers[1])
    ),
    "a queue without messages": group(queue=lambda at: replace(at, lag=0, unmoved_ms=900_000)),
    "the same tags in another order": group(
        member("m1", subscriptions=tags("x || y")), member("m2", subscriptions=tags("y || x"))
    ),
    "an id with a tilde of its own": group(member("m1"), member("host~1")),
    "an SDK that talks to one broker only": replace(
        group(sdk("s1"), owners=("",) * 4, decided=SHARED_BY_ALL),
        brokers=(
            BrokerPart(broker_name="a", members=(sdk("s1"),)),
            BrokerPart(broker_name="b", members=(sdk("s1", silent_ms=9_000),)),
        ),
    ),
    "as many members as queues": group(*FIVE[:4], owners=ONE_EACH, given=None),
    "a queue held for a successor": group(
        owners=("", *OWNERS[1:]),
        decided=Decided(
            queues=(
                GivenQueue(queue=QUEUES[0], owner="", held=True),
                *(GivenQueue(queue=q, owner=o) for q, o in zip(QUEUES[1:], OWNERS[1:], strict=True)),
            )
        ),
    ),
    "told by an older decision than the owner": group(
        member("m1"),
        member("m2"),
        sdk("s1"),
        assigned=(
            AssignedQueues("s1", TOPIC, Generation(1, 1), (QUEUES[0],)),
            AssignedQueues("s1", TOPIC, Generation(1, 2), ()),
        ),
    ),
}

SICK = {
    FindingKind.BROKER_SILENT: group(silent={"c": "no answer within 2500 ms"}),
    FindingKind.BROKER_MISSING: replace(
        group(), brokers=tuple(replace(part, lost=(LostBroker("c", 60_000),)) for part in group().brokers)
    ),
    FindingKind.MESSAGES_FAIL: replace(
        group(),
        brokers=tuple(replace(part, retries_waiting=3, failed=9, delivered=10) for part in group().brokers),
    ),
    FindingKind.REBALANCER_AWAY: group(given=None, rebalancer="r:8083", rebalancer_problem="no copy leads"),
    FindingKind.STRATEGY_FAILS: group(
        decided=replace(group().decided or Decided(), problems=("orders: CUSTOM raised",))
    ),
    FindingKind.MISSING_TOPIC: group(
        decided=replace(group().decided or Decided(), problems=("bills: no broker tells",))
    ),
    FindingKind.NOBODY_READS: replace(
        group(),
        decided=None,
        rebalancer="",
        brokers=(BrokerPart(broker_name="a", queues=(QueueAt(queue=QUEUES[0], lag=7),)),),
    ),
    FindingKind.TABLE_BEHIND: table(unmoved_ms=3_600_000),
    FindingKind.SCHEDULE_FAILS: scheduled(ScheduleTroubles(TOPIC, 2, "the time zone 'X' is unknown", 0)),
    FindingKind.SCHEDULE_MISSED: scheduled(ScheduleTroubles(TOPIC, 0, "", 1)),
    FindingKind.UNOWNED_QUEUES: group(given=("", *OWNERS[1:]), owners=("", *OWNERS[1:])),
    FindingKind.UNCOVERED_ZONE: group(
        given=("m1", "m2", *("",) * 2), owners=("m1", "m2", *("",) * 2), zones=("north", "south")
    ),
    FindingKind.TWO_OWNERS: group(
        member("m1"), member("m2"), sdk("s1"), assigned=(AssignedQueues("s1", TOPIC, Generation(1, 9), (QUEUES[0],)),)
    ),
    FindingKind.HAND_OVER_HANGS: group(owners=("m2", *OWNERS[1:])),
    FindingKind.DIFFERENT_SUBSCRIPTIONS: group(
        member("m1", subscriptions=tags("x")), member("m2", subscriptions=tags("y"))
    ),
    FindingKind.DUPLICATE_CLIENT_ID: group(member("m1"), member("m2"), member("m1~5eed")),
    FindingKind.MEMBER_FORBIDDEN: refusing(group(), m9=("secret",)),
    FindingKind.UNEQUAL_QUEUES: group(counts=(2, 1)),
    FindingKind.DIFFERENT_SETTINGS: group(settings=({"strategy": "STICKY", "start_from": "LAST"}, {"strategy": ""})),
    FindingKind.STRANDED_MESSAGES: group(stranded=7),
    FindingKind.STUCK_HEAD: group(queue=first(lambda at: replace(at, lag=3, unmoved_ms=60_000, head_attempt=4))),
    FindingKind.SILENT_MEMBER: group(member("m1", silent_ms=7_000), member("m2")),
    FindingKind.OFFSETS_WENT_BACK: group(queue=first(lambda at: replace(at, back_from=9, back_to=2, back_ms=1))),
    FindingKind.ORDER_NOT_KEPT: fifo(group(sdk("s1"), sdk("s2"), owners=("",) * 4, decided=SHARED_BY_ALL)),
    FindingKind.IDLE_MEMBERS: group(*FIVE, owners=ONE_EACH, given=ONE_EACH, idle={"m5": "5 members share 4 queues"}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_group_that_works_has_no_finding(name: str) -> None:
    assert findings(HEALTHY[name]) == []


@pytest.mark.parametrize("kind", list(FindingKind))
def test_each_kind_of_trouble_is_found_alone_where_it_is(kind: FindingKind) -> None:
    assert set(kinds(SICK[kind])) == {kind}


@pytest.mark.parametrize("kind", list(FindingKind))
def test_every_finding_has_one_sentence_and_one_command_that_exists(kind: FindingKind) -> None:
    for one in findings(SICK[kind]):
        assert one.seen
        assert one.fix
        assert "\n" not in one.seen
        for line in (one.command, *_QUOTED.findall(one.fix)):
            make_parser().parse_args(shlex.split(line)[1:])


@pytest.mark.parametrize("kind", list(FindingKind))
def test_no_command_takes_messages_from_the_application_or_does_without_a_plan_what_loses_some(
    kind: FindingKind,
) -> None:
    for one in findings(SICK[kind]):
        for line in (one.command, *_QUOTED.findall(one.fix)):
            words = shlex.split(line)[1:]
            assert tuple(words[:2]) not in {("message", "recall"), ("topic", "delete"), ("group", "delete")}
            assert words[0] != "consume", "it would read and acknowledge for the group"
            assert not {"--yes", "--force"} & set(words)
        assert not one.command.startswith(("evenq offset skip", "evenq broker forget")), "not the first thing to do"


@pytest.mark.parametrize("name", ["$(touch x)", "a b; rm -rf .", "--endpoint=elsewhere:1", "-x", "o'clock"])
def test_a_hostile_name_stays_one_word_of_the_command(name: str) -> None:
    (found,) = findings(group(member(name, silent_ms=7_000), member("m2"), owners=("m2",) * 4, given=("m2",) * 4))
    options = make_parser().parse_args(shlex.split(found.command)[1:])
    assert (found.kind, name in vars(options).values()) == (FindingKind.SILENT_MEMBER, True)
    assert vars(options)["endpoint"] != "elsewhere:1"


def test_a_topic_that_the_group_has_read_and_no_member_subscribes_to_is_found() -> None:
    facts = group()
    other = QueueAt(queue=MessageQueue("invoices", "a", 0), committed=3, lag=7)
    parts = (replace(facts.brokers[0], queues=(*facts.brokers[0].queues, other)), facts.brokers[1])
    (found,) = findings(replace(facts, brokers=parts))
    assert (found.kind, found.subject, found.severity) == (FindingKind.NOBODY_READS, "invoices", "WARNING")
    assert found.seen == (
        "the group has read invoices, but none of its 2 members subscribes to it: 7 messages wait in 1 queue of invoices"
    )
    assert found.command == "evenq offset show g --topic invoices"
    unknown = tuple(replace(part, members=(member("m1", subscriptions=()), *part.members[1:])) for part in parts)
    may_read = kinds(replace(facts, brokers=unknown))
    assert FindingKind.NOBODY_READS not in may_read, "who does not say what it reads may read it"


def test_a_fifo_topic_that_is_read_without_its_order_is_found_with_the_readers_and_what_to_change() -> None:
    (found,) = findings(SICK[FindingKind.ORDER_NOT_KEPT])
    assert found.seen.startswith("orders is FIFO, but the group is not ordered: s1 and s2 may have several messages")
    assert found.command == "evenq group create g --ordered"
    (found,) = findings(fifo(group(member("m1", unordered=True), member("m2"), ordered=True)))
    assert (found.kind, found.command) == (FindingKind.ORDER_NOT_KEPT, "evenq client list --group g")
    assert found.seen == "orders is FIFO, but m1 does not keep its order (ordered=False)"


def test_a_client_that_gets_nothing_beside_members_that_own_queues_is_found() -> None:
    (found,) = findings(group(*FIVE[:2], sdk("s1"), decided=SHARED_BY_ALL, given=None))
    assert (found.kind, found.command) == (FindingKind.IDLE_MEMBERS, "evenq group create g --strategy STICKY")
    assert found.seen.startswith("s1 has no queue: the group has no strategy")


def test_more_queues_for_idle_members_take_none_from_a_broker_that_has_more() -> None:
    queues = [MessageQueue(TOPIC, "a", number) for number in range(4)] + [MessageQueue(TOPIC, "b", 0)]
    members = [member(f"m{number}") for number in range(7)]
    facts = group(*members, given=None)
    parts = tuple(
        replace(
            part,
            queues=tuple(
                QueueAt(queue=one, holder=f"m{index}") for index, one in enumerate(queues) if one.broker_name == name
            ),
            counts={},
        )
        for part, name in zip(facts.brokers, BROKERS, strict=True)
    )
    (found,) = findings(replace(facts, brokers=parts))
    assert found.command == "evenq topic scale orders --queues 4"


@pytest.mark.parametrize("kind", sorted(TRANSIENT))
def test_what_was_not_there_a_moment_ago_does_not_count_yet(kind: FindingKind) -> None:
    healthy = group(*FIVE) if kind is FindingKind.IDLE_MEMBERS else group()
    assert kinds(SICK[kind], healthy) == []
    assert kinds(SICK[kind], SICK[kind]) == kinds(SICK[kind])


def test_queues_without_a_lock_are_found_where_members_share_among_themselves() -> None:
    assert kinds(group(given=None, owners=("", *OWNERS[1:]))) == [FindingKind.UNOWNED_QUEUES]
    popped = group(owners=("",) * 4, decided=SHARED_BY_ALL)
    assert kinds(popped) == [FindingKind.UNOWNED_QUEUES], "our members lock what everybody may read"


def test_a_member_more_than_queues_is_found_without_a_rebalancer_as_soon_as_all_queues_are_taken() -> None:
    young = [replace(one, age_ms=10) for one in FIVE]
    (found,) = findings(group(*young, owners=ONE_EACH, given=None))
    assert (found.kind, found.command) == (FindingKind.IDLE_MEMBERS, "evenq topic scale orders --queues 3")
    assert found.seen == "m5 has no queue: 5 members share 4 queues"
    assert findings(group(*young, owners=("", *ONE_EACH[1:]), given=None)) == []


def test_a_member_that_was_given_queues_and_never_takes_them_is_named() -> None:
    (found,) = findings(group(owners=("", "m2", "", "m2"), age_ms=SETTLED_MS))
    assert (found.kind, found.severity, found.command) == (FindingKind.HAND_OVER_HANGS, "ERROR", "evenq client show m1")
    assert found.seen == "queues a/0 and b/0 of orders were given to m1 10 s ago, but it has not taken them"


def test_a_member_that_does_not_read_a_topic_of_the_others_is_inconsistent_and_not_idle() -> None:
    facts = group(
        member("m1"), member("m2"), member("m3", subscriptions=OTHER), idle={"m3": "it does not subscribe to orders"}
    )
    found = findings(facts)
    assert [(one.kind, one.subject) for one in found] == [
        (FindingKind.DIFFERENT_SUBSCRIPTIONS, "invoices"),
        (FindingKind.DIFFERENT_SUBSCRIPTIONS, "orders"),
    ]
    assert found[1].seen == "m3 does not subscribe to orders, which the others in the group do"


def test_more_queues_written_than_read_lose_messages_and_fewer_are_a_step() -> None:
    lost = findings(group(counts=(1, 2)))
    assert [(one.severity, one.subject) for one in lost] == [("ERROR", "orders at a"), ("ERROR", "orders at b")]
    step = findings(group(counts=(2, 1), queue=lambda at: replace(at, lag=4)))
    assert step[0].severity == "NOTE"
    assert step[0].seen.endswith("the last 1 queue get nothing new and hold 4 messages for the group")


def test_messages_that_nobody_can_read_are_opened_by_the_change_that_closed_them() -> None:
    (a, b) = findings(group(stranded=7))
    assert a.seen == "7 messages wait in queue a/3 of orders, which were closed before the group had read them"
    assert (b.subject, b.command) == ("orders at b", "evenq topic scale orders --queues 2 --broker b")
    result = {
        permission: findings(group(stranded=7, permission=permission))[0]
        for permission in (Permission.NONE, Permission.WRITE)
    }
    assert result[Permission.NONE].seen.endswith("which no member may read: the topic's permission there is NONE")
    assert result[Permission.NONE].command == "evenq topic permit orders read --broker a"
    assert result[Permission.WRITE].command == "evenq topic permit orders read-write --broker a"


def test_brokers_with_different_settings_are_told_the_newest() -> None:
    mine, other = {"strategy": "STICKY", "max_attempts": "5", "ordered": "no"}, {"strategy": "", "max_attempts": "17"}
    (found,) = findings(group(settings=(mine, other | {"ordered": "no"})))
    assert found.seen == (
        "brokers know the group by different settings: strategy is STICKY at a, NONE at b; max_attempts is 5 at a, 17 at b"
    )
    assert found.command == "evenq group create g --strategy NONE --max-attempts 17"


def test_many_queues_are_one_finding_and_the_worst_comes_first() -> None:
    nobody = ("",) * 4
    found = findings(group(given=nobody, owners=nobody, counts=(2, 1)))
    assert [one.kind for one in found] == [
        FindingKind.UNOWNED_QUEUES,
        FindingKind.UNEQUAL_QUEUES,
        FindingKind.UNEQUAL_QUEUES,
    ]
    assert found[0].seen == (
        "no member has queues a/0, a/1, b/0 and b/1: STICKY gives them to no member, nothing waits there yet"
    )
