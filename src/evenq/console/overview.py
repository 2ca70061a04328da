"""The first page: brokers, copies and what needs attention; and the figures of one broker."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.views import ClusterView, FindingView
from evenq.console.pages import Console, Visit, route

WORST_GROUPS = 8


def routes(console: Console) -> list[BaseRoute]:
    return [
        route(console, "/", _overview),
        route(console, "/history/{kind}/{name:path}", _history),
    ]


async def _overview(visit: Visit) -> Response:
    sample = await visit.figures.newest()
    if sample.cluster is None and sample.groups is None:
        raise sample.failures["cluster"]
    groups = None if sample.groups is None else sorted(sample.groups.values(), key=lambda one: (-one.lag, one.group))
    return visit.page(
        "overview.html",
        title="Overview",
        sample=sample,
        cluster=sample.cluster,
        findings=_findings(sample.cluster) if sample.cluster is not None else [],
        groups=groups[:WORST_GROUPS] if groups is not None else None,
    )


def _findings(cluster: ClusterView) -> list[FindingView]:
    """Returns the faults that the sample shows; the doctor of a group finds more."""
    findings = [
        FindingView(
            kind="BROKER_MISSING",
            severity="ERROR",
            subject=one.name,
            seen="This broker is known to the others and is not there. No page counts its messages.",
            fix="Start it again. If it is gone for good, forget it.",
            command=f"evenq broker forget {one.name} --yes",
        )
        for one in cluster.missing
    ]
    findings += [
        FindingView(
            kind="BROKER_SILENT",
            severity="ERROR",
            subject=one.name,
            seen="This broker does not answer.",
            fix="See its log and its /readyz page.",
            command="evenq broker list",
        )
        for one in cluster.brokers
        if not one.answered
    ]
    if cluster.rebalancer and not cluster.rebalancer_answers:
        findings.append(
            FindingView(
                kind="REBALANCER_SILENT",
                severity="WARNING",
                subject=cluster.rebalancer,
                seen="The rebalancer does not answer; members divide queues themselves.",
                fix="See its log.",
                command="evenq cluster show",
            )
        )
    return findings


async def _history(visit: Visit) -> Response:
    """Returns times in seconds and values, for a chart."""
    await visit.figures.newest()
    points = visit.figures.history(visit.path("kind"), visit.path("name"))
    return JSONResponse([[at / 1_000 for at, _ in points], [value for _, value in points]])
