"""Findings about a group, from the facts of one moment, or of two a little apart; each finding has one fix.

Called by `rpc.diagnosis` for `DiagnoseGroup`. A healthy group has no finding. Findings that a hand-over shows for a
moment must be in both looks. Those that need time, as a member that was notified and has not followed, count only after
that time. Pure; one function for each kind of finding, each tested with a sick group and a healthy one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

from evenq.model import MessageModel, MessageQueue, MessageType
from evenq.model.names import is_system_topic, table_topic
from evenq_broker.core.diagnosis.findings import (
    SETTLED_MS,
    Finding,
    FindingKind,
    Looks,
    Severity,
    age,
    by_topic,
    command,
    count,
    names,
    place,
    queue_names,
    room_of,
    settled,
    waiting,
)
from evenq_broker.core.diagnosis.group_facts import GivenQueue, GroupFacts, MemberAt, QueueAt
from evenq_broker.core.diagnosis.queue_troubles import QUEUE_RULES
from evenq_broker.core.groups.members import Protocol
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of

HANGS_MS = 30_000
"""A hand-over that takes longer hangs: ten times what a member gets to drain by default."""
SILENT_SHARE = 0.6
"""A member without a sign of life for this part of its lease is silent: it missed two of its own beats."""
TABLE_LATE_MS = 3_600_000
"""An exporter that reports nothing for this time, although messages wait, does not run; six windows by default."""
BESIDE_OWNERS = "the group has no strategy, and its members that own queues have divided all among themselves"
_TWIN = re.compile(r"^(.+)~[0-9a-f]+$")


def findings(now: GroupFacts, before: GroupFacts | None = None) -> list[Finding]:
    """Returns all findings, the worst first. `before`: a look some seconds earlier; None: `now` alone counts."""
    looks = Looks(now, before or now)
    problems = [one for rule in _RULES for one in rule(looks)]
    order = list(Severity)
    return sorted(problems, key=lambda one: (order.index(one.severity), one.kind, one.subject))


# ------------------------------------------------------------------------------------------------- servers


def _silent_brokers(looks: Looks) -> Iterable[Finding]:
    for name, why in looks.now.silent.items():
        yield Finding(
            kind=FindingKind.BROKER_SILENT,
            severity=Severity.WARNING,
            subject=name,
            seen=f"broker {name} did not answer ({why}); what it holds was not looked at",
            fix="check that it runs, then repeat the diagnosis",
            command=command("broker show", name),
        )


def _missing_brokers(looks: Looks) -> Iterable[Finding]:
    for name, lost in looks.now.lost.items():
        held = [(lost.unread, "messages that no group ever read"), (lost.dead_letters, "dead letters")]
        contents = " and ".join(f"{number} {what}" for number, what in held if number)
        drained = (
            f"it was drained, and holds {contents}" if contents else "what it holds is out of reach and counted nowhere"
        )
        yield Finding(
            kind=FindingKind.BROKER_MISSING,
            severity=Severity.NOTE if contents else Severity.ERROR,
            subject=name,
            seen=f"broker {name} belongs to the cluster and has been missing for {age(lost.gone_ms)}: {drained}",
            fix="start it again on its data; only if the data is lost or not wanted, make the others forget it "
            f"with `{command('broker forget', name)}`; this shows which brokers are missing, and since when",
            command=command("broker list"),
        )


def _rebalancer_away(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    if facts.rebalancer and facts.rebalancer_problem:
        yield Finding(
            kind=FindingKind.REBALANCER_AWAY,
            severity=Severity.WARNING,
            subject=facts.rebalancer,
            seen=f"no rebalancer answers ({facts.rebalancer_problem}); brokers repeat its last decisions",
            fix="check that it runs",
            command=command("cluster show"),
        )


def _strategy(looks: Looks) -> Iterable[Finding]:
    decided = looks.now.decided
    known = {topic for part in looks.now.brokers for topic in part.counts}
    for problem in decided.problems if decided else ():
        topic = problem.partition(": ")[0]
        if topic not in known:
            if not is_system_topic(topic) and not looks.now.silent:
                yield Finding(
                    kind=FindingKind.MISSING_TOPIC,
                    severity=Severity.WARNING,
                    subject=topic,
                    seen=f"members subscribe to {topic}, which no broker has",
                    fix="create it, or take it out of their subscriptions",
                    command=command("topic create", topic),
                )
            continue
        yield Finding(
            kind=FindingKind.STRATEGY_FAILS,
            severity=Severity.ERROR,
            subject=topic,
            seen=problem,
            fix="give the group a strategy that works for it",
            command=command("group create", looks.now.group, strategy="STICKY"),
        )


# ------------------------------------------------------------------------------------------------- owners


def _nobody_reads(looks: Looks) -> Iterable[Finding]:
    """Offers no fix that reads the messages for the group: its application would miss them."""
    facts = looks.now
    members = [view.member for views in facts.members.values() for view in views[-1:]]
    unread: dict[str, list[QueueAt]] = {}
    for at in facts.queues.values():
        topic = at.queue.topic
        if topic == table_topic(facts.group):
            continue
        if at.lag and not (members and is_system_topic(topic)) and not any(one.reads(topic) for one in members):
            unread.setdefault(topic, []).append(at)
    for topic, queues in unread.items():
        wait = f"{sum(at.lag for at in queues)} messages wait in {count(len(queues), 'queue')} of {topic}"
        yield Finding(
            kind=FindingKind.NOBODY_READS,
            severity=Severity.WARNING if members else Severity.ERROR,
            subject=topic,
            seen=f"the group has read {topic}, but none of its {count(len(members), 'member')} subscribes to it: {wait}"
            if members
            else f"the group has no members, and {wait}",
            fix=f"{'subscribe its consumers to it' if members else 'start its consumers'}; this shows what waits and "
            "since when, and changes nothing",
            command=command("offset show", facts.group, topic=topic),
        )


def _tables(looks: Looks) -> Iterable[Finding]:
    """Finds a table without an exporter, which has no members: it only commits offsets."""
    facts = looks.now
    topic = table_topic(facts.group)
    late = [at for at in facts.queues.values() if at.queue.topic == topic and at.lag and at.unmoved_ms >= TABLE_LATE_MS]
    if late:
        yield Finding(
            kind=FindingKind.TABLE_BEHIND,
            severity=Severity.WARNING,
            subject=topic,
            seen=f"{sum(at.lag for at in late)} messages of {count(len(late), 'queue')} of {topic} are in no file of "
            f"its table, and no exporter reported any progress for {age(max(at.unmoved_ms for at in late))}",
            fix="start its exporter, unless its files close after a longer time (--close-after); if no table is wanted "
            "any more, delete this group, and retention does not wait; this shows what waits",
            command=command("offset show", facts.group, topic=topic),
        )


def _schedules(looks: Looks) -> Iterable[Finding]:
    """Names no schedule: a user may see the group without a right to the topic's schedules."""
    for part in looks.now.brokers:
        for one in part.schedules:
            of_topic = f"of {one.topic} at broker {part.broker_name}"
            see = command("schedule list", one.topic)
            if one.failing:
                yield Finding(
                    kind=FindingKind.SCHEDULE_FAILS,
                    severity=Severity.WARNING,
                    subject=one.topic,
                    seen=f"{count(one.failing, 'schedule')} {of_topic} cannot send messages: {one.problem}",
                    fix="remove the cause: times that pass meanwhile get messages by the policy of each schedule; this "
                    "shows the cause of each",
                    command=see,
                )
            if one.missed:
                yield Finding(
                    kind=FindingKind.SCHEDULE_MISSED,
                    severity=Severity.NOTE,
                    subject=one.topic,
                    seen=f"{count(one.missed, 'schedule')} {of_topic} could not send for a while, which ended within "
                    "the last hour, and some of the times got no message",
                    fix="create schedules whose times all count with `--missed all`; this shows how many each missed",
                    command=see,
                )


def _unowned(facts: GroupFacts) -> dict[MessageQueue, GivenQueue | None]:
    """Returns readable queues without an owner: by the decision, or without a lock where members divide them."""
    unowned: dict[MessageQueue, GivenQueue | None] = {
        queue: given for queue, given in facts.given.items() if not given.owner and not given.held
    }
    if not facts.members:
        return {}
    own = {topic for topic in facts.own_topics if settled(facts.readers(topic))}
    return unowned | {queue: None for queue, at in facts.queues.items() if queue.topic in own and not at.holder}


def _owners(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    unowned = looks.lasting(_unowned)
    zones: dict[str, list[MessageQueue]] = {}
    for queue in list(unowned):
        room = room_of(queue, facts.given.get(queue))
        if room and all(not one.owner for other, one in facts.given.items() if room_of(other, one) == room):
            zones.setdefault(room, []).append(queue)
            del unowned[queue]
    for zone, queues in sorted(zones.items()):
        yield Finding(
            kind=FindingKind.UNCOVERED_ZONE,
            severity=Severity.ERROR,
            subject=zone,
            seen=f"no member may read in zone {zone}: none has its {queue_names(queues)}, {waiting(facts, queues)}",
            fix="share the queues of zones without members among all, or run a member there",
            command=command("group create", facts.group, strategy="MACHINE_ROOM_NEARBY-AVG"),
        )
    for topic, queues in by_topic(unowned).items():
        strategy = facts.decided.strategy if facts.decided and queues[0] in facts.given else ""
        why = f"{strategy} gives them to no member" if strategy else "no member has taken their locks"
        yield Finding(
            kind=FindingKind.UNOWNED_QUEUES,
            severity=Severity.ERROR,
            subject=topic,
            seen=f"no member has {queue_names(queues)}: {why}, {waiting(facts, queues)}",
            fix="this shows the owner of each queue, and why"
            if strategy == "STICKY"
            else "let the group's strategy give every queue to a member",
            command=command("group explain", facts.group, topic=topic)
            if strategy == "STICKY"
            else command("group create", facts.group, strategy="STICKY"),
        )


def _doubled(facts: GroupFacts) -> dict[MessageQueue, list[str]]:
    """Returns queues that two members read: by their locks, and by the answers to SDKs without locks."""
    readers: dict[MessageQueue, set[str]] = {queue: {at.holder} for queue, at in facts.queues.items() if at.holder}
    for (client_id, _), assignment in facts.newest_told().items():
        views = facts.members.get(client_id, ())
        if any(view.member.protocol is Protocol.V2 for view in views):
            for queue in assignment.queues:
                if queue.queue_id >= 0:
                    readers.setdefault(queue, set()).add(client_id)
    shared = {queue for queue in readers if len(readers[queue]) > 1 and _one_owner(facts, queue)}
    return {queue: sorted(readers[queue]) for queue in sorted(shared)}


def _one_owner(facts: GroupFacts, queue: MessageQueue) -> bool:
    """Returns False if the rebalancer itself lets several members pop this queue."""
    if facts.decided is None:
        return True
    return queue in facts.given or all(one.queue != queue for one in facts.decided.queues)


def _two_owners(looks: Looks) -> Iterable[Finding]:
    for queue, owners in looks.lasting(_doubled).items():
        yield Finding(
            kind=FindingKind.TWO_OWNERS,
            severity=Severity.ERROR,
            subject=place(queue),
            seen=f"{names(owners)} read {place(queue)}: what one has read the other gets too",
            fix="restart the one that should not; this shows both and what they hold",
            command=command("client list", group=looks.now.group),
        )


def _hanging(facts: GroupFacts) -> dict[tuple[MessageQueue, str], tuple[GivenQueue, str]]:
    """Returns queues that a member was given and does not hold, with their holders."""
    hanging = {}
    for queue, given in facts.given.items():
        at = facts.queues.get(queue)
        views = facts.members.get(given.owner, [])
        if at is None or at.holder == given.owner or not any(view.owns for view in views):
            continue
        if given.age_ms >= (HANGS_MS if at.holder else SETTLED_MS) and settled(views):
            hanging[queue, given.owner] = (given, at.holder)
    return hanging


def _hand_overs(looks: Looks) -> Iterable[Finding]:
    grouped: dict[tuple[str, str, str], list[GivenQueue]] = {}
    for (queue, owner), (given, holder) in looks.lasting(_hanging).items():
        grouped.setdefault((queue.topic, owner, holder), []).append(given)
    for (topic, owner, holder), ones in grouped.items():
        queues, age_ms = [one.queue for one in ones], max(one.age_ms for one in ones)
        has = f"{holder} does not release them" if holder else "it has not taken them"
        yield Finding(
            kind=FindingKind.HAND_OVER_HANGS,
            severity=Severity.WARNING if holder else Severity.ERROR,
            subject=f"{topic} to {owner}",
            seen=f"{queue_names(queues)} of {topic} were given to {owner} {age(age_ms)} ago, but {has}",
            fix=f"restart {holder or owner} if it hangs, or let it follow the group, without assignment='client'; "
            "this shows it",
            command=command("client show", holder or owner),
        )


# ------------------------------------------------------------------------------------------------- members


def _subscriptions(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    members = [view.member for views in facts.members.values() for view in views[-1:]]
    subscribers = [one for one in members if one.subscriptions and one.model is MessageModel.CLUSTERING]
    show = command("group show", facts.group)
    fix = (
        "give all members the same topics and filters, or put those that need others into other groups; this shows them"
    )
    for topic, filters in different_filters(wanted_of(subscribers)).items():
        differences = "; ".join(f"{names(ids)} by {one.type} {one.expression!r}" for one, ids in filters.items())
        yield Finding(
            kind=FindingKind.DIFFERENT_SUBSCRIPTIONS,
            severity=Severity.ERROR,
            subject=topic,
            seen=f"members filter {topic} differently: {differences}; what one leaves out is passed over for all",
            fix=fix,
            command=show,
        )
    for topic, missing in _strangers(facts).items():
        yield Finding(
            kind=FindingKind.DIFFERENT_SUBSCRIPTIONS,
            severity=Severity.WARNING,
            subject=topic,
            seen=f"{names(missing)} {_does(missing)} not subscribe to {topic}, which the others in the group do",
            fix=fix,
            command=show,
        )


def _strangers(facts: GroupFacts) -> dict[str, list[str]]:
    """Returns topic -> members that do not read it while others do (RG-8)."""
    topics: dict[str, set[str]] = {}
    for client_id, views in facts.members.items():
        member = views[-1].member
        if member.subscriptions and member.model is MessageModel.CLUSTERING:
            topics[client_id] = {one.topic for one in member.subscriptions if not is_system_topic(one.topic)}
    every = sorted(set().union(*topics.values()))
    strangers = {topic: [client_id for client_id, own in topics.items() if topic not in own] for topic in every}
    return {topic: missing for topic, missing in strangers.items() if missing}


def _order_not_kept(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    types = {topic: counts.message_type for part in facts.brokers for topic, counts in part.counts.items()}
    for topic in facts.topics:
        if types.get(topic) is not MessageType.FIFO:
            continue
        readers = [at.member for at in facts.readers(topic)]
        receivers = sorted(one.client_id for one in readers if one.protocol is Protocol.V2 and not facts.ordered)
        unordered = sorted(one.client_id for one in readers if one.unordered)
        if receivers:
            yield Finding(
                kind=FindingKind.ORDER_NOT_KEPT,
                severity=Severity.WARNING,
                subject=topic,
                seen=f"{topic} is FIFO, but the group is not ordered: {names(receivers)} may have several messages of "
                "one message group at a time, and get them in any order after a failure",
                fix="make the group ordered",
                command=command("group create", facts.group, ordered=True),
            )
        if unordered:
            yield Finding(
                kind=FindingKind.ORDER_NOT_KEPT,
                severity=Severity.WARNING,
                subject=topic,
                seen=f"{topic} is FIFO, but {names(unordered)} {_does(unordered)} not keep its order (ordered=False)",
                fix="leave `ordered` out where these consumers are made; this shows them",
                command=command("client list", group=facts.group),
            )


def _forbidden(looks: Looks) -> Iterable[Finding]:
    refused = {client_id: topics for part in looks.now.brokers for client_id, topics in part.refused.items()}
    for client_id, topics in refused.items():
        yield Finding(
            kind=FindingKind.MEMBER_FORBIDDEN,
            severity=Severity.WARNING,
            subject=client_id,
            seen=f"{client_id} subscribes to {names(topics)} without a grant to consume; only other members read that",
            fix="grant it in the users file, or take it out of the client's subscriptions",
            command=command("client show", client_id),
        )


def _duplicates(looks: Looks) -> Iterable[Finding]:
    members = looks.now.members
    times = sum(part.duplicates for part in looks.now.brokers)
    for client_id, views in members.items():
        match = _TWIN.match(client_id)
        if match is None or match[1] not in members:
            continue
        hosts = [view[-1].member.address or "an unknown host" for view in (members[match[1]], views)]
        refused = f", refused {times} times so far" if times else ""
        yield Finding(
            kind=FindingKind.DUPLICATE_CLIENT_ID,
            severity=Severity.WARNING,
            subject=match[1],
            seen=f"two living clients have the id {match[1]}: at {hosts[0]} and at {hosts[1]}, where it continues as "
            f"{client_id}{refused}",
            fix="give each consumer an id of its own, or none; this shows the second one",
            command=command("client show", client_id),
        )


def _quiet(facts: GroupFacts) -> dict[str, MemberAt]:
    """Returns silent members: of our SDK at any broker, of other SDKs, which call only some brokers, at all of them."""
    quiet = {}
    for client_id, views in facts.members.items():
        silent = [view for view in views if view.lost or view.silent_ms > SILENT_SHARE * view.lease_ms]
        if silent and (len(silent) == len(views) or silent[0].member.protocol is Protocol.EVENQ):
            quiet[client_id] = max(silent, key=lambda view: view.silent_ms)
    return quiet


def _silent_members(looks: Looks) -> Iterable[Finding]:
    for client_id, view in looks.lasting(_quiet).items():
        owned = sum(at.holder == client_id for at in looks.now.queues.values())
        left_ms = max(0, view.lease_ms - view.silent_ms)
        yield Finding(
            kind=FindingKind.SILENT_MEMBER,
            severity=Severity.WARNING,
            subject=client_id,
            seen=f"{client_id} at {view.member.address or 'an unknown host'} was last seen {age(view.silent_ms)} "
            f"ago and holds {count(owned, 'queue')}; others get them in {age(left_ms)} if it stays silent",
            fix="check that it runs, and restart it if it hangs",
            command=command("client show", client_id),
        )


def _unbusy(facts: GroupFacts) -> dict[str, tuple[str, str]]:
    """Returns client id of a member without a queue -> topic, reason (AL-9)."""
    unbusy: dict[str, tuple[str, str]] = {}
    strangers = {client_id for missing in _strangers(facts).values() for client_id in missing}
    shared = sorted({queue.topic for queue in facts.given if not is_system_topic(queue.topic)})
    if facts.decided is not None and shared:
        for client_id, reason in facts.decided.idle.items():
            if client_id not in strangers:
                unbusy[client_id] = (shared[0], reason)
    for topic in facts.own_topics if not shared else ():
        queues = [at for at in facts.queues.values() if at.queue.topic == topic]
        readers = facts.readers(topic)
        if not all(at.holder for at in queues):
            continue  # a member without a queue may be about to take one of them
        holders = {at.holder for at in facts.queues.values()}
        for at in readers:
            client_id = at.member.client_id
            if client_id not in holders and client_id not in strangers:
                unbusy.setdefault(client_id, (topic, f"{len(readers)} members share {len(queues)} queues"))
    for topic in facts.topics if not shared else ():
        readers = facts.readers(topic)
        if settled(readers) and any(at.owns for at in readers):
            for at in readers:
                if not at.owns:
                    unbusy.setdefault(at.member.client_id, (topic, BESIDE_OWNERS))
    return unbusy


def _idle(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    grouped: dict[tuple[str, str], list[str]] = {}
    for client_id, reason in looks.lasting(_unbusy).items():
        grouped.setdefault(reason, []).append(client_id)
    for (topic, why), idle in grouped.items():
        queues = [queue for queue in facts.queues if queue.topic == topic]
        brokers, members = len({queue.broker_name for queue in queues}), len(facts.readers(topic))
        more = members > len(queues)
        widest = max((queue.queue_id + 1 for queue in queues), default=1)
        width = max(widest, math.ceil(members / max(1, brokers)))  # no broker gets fewer queues than it has
        yield Finding(
            kind=FindingKind.IDLE_MEMBERS,
            severity=Severity.NOTE if more else Severity.WARNING,
            subject=topic,
            seen=f"{names(idle)} {'has' if len(idle) == 1 else 'have'} no queue: {why}",
            fix="run fewer members, or give the topic more queues" if more else "share evenly",
            command=command("topic scale", topic, queues=width)
            if more
            else command("group create", facts.group, strategy="STICKY"),
        )


# ------------------------------------------------------------------------------------------------- settings


def _differing(facts: GroupFacts) -> dict[str, dict[str, list[str]]]:
    """Returns setting -> value -> brokers that have it, where they differ."""
    differing: dict[str, dict[str, list[str]]] = {}
    for part in facts.brokers:
        for name, value in part.settings.items():
            differing.setdefault(name, {}).setdefault(value, []).append(part.broker_name)
    return {name: values for name, values in differing.items() if len(values) > 1}


def _settings(looks: Looks) -> Iterable[Finding]:
    facts, differing = looks.now, looks.lasting(_differing)
    if not differing:
        return
    newest = max((part for part in facts.brokers if part.settings), key=lambda part: part.revised_ms)
    differences = "; ".join(
        f"{name} is " + ", ".join(f"{value or 'NONE'} at {names(brokers)}" for value, brokers in values.items())
        for name, values in differing.items()
    )
    options = {name: newest.settings[name] or "NONE" for name in ("strategy", "max_attempts") if name in differing}
    yield Finding(
        kind=FindingKind.DIFFERENT_SETTINGS,
        severity=Severity.WARNING,
        subject=facts.group,
        seen=f"brokers know the group by different settings: {differences}",
        fix=f"set the same at all brokers; this sets the newest values, those of {newest.broker_name}, and the "
        "others as the called broker has them",
        command=command("group create", facts.group, **options),
    )


_RULES: tuple[Callable[[Looks], Iterable[Finding]], ...] = (
    _silent_brokers,
    _missing_brokers,
    _rebalancer_away,
    _strategy,
    _nobody_reads,
    _tables,
    _schedules,
    _owners,
    _two_owners,
    _hand_overs,
    _subscriptions,
    _order_not_kept,
    _duplicates,
    _forbidden,
    _silent_members,
    _idle,
    _settings,
    *QUEUE_RULES,
)


def _does(names: Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"
