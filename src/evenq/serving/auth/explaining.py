"""Why a user may or may not make a call: the rights that the call needs, and the grant that gives each. Pure.

`explain` answers from the content of a users file, as `evenq.serving.auth.guard` decides: the same table of calls, and
the same `User.may`. A test compares both for every call. Other checks of the guard are not covered: the
signature, its date, and client ids.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from evenq.errors import BadRequest, NotFound
from evenq.serving.auth.calls import CALLS, CallRow
from evenq.serving.auth.guard import KINDS, LOCK_QUEUES, SESSION, SOFT, TELEMETRY, WHOLE
from evenq.serving.auth.names import Named
from evenq.serving.auth.users import User, UserResource, Users, user_of
from evenq.serving.rpc import Action, CallKind

PULL = "/evenq.v1.Data/Pull"


@dataclass(frozen=True, slots=True)
class Need:
    """One right that a call needs."""

    kind: UserResource
    action: Action
    name: str = ""
    """Empty: every name of the kind."""
    optional: bool = False
    """True: without it the name is left out, and the call is allowed otherwise."""

    @property
    def resource(self) -> str:
        """The text of a grant's resource: `topic:orders`, `topic:*` or `cluster`."""
        return "cluster" if self.kind is UserResource.CLUSTER else f"{self.kind}:{self.name or '*'}"

    def met_by(self, user: User) -> bool:
        return user.may(self.kind, self.action, self.name) if self.name else user.may_all(self.kind, self.action)


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """A need and the grants that meet it."""

    need: Need
    grants: Sequence[str]
    """Empty: no grant does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The decision about one call of one user."""

    user: str
    method: str
    allowed: bool
    answers: Sequence[AccessAnswer]
    note: str = ""


def explain(content: bytes, user: str, method: str, named: Sequence[Named]) -> Explanation:
    """Explains the decision about a call with these names. Raises SettingsError, NotFound for an unknown user."""
    users = Users.parse(content)
    known = users.get(user)
    if known is None:
        raise NotFound(f"the users file has no user {user}; add a table [users.{user}], or check the name")
    row = CALLS[method]
    if row.access.action is Action.INTERNAL:
        note = "only servers make this call: the user with internal = true"
        return Explanation(user=user, method=method, allowed=known.internal, answers=(), note=note)
    needs = list(needs_of(method, row, named))
    grants = list(_grants(content, known))
    answers = [AccessAnswer(need, [text for text, holder in grants if need.met_by(holder)]) for need in needs]
    allowed = all(one.grants or one.need.optional for one in answers)
    note = "" if needs else "every known user may make this call"
    if (
        not allowed
        and method == PULL
        and all(known.may(one.kind, Action.REPLY, one.name) for one in named if not one.action)
    ):
        note = "with the right to reply it may read its own replies there, and nothing else"
    return Explanation(user=user, method=method, allowed=allowed, answers=answers, note=note)


def needs_of(method: str, row: CallRow, named: Sequence[Named]) -> Iterator[Need]:
    """Yields the rights that a call with these names needs."""
    access, names = row.access, row.names
    kinds = KINDS.get(access.resource)
    if kinds is None and (names is None or access.action is Action.OPERATE):
        if access.resource in WHOLE:
            yield Need(UserResource.CLUSTER, access.action)
        return
    needs = []
    for one in named:
        optional = method == TELEMETRY or (method in {SESSION, LOCK_QUEUES} and one.kind is UserResource.TOPIC)
        needs.append(Need(one.kind, one.action or access.action, one.name, optional))
    yield from needs
    if row.kind is CallKind.BIDI:  # the guard checks the names of each message, and requires none
        return
    given = {one.kind for one, need in zip(named, needs, strict=True) if one.action is None and not need.optional}
    for kind in kinds or ():
        if kind not in given and not (given and access.action in SOFT):
            yield Need(kind, access.action)


def method_of(text: str) -> str:
    """Returns the full name of a call: `/package.Service/Rpc`, `Service/Rpc` or `Rpc`. Raises BadRequest."""
    short = text.strip("/").lower()
    matches = [method for method in CALLS if _ends_with(method.lower(), short)]
    public = [method for method in matches if CALLS[method].access.action is not Action.INTERNAL]
    if len(matches) == 1 or len(public) == 1:
        return (public if len(public) == 1 else matches)[0]
    if matches:
        raise BadRequest(f"{text} is a call of several services; write one of {', '.join(map(short_name, matches))}")
    calls = {method.rpartition("/")[2]: method for method in CALLS}
    near = get_close_matches(text.rpartition("/")[2], list(calls), n=3, cutoff=0.5)
    guess = f"; did you mean {', '.join(near)}?" if near else ""
    raise BadRequest(f"there is no call {text}{guess} `evenq auth calls` lists all")


def short_name(method: str) -> str:
    """Returns `Service/Rpc`."""
    service, _, rpc = method.strip("/").partition("/")
    return f"{service.rpartition('.')[2]}/{rpc}"


def named_of(method: str, texts: Iterable[str]) -> list[Named]:
    """Returns the names of a call from `topic:NAME`, `group:NAME`, `FIELD=NAME` or NAME. Raises BadRequest."""
    names = CALLS[method].names
    paths = names.paths if names is not None else []
    own = {path.place: path for path in paths if path.action is not None}
    kinds = {path.kind for path in paths if path.action is None}
    named: list[Named] = []
    for text in texts:
        fields = ", ".join(f"{place}=NAME" for place in sorted(own))
        allowed = " or ".join([*(f"{kind}:NAME" for kind in sorted(kinds)), *([fields] if fields else [])])
        field, equals, value = text.partition("=")
        kind, colon, name = text.partition(":")
        if equals and field in own and value:
            named.append(Named(own[field].kind, value, own[field].action))
        elif colon and name and kind in kinds:
            named.append(Named(UserResource(kind), name))
        elif not colon and not equals and text and len(kinds) == 1:
            named.append(Named(next(iter(kinds)), text))
        elif not paths:
            raise BadRequest(f"{short_name(method)} names no topic or group; leave out {text}")
        else:
            raise BadRequest(f"{text!r} is not a name of {short_name(method)}; write {allowed}")
    return named


def _ends_with(method: str, short: str) -> bool:
    service, _, rpc = method.strip("/").partition("/")
    given_service, _, given_rpc = short.rpartition("/")
    return rpc == given_rpc and (not given_service or service == given_service or service.endswith(f".{given_service}"))


def _grants(content: bytes, user: User) -> Iterator[tuple[str, User]]:
    """Yields the text of each grant, with a user that has only this one."""
    if user.unbound:
        yield ("admin = true" if user.admin else "internal = true"), user
        return
    table: Mapping[str, object] = tomllib.loads(content.decode())["users"][user.name]
    allow = table.get("allow", [])
    for grant in allow if isinstance(allow, list) else []:
        actions = ", ".join(f'"{action}"' for action in grant["actions"])
        yield f"{grant['resource']} [{actions}]", user_of(user.name, {**table, "allow": [grant]})
