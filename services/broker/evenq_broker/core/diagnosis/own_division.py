"""Owners of the queues of a group whose members divide them by themselves, and the reasons.

Without a strategy, every member of a group may read every broker. Members that own queues (push and pull consumers of
our SDK, Spark) then divide the queues and lock what they take. Only the brokers' locks show the owners; a rebalancer,
which decides nothing there, would name every member. Called for `Assignment/Explain`; pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from evenq.model.names import RETRY_PREFIX
from evenq_broker.core.diagnosis.findings import count
from evenq_broker.core.diagnosis.group_facts import ALL_MEMBERS, GroupFacts, QueueAt

DEFAULT = "AVG"
"""Strategy of a member of our SDK that does not report one."""


@dataclass(frozen=True, slots=True)
class OwnDivision:
    """Division of some topics of one group."""

    queues: list[QueueAt] = field(default_factory=list)
    """Ascending; `holder` is the owner, `*` where members without locks compete for unlocked queues."""
    reasons: dict[str, str] = field(default_factory=dict)  # topic -> reason for the places of its queues
    idle: dict[str, str] = field(default_factory=dict)
    """Client id of a member without any queue of these topics -> reason."""
    strategy: str = ""


def strategies_of(facts: GroupFacts, topic: str) -> list[str]:
    """Returns the strategies by which owners divide the topic's queues, ascending; empty: no reader owns queues."""
    return sorted({at.member.strategy or DEFAULT for at in facts.readers(topic) if at.owns})


def own_division(facts: GroupFacts, shared: Iterable[str]) -> OwnDivision:
    """Returns the division of the topics of `shared` that members divide by themselves, and of the group's retry topic,
    which they then divide, too. `shared`: topics of which each member may read every broker.
    """
    own = {topic for topic in shared if strategies_of(facts, topic)}
    if own:
        own.add(RETRY_PREFIX + facts.group)
    division = OwnDivision(strategy=", ".join(sorted({one for topic in own for one in strategies_of(facts, topic)})))
    holders: set[str] = set()
    for topic in sorted(own):
        readers = facts.readers(topic)
        owners = [at for at in readers if at.owns]
        queues = [at for at in facts.queues.values() if at.queue.topic == topic]
        holders |= {at.holder for at in queues}
        division.queues.extend(queues)
        division.reasons[topic] = (
            f"{count(len(owners), 'member')} divide{'s' * (len(owners) == 1)} {count(len(queues), 'queue')} by "
            f"{' and '.join(strategies_of(facts, topic))}: the group has no strategy"
        )
        for at in readers:
            division.idle.setdefault(at.member.client_id, _idleness(len(owners), len(queues), owns=at.owns))
    for client_id in holders & division.idle.keys():
        del division.idle[client_id]
    return division


def _idleness(owners: int, queues: int, *, owns: bool) -> str:
    if not owns:
        return (
            "the other members own queues and have divided all among themselves; give the group a strategy, by which "
            "both kinds share"
        )
    if owners > queues:
        return f"{owners} members share {queues} queues; add queues, or run {max(queues, 1)} members at most"
    return "it holds no queue's lock"


def owner_of(at: QueueAt, facts: GroupFacts) -> str:
    """Returns the client id of the queue's reader, `*` for members that compete; empty: none."""
    if at.holder:
        return at.holder
    competes = any(not one.owns for one in facts.readers(at.queue.topic))
    return ALL_MEMBERS if competes else ""
