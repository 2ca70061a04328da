"""Rights of the one who is signed in: its grants, and what they allow on each topic and group.

The brokers decide; this page only explains. It applies the rules of `evenq.serving.auth.users` to the grants that the
cluster reports for its caller: a name, a prefix or all names; retry and dead-letter topics belong to their group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import BaseRoute

from evenq.client.core.admin.query_views import CallerView, GrantView
from evenq.console.pages import ROWS, Console, Visit, route
from evenq.errors import BadRequest
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import Action, Resource

ACTIONS: Mapping[str, Sequence[str]] = {
    "topic": ("publish", "consume", "reply", "describe", "create", "delete", "operate"),
    "group": ("consume", "describe", "create", "delete", "operate"),
    "cluster": ("describe", "operate"),
}
GRANTS_SHOWN = 200
NAME_CHARACTERS_MAX = 255
_KINDS = {
    Resource.TOPIC: ("topic",),
    Resource.GROUP: ("group",),
    Resource.TOPIC_AND_GROUP: ("topic", "group"),
    Resource.CLUSTER: ("cluster",),
    Resource.BROKER: ("cluster",),
    Resource.CLIENT: ("cluster",),
}


def routes(console: Console) -> list[BaseRoute]:
    return [route(console, "/rights", _rights)]


@dataclass(frozen=True, slots=True)
class Right:
    """One action on one name."""

    action: str
    grants: Sequence[str]
    """Resources of the grants that allow it; empty: nothing allows it."""
    calls: Sequence[str]
    """Names of the calls that need it, perhaps with a right on the other kind."""


def rights_on(caller: CallerView, kind: str, name: str) -> list[Right]:
    """Returns each action on a topic, a group or the cluster, and what allows it."""
    return [Right(action, _allowing(caller, kind, action, name), calls_of(kind, action)) for action in ACTIONS[kind]]


def _allowing(caller: CallerView, kind: str, action: str, name: str) -> list[str]:
    if not caller.user:
        return ["no users"]
    if caller.admin:
        return ["admin"]
    found = [one.resource for one in caller.grants if _holds(one, kind, action, name)]
    if kind == "topic" and action != Action.PUBLISH and name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        group = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        found += [one.resource for one in caller.grants if _holds(one, "group", action, group)]
    return found


def _holds(grant: GrantView, kind: str, action: str, name: str) -> bool:
    granted, _, pattern = grant.resource.partition(":")
    if granted != kind or action not in grant.actions:
        return False
    return kind == "cluster" or pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1]))


def calls_of(kind: str, action: str) -> list[str]:
    """Returns the names of the calls that need this action on this kind, ascending."""
    rows = ((method, row.access) for method, row in CALLS.items())
    return sorted(
        {method.rpartition("/")[2] for method, one in rows if kind in _KINDS[one.resource] and one.action == action}
    )


@dataclass(frozen=True, slots=True)
class NameRights:
    """The allowed actions on one name."""

    name: str
    rights: Sequence[Right]


def _of_names(caller: CallerView, kind: str, names: Iterable[str]) -> list[NameRights]:
    return [NameRights(name, [one for one in rights_on(caller, kind, name) if one.grants]) for name in names]


async def _rights(visit: Visit) -> Response:
    kind, name = visit.query("kind", "topic"), visit.query("name").strip()
    if kind not in ACTIONS:
        raise BadRequest(f"kind is {kind[:50]!r}; it is one of {', '.join(ACTIONS)}")
    if len(name) > NAME_CHARACTERS_MAX:
        raise BadRequest(f"the name has {len(name)} characters; names have at most {NAME_CHARACTERS_MAX}")
    caller = await visit.admin.describe_caller()
    sample = await visit.figures.newest()
    known = {"topic": sample.topics, "group": sample.groups}
    listed = {one: None if views is None else sorted(views) for one, views in known.items()}
    names = listed.get(kind)
    begin = visit.number("begin")
    return visit.page(
        "rights.html",
        title="Rights",
        caller=caller,
        grants=caller.grants[:GRANTS_SHOWN],
        grants_hidden=max(0, len(caller.grants) - GRANTS_SHOWN),
        kind=kind,
        kinds=tuple(ACTIONS),
        name=name,
        asked=rights_on(caller, kind, name) if name or kind == "cluster" else None,
        names=_of_names(caller, kind, names[begin : begin + ROWS]) if names is not None else None,
        failure=sample.failures.get(f"{kind}s"),
        total=len(names or ()),
        begin=begin,
        rows=ROWS,
    )
