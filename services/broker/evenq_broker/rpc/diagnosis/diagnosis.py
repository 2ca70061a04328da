"""`evenq.v1.Admin/DiagnoseGroup`: faults of a group, over all brokers and the rebalancer; and
`evenq.v1.Assignment/Explain`: the member of each queue, and the reason.

The broker collects the state of the group from each broker and the rebalancer, each with a deadline, and evaluates it
(`core.diagnosis.diagnosis`). States that a hand-over also has for a moment are checked twice. A broker that does not
answer is a finding of its own: an incomplete diagnosis never looks like a healthy group.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from evenq.errors import BadRequest, Error, GroupNotFound, NotImplementedYet
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import assignment_pb2, diagnosis_pb2
from evenq_broker.core.diagnosis.diagnosis import findings
from evenq_broker.core.diagnosis.findings import TRANSIENT, Finding
from evenq_broker.core.diagnosis.group_facts import ALL_MEMBERS, Decided, GroupFacts
from evenq_broker.core.diagnosis.own_division import strategies_of
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.rpc.answers import OK, answer_of, parsed
from evenq_broker.rpc.diagnosis.parts import GroupParts, add_own_division, decided_of, part_of
from evenq_broker.runtime import Runtime

METHOD = "/evenq.v1.Admin/DiagnoseGroup"
EXPLAIN = "/evenq.v1.Assignment/Explain"
EXPLAIN_TIMEOUT_MS = 2_500
WATCH_MS = 1_500
WATCH_MS_MAX = 10_000
STUCK_MS_MAX = 86_400_000
FINDINGS_MAX = 1_000


class Doctor:
    """The handlers of one broker; it collects the states of a group at all brokers."""

    def __init__(
        self, runtime: Runtime, *, cluster: ClusterLink, rebalancer: RebalancerLink | None, group_parts: GroupParts
    ) -> None:
        self._runtime, self._cluster, self._rebalancer = runtime, cluster, rebalancer
        self._group_parts = group_parts

    def rpcs(self) -> list[Rpc]:
        return [rpc(METHOD, self.diagnose_group), rpc(EXPLAIN, self.explain)]

    async def diagnose_group(self, data: bytes, _context: RpcContext) -> bytes:
        """Returns the findings. Raises GroupNotFound, and BadRequest for times out of range."""
        request = parsed(diagnosis_pb2.DiagnoseGroupRequest, data)
        if request.local:
            response = diagnosis_pb2.DiagnoseGroupResponse(status=OK, part=await self._group_parts.here(request.group))
            return response.SerializeToString()
        if not 0 <= request.watch_ms <= WATCH_MS_MAX:
            raise BadRequest(f"watch_ms is {request.watch_ms}, the range is 0 (the default) to {WATCH_MS_MAX}")
        if not 0 <= request.stuck_ms <= STUCK_MS_MAX:
            raise BadRequest(f"stuck_ms is {request.stuck_ms}, the range is 0 (the setting) to {STUCK_MS_MAX}")
        facts = await self._look(request)
        problems = findings(facts)
        if any(one.kind in TRANSIENT for one in problems):
            before = facts
            await self._runtime.clock.sleep_ms(request.watch_ms or WATCH_MS)
            facts = await self._look(request)
            problems = findings(facts, before)
        return diagnosis_pb2.DiagnoseGroupResponse(
            status=OK,
            findings=[_message(one) for one in problems[:FINDINGS_MAX]],
            decides=_who_decides(facts),
            members=len(facts.members),
            queues=len(facts.queues),
            brokers=[part.broker_name for part in facts.brokers],
            silent=sorted(facts.silent),
        ).SerializeToString()

    async def explain(self, data: bytes, _context: RpcContext) -> bytes:
        """Returns the rebalancer's explanation; queues that members divide themselves are explained by their locks."""
        request = parsed(assignment_pb2.ExplainRequest, data)
        link = self._rebalancer
        if link is None:
            raise NotImplementedYet(
                f"broker {self._runtime.settings.broker_name} has no rebalancer; start one and set `rebalancer`"
            )
        response = assignment_pb2.ExplainResponse.FromString(await link.forward(EXPLAIN, data, EXPLAIN_TIMEOUT_MS))
        shared = {one.queue.topic for one in response.queues if one.owner == ALL_MEMBERS}
        if shared:
            facts = await self._facts(diagnosis_pb2.DiagnoseGroupRequest(group=request.group))
            add_own_division(response, facts, shared, topic=request.topic)
        return response.SerializeToString()

    async def _look(self, request: diagnosis_pb2.DiagnoseGroupRequest) -> GroupFacts:
        facts, (decided, problem) = await asyncio.gather(self._facts(request), self._explained(request.group))
        return replace(facts, decided=decided, rebalancer_problem=problem)

    async def _facts(self, request: diagnosis_pb2.DiagnoseGroupRequest) -> GroupFacts:
        """Returns the facts of all brokers. Raises GroupNotFound."""
        local_request = diagnosis_pb2.DiagnoseGroupRequest(group=request.group, local=True).SerializeToString()
        own, answers = await asyncio.gather(
            self._group_parts.here(request.group), self._cluster.peers.ask_peers(METHOD, local_request)
        )
        parts, silent = [own], {}
        for name, result in answers:
            try:
                parts.append(answer_of(diagnosis_pb2.DiagnoseGroupResponse, result).part)
            except Error as error:
                silent[name] = error.message
        known = [part for part in parts if part.known]
        if not known and not any(part.members for part in parts):
            raise GroupNotFound(f"no consumer group {request.group!r} on any broker; see `evenq group list`")
        settings = self._runtime.settings
        return GroupFacts(
            group=request.group,
            strategy=known[0].strategy if known else "",
            ordered=any(part.ordered for part in known),
            brokers=tuple(sorted(map(part_of, parts), key=lambda part: part.broker_name)),
            silent=silent,
            rebalancer=settings.rebalancer,
            stuck_ms=request.stuck_ms or settings.stuck_ms,
        )

    async def _explained(self, group: str) -> tuple[Decided | None, str]:
        """Returns the rebalancer's decision about the group, and the error if it should have one."""
        link = self._rebalancer
        if link is None:
            return None, ""
        request = assignment_pb2.ExplainRequest(group=group).SerializeToString()
        try:
            data = await link.forward(EXPLAIN, request, self._runtime.settings.peer_timeout_ms)
            response = assignment_pb2.ExplainResponse.FromString(data)
            check(response.status)
        except GroupNotFound:
            return None, ""  # no broker has reported the group yet
        except Error as error:
            return None, error.message
        return decided_of(response, now_ms=self._runtime.clock.now_ms()), ""


def _who_decides(facts: GroupFacts) -> str:
    strategy = facts.strategy or "no strategy"
    own = sorted({one for topic in facts.topics for one in strategies_of(facts, topic)})
    if own and not facts.strategy and not facts.given:
        return f"its members divide the queues by {' and '.join(own)}: the group has no strategy"
    if facts.rebalancer_problem:
        return f"no rebalancer answers: brokers repeat its last decisions, then compute by {strategy}"
    if facts.decided is None:
        return f"no rebalancer: brokers and members compute by {strategy}"
    decides_by = facts.decided.strategy or facts.strategy
    if not decides_by or any(one.owner == ALL_MEMBERS for one in facts.decided.queues):
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
