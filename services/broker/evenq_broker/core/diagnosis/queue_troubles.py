"""Findings about queues of a group: their numbers, their oldest messages, and messages that no member can read or
handle.

Called by `core.diagnosis.diagnosis`; here, too, a healthy group has no finding. Pure; one function for each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.model import Permission
from evenq.model.names import is_system_topic
from evenq_broker.core.diagnosis.findings import (
    Finding,
    FindingKind,
    Looks,
    Severity,
    age,
    by_topic,
    command,
    count,
    place,
    queue_names,
)

FAILING_SHARE = 0.5
"""From this part of all deliveries on a group has a fault and not just a bad message."""


def _widths(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    for part in facts.brokers:
        for topic, counts in sorted(part.counts.items()):
            write, read = counts.write_queues, counts.read_queues
            if write == read or is_system_topic(topic):
                continue
            at = f"{topic} at {part.broker_name} is written in {write} and read in {read} queues"
            edge = range(min(write, read), max(write, read))
            left = sum(one.lag for one in part.queues if one.queue.topic == topic and one.queue.queue_id in edge)
            deaf = f"what is sent to the last {count(len(edge), 'queue')} is not read by anybody"
            closing = f"the last {count(len(edge), 'queue')} get nothing new and hold {left} messages for the group"
            yield Finding(
                kind=FindingKind.UNEQUAL_QUEUES,
                severity=Severity.ERROR if write > read else Severity.NOTE,
                subject=f"{topic} at {part.broker_name}",
                seen=f"{at}: {deaf if write > read else closing}",
                fix="make all queues readable"
                if write > read
                else "close them once all groups have read them (this shows the plan, --yes does it)",
                command=command("topic scale", topic, queues=write, broker=part.broker_name),
            )


def _heads(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    for queue, at in facts.queues.items():
        if not at.lag or at.unmoved_ms < facts.stuck_ms or not (at.holder or at.inflight or at.head_attempt):
            continue
        who = f"{at.holder} holds the queue" if at.holder else f"{at.inflight} deliveries are under way"
        at_queue = f"{queue.broker_name}/{queue.queue_id}"
        tried = f", delivered {at.head_attempt} times" if at.head_attempt > 1 else ""
        yield Finding(
            kind=FindingKind.STUCK_HEAD,
            severity=Severity.ERROR if at.holder or facts.ordered else Severity.WARNING,
            subject=place(queue),
            seen=f"the oldest message of {place(queue)}, offset {at.committed}{tried}, has not been finished for "
            f"{age(at.unmoved_ms)} while {who}; {at.lag} messages wait",
            fix="look at it and at its consumer's log: a slow listener needs only time, what always fails becomes "
            "a dead letter after the group's max_attempts, to be sent again with "
            f"`{command('dlq replay', facts.group)}`; a message that the group may lose can be skipped with "
            f"`{command('offset skip', facts.group, topic=queue.topic, count=1, queue=at_queue)}`; this shows it",
            command=command("message find", queue.topic, queue=at_queue, offset=at.committed, limit=1),
        )


def _back(looks: Looks) -> Iterable[Finding]:
    facts = looks.now
    for queue, at in facts.queues.items():
        if at.back_from < 0:
            continue
        yield Finding(
            kind=FindingKind.OFFSETS_WENT_BACK,
            severity=Severity.WARNING,
            subject=place(queue),
            seen=f"the group went back in {place(queue)} from {at.back_from} to {at.back_to} {age(at.back_ms)} ago, "
            "and no operator moved it: the messages between were delivered again",
            fix="if a client did that by mistake, go forward again (this shows the plan, --yes does it)",
            command=command(
                "offset reset",
                facts.group,
                topic=queue.topic,
                to_offset=at.back_from,
                queue=f"{queue.broker_name}/{queue.queue_id}",
            ),
        )


def _stranded(looks: Looks) -> Iterable[Finding]:
    for part in looks.now.brokers:
        lags = {at.queue: at.lag for at in part.stranded}
        for topic, queues in by_topic(lags).items():
            counts = part.counts.get(topic)
            permission = counts.permission if counts else Permission.READ_WRITE
            where = f"{sum(lags[queue] for queue in queues)} messages wait in {queue_names(queues)} of {topic}"
            if permission.readable:
                why = "which were closed before the group had read them"
                fix = "open them until all groups have read them"
                open_ = command(
                    "topic scale", topic, queues=counts.write_queues if counts else 1, broker=part.broker_name
                )
            else:
                then = "read-write" if permission.writable else "read"
                why = f"which no member may read: the topic's permission there is {permission.name}"
                fix, open_ = "make it readable again", command("topic permit", topic, then, broker=part.broker_name)
            yield Finding(
                kind=FindingKind.STRANDED_MESSAGES,
                severity=Severity.ERROR,
                subject=f"{topic} at {part.broker_name}",
                seen=f"{where}, {why}",
                fix=fix,
                command=open_,
            )


def _failing(looks: Looks) -> Iterable[Finding]:
    brokers = looks.now.brokers
    waiting = sum(part.retries_waiting for part in brokers)
    failed, delivered = sum(part.failed for part in brokers), sum(part.delivered for part in brokers)
    if waiting and failed >= FAILING_SHARE * delivered:
        yield Finding(
            kind=FindingKind.MESSAGES_FAIL,
            severity=Severity.ERROR,
            subject=looks.now.group,
            seen=f"{count(waiting, 'message')} failed and wait for a retry; {failed} of {delivered} deliveries since "
            "the start of the brokers were given back or not finished in time",
            fix="look at the errors of the listeners; this shows the retries and the dead letters",
            command=command("group show", looks.now.group),
        )


QUEUE_RULES: tuple[Callable[[Looks], Iterable[Finding]], ...] = (_widths, _heads, _back, _stranded, _failing)
