"""`evenq.v1.Admin/DiagnoseGroup`: what is wrong with a group, over all brokers and by what the rebalancer says.

The broker asked gathers a part from each broker and the rebalancer's explanation, each with a deadline, and judges
(`core.diagnosis`). What a hand-over looks like for a moment is looked at twice. Who does not answer is a finding of its
own: half a diagnosis never looks like a healthy group.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, Error, GroupNotFound
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, diagnosis_pb2
from evenq_broker.core.diagnosis import findings
from evenq_broker.core.findings import TRANSIENT, Finding
from evenq_broker.core.group_facts import EVERYBODY, Decided, GroupFacts
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.diagnosis_parts import decided_of, part_here, part_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["diagnose", "rpcs"]

METHOD = "/evenq.v1.Admin/DiagnoseGroup"
EXPLAIN = "/evenq.v1.Assignment/Explain"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
WATCH_MS = 1_500
WATCH_MS_MAX = 10_000
STUCK_MS_MAX = 86_400_000
FINDINGS_MAX = 1_000


def rpcs(broker: Broker) -> list[Rpc]:
    """The call of this module."""

    async def diagnose_group(request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(diagnosis_pb2.DiagnoseGroupRequest, request)
        if asked.local:
            part = await part_here(broker, asked.group)
            return diagnosis_pb2.DiagnoseGroupResponse(status=OK, part=part).SerializeToString()
        return (await diagnose(broker, asked)).SerializeToString()

    return [rpc(METHOD, diagnose_group, diagnosis_pb2.DiagnoseGroupResponse)]


async def diagnose(broker: Broker, asked: diagnosis_pb2.DiagnoseGroupRequest) -> diagnosis_pb2.DiagnoseGroupResponse:
    """Raises GroupNotFound, BadRequest for times out of range."""
    if not 0 <= asked.watch_ms <= WATCH_MS_MAX:
        raise BadRequest(f"watch_ms is {asked.watch_ms}, the range is 0 (the default) to {WATCH_MS_MAX}")
    if not 0 <= asked.stuck_ms <= STUCK_MS_MAX:
        raise BadRequest(f"stuck_ms is {asked.stuck_ms}, the range is 0 (the setting) to {STUCK_MS_MAX}")
    facts = await _look(broker, asked)
    found = findings(facts)
    if any(one.kind in TRANSIENT for one in found):
        before = facts
        await broker.clock.sleep_ms(asked.watch_ms or WATCH_MS)
        facts = await _look(broker, asked)
        found = findings(facts, before)
    return diagnosis_pb2.DiagnoseGroupResponse(
        status=OK,
        findings=[_message(one) for one in found[:FINDINGS_MAX]],
        decides=_who_decides(facts),
        members=len(facts.members),
        queues=len(facts.queues),
        brokers=[part.broker_name for part in facts.brokers],
        silent=sorted(facts.silent),
    )


async def _look(broker: Broker, asked: diagnosis_pb2.DiagnoseGroupRequest) -> GroupFacts:
    told = diagnosis_pb2.DiagnoseGroupRequest(group=asked.group, local=True).SerializeToString()
    own, answers, (decided, problem) = await asyncio.gather(
        part_here(broker, asked.group), broker.cluster.ask_peers(METHOD, told), _explained(broker, asked.group)
    )
    parts, silent = [own], {}
    for name, answer in answers:
        try:
            parts.append(_part(answer))
        except Error as error:
            silent[name] = error.message
    known = [part for part in parts if part.known]
    if not known and not any(part.members for part in parts):
        raise GroupNotFound(f"no consumer group {asked.group!r} on any broker; see `evenq group list`")
    return GroupFacts(
        group=asked.group,
        strategy=known[0].strategy if known else "",
        ordered=any(part.ordered for part in known),
        brokers=tuple(sorted(map(part_of, parts), key=lambda part: part.broker_name)),
        silent=silent,
        rebalancer=broker.settings.rebalancer,
        decided=decided,
        rebalancer_problem=problem,
        stuck_ms=asked.stuck_ms or broker.settings.stuck_ms,
    )


def _part(answer: bytes | Error) -> diagnosis_pb2.GroupPart:
    if isinstance(answer, Error):
        raise answer
    response = diagnosis_pb2.DiagnoseGroupResponse.FromString(answer)
    check(response.status)
    return response.part


async def _explained(broker: Broker, group: str) -> tuple[Decided | None, str]:
    """What the rebalancer says of the group, and why it says nothing if it should."""
    link = broker.cluster.rebalancer
    if link is None:
        return None, ""
    request = assignment_pb2.ExplainRequest(group=group).SerializeToString()
    try:
        answer = await link.forward(EXPLAIN, request, broker.settings.peer_timeout_ms)
        response = assignment_pb2.ExplainResponse.FromString(answer)
        check(response.status)
    except GroupNotFound:
        return None, ""  # nobody has told it of the group yet
    except Error as error:
        return None, error.message
    return decided_of(response, now_ms=broker.clock.now_ms()), ""


def _who_decides(facts: GroupFacts) -> str:
    strategy = facts.strategy or "no strategy"
    if facts.rebalancer_problem:
        return f"no rebalancer answers: brokers repeat its last decisions, then compute by {strategy}"
    if facts.decided is None:
        return f"no rebalancer: brokers and members compute by {strategy}"
    decides_by = facts.decided.strategy or facts.strategy
    if not decides_by or any(one.owner == EVERYBODY for one in facts.decided.queues):
        return "the rebalancer gives all queues to every member: the group has no strategy"
    return f"the rebalancer decides by {decides_by}"


def _message(finding: Finding) -> diagnosis_pb2.Finding:
    return diagnosis_pb2.Finding(
        kind=finding.kind,
        severity=finding.severity,
        subject=finding.subject,
        seen=finding.seen,
        fix=finding.fix,
        command=finding.command,
    )
