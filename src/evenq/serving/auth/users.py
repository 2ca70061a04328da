"""Users, their secrets and their grants, read from one TOML file. Pure: `Users.parse` gets the content.

    [users.orders]
    secret = "..."                       # or a list of up to four: all of them are valid, the first one signs
    allow = [
      { resource = "topic:orders-*", actions = ["publish", "consume"] },
      { resource = "group:orders-*", actions = ["consume"] },
    ]
    [users.operator]
    secret = "..."
    admin = true                         # everything except calls between servers
    [users.evenq-internal]
    secret = "..."
    internal = true                      # exactly one: for the servers themselves

Always true: what no grant allows is forbidden; no error contains a secret.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any

from evenq.errors import SettingsError
from evenq.model.names import DLQ_PREFIX, RETRY_PREFIX
from evenq.serving.rpc import Action
from evenq.wire.signature import Secret

SECRET_LENGTH_MIN = 8
SECRETS_MAX = 4
USERS_MAX = 10_000


class UserResource(StrEnum):
    """Kind of resource of a grant."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


_ACTIONS: Mapping[UserResource, frozenset[Action]] = {
    UserResource.TOPIC: frozenset(
        {
            Action.PUBLISH,
            Action.CONSUME,
            Action.REPLY,
            Action.DESCRIBE,
            Action.CREATE,
            Action.DELETE,
            Action.OPERATE,
        }
    ),
    UserResource.GROUP: frozenset({Action.CONSUME, Action.DESCRIBE, Action.CREATE, Action.DELETE, Action.OPERATE}),
    UserResource.CLUSTER: frozenset({Action.DESCRIBE, Action.OPERATE}),
}
_MAKES: Mapping[UserResource, tuple[Action, ...]] = {
    UserResource.TOPIC: (Action.PUBLISH, Action.CREATE),
    UserResource.GROUP: (Action.CONSUME, Action.CREATE, Action.OPERATE),
}
"""Actions of calls that may create a name of the kind, directly or by its first use."""
TENANTS_MAX = 8
"""Users that are checked for one name: further ones that may create it have grants as wide or wider."""


@dataclass(slots=True)
class _AllowedNames:
    """Names that one action is allowed on."""

    everything: bool = False
    exact: set[str] = field(default_factory=set)
    prefixes: tuple[str, ...] = ()

    def hold(self, name: str) -> bool:
        return self.everything or name in self.exact or (bool(self.prefixes) and name.startswith(self.prefixes))


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    secrets: tuple[Secret, ...]
    admin: bool = False
    internal: bool = False
    allowed: Mapping[tuple[UserResource, Action], _AllowedNames] = field(default_factory=dict)

    @property
    def unbound(self) -> bool:
        """True if no name needs a check: this user may make every public call."""
        return self.admin or self.internal

    def may_all(self, kind: UserResource, action: Action) -> bool:
        """Returns whether every name of the kind is allowed, also the empty one that means all."""
        names = self.allowed.get((kind, action))
        return self.unbound or (names is not None and names.everything)

    def may(self, kind: UserResource, action: Action, name: str) -> bool:
        """Returns whether the action is allowed on the name. Retry and dead-letter topics belong to their group."""
        if self.unbound:
            return True
        names = self.allowed.get((kind, action))
        if names is not None and names.hold(name):
            return True
        # A right on the group does not allow to write into these topics: only brokers do that.
        if kind is UserResource.TOPIC and name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and action is not Action.PUBLISH:
            group = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
            return self.may(UserResource.GROUP, action, group)
        return False

    def may_topic(self, action: Action, name: str) -> bool:
        return self.may(UserResource.TOPIC, action, name)

    def grants(self) -> list[tuple[str, tuple[str, ...]]]:
        """Returns resources such as `topic:orders-*` with their actions, both ascending; none for an admin."""
        actions: dict[str, set[str]] = {}
        for (kind, action), names in self.allowed.items():
            patterns = [*names.exact, *(f"{prefix}*" for prefix in names.prefixes)]
            for pattern in [*patterns, "*"] if names.everything else patterns:
                resource = kind.value if kind is UserResource.CLUSTER else f"{kind.value}:{pattern}"
                actions.setdefault(resource, set()).add(action.value)
        return [(resource, tuple(sorted(actions[resource]))) for resource in sorted(actions)]

    def makes_all(self, kind: UserResource) -> bool:
        """Returns whether the user may create every topic, or every group, so that none counts as the user's own."""
        return self.unbound or any(self.may_all(kind, action) for action in _MAKES[kind])

    def may_make(self, kind: UserResource, name: str) -> bool:
        """Returns whether calls of the user may create the name; retry and dead-letter topics depend on their group."""
        kind, name = _source(kind, name)
        return any(names.hold(name) for names in self.makes(kind))

    def makes(self, kind: UserResource) -> Iterator[_AllowedNames]:
        """Returns the names that the user's grants allow to create."""
        return (self.allowed[kind, action] for action in _MAKES[kind] if (kind, action) in self.allowed)


class _Tenants:
    """Users that may create some names of a kind; a search takes as many steps as there are lengths of prefixes."""

    def __init__(self, kind: UserResource, users: Iterable[User]) -> None:
        self._exact: dict[str, dict[str, User]] = {}
        self._prefixes: dict[str, dict[str, User]] = {}
        for user in users:
            for names in user.makes(kind):
                for name in names.exact:
                    self._exact.setdefault(name, {})[user.name] = user
                for prefix in names.prefixes:
                    self._prefixes.setdefault(prefix, {})[user.name] = user
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)

    def of(self, name: str) -> list[User]:
        """Returns the users that may create the name, the narrowest grants first, at most TENANTS_MAX."""
        found: dict[str, User] = {}
        prefixes = (self._prefixes.get(name[:length], {}) for length in self._lengths if length <= len(name))
        for user in chain(self._exact.get(name, {}).values(), *(users.values() for users in prefixes)):
            found[user.name] = user
            if len(found) == TENANTS_MAX:
                break
        return list(found.values())


class Users:
    """All users of one file."""

    def __init__(self, users: Sequence[User]) -> None:
        self._users = {user.name: user for user in users}
        internal = [user for user in users if user.internal]
        if len(internal) != 1:
            raise SettingsError(
                f"the users file has {len(internal)} users with internal = true; give exactly one, for the servers' "
                "calls among themselves"
            )
        self.internal = internal[0]  # the user with which servers sign calls to each other
        self._tenants = {kind: _Tenants(kind, (user for user in users if not user.makes_all(kind))) for kind in _MAKES}

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def __len__(self) -> int:
        return len(self._users)

    def tenants_of(self, kind: UserResource, name: str) -> list[User]:
        """Returns users that may create this topic or group but not all, the narrowest grants first; at most
        TENANTS_MAX.
        """
        kind, name = _source(kind, name)
        return self._tenants[kind].of(name)

    @staticmethod
    def parse(content: bytes) -> Users:
        """Parses a file's content. Raises SettingsError that names the user and the key, and never a secret."""
        try:
            content_table = tomllib.loads(content.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            # The parser's text may quote the file, so only the position is logged.
            raise SettingsError(f"the users file is not TOML{_place(error)}") from None
        unknown = sorted(set(content_table) - {"users"})
        tables = content_table.get("users", {})
        if unknown or not isinstance(tables, dict):
            raise SettingsError(f"the users file has {unknown or 'users'} where only tables [users.NAME] belong")
        if len(tables) > USERS_MAX:
            raise SettingsError(f"the users file has {len(tables)} users, the limit is {USERS_MAX}")
        return Users([user_of(name, table) for name, table in tables.items()])


def _source(kind: UserResource, name: str) -> tuple[UserResource, str]:
    """Returns the name whose grants decide who may create this one."""
    if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return UserResource.GROUP, name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
    return kind, name


def _place(error: Exception) -> str:
    text = str(error)
    at = text.rfind("(at ")
    return " " + text[at:] if at >= 0 else ""


def user_of(name: str, table: Any) -> User:
    """Returns the user of a table `[users.NAME]`. Raises SettingsError, which never contains a secret."""
    if not name or any(character in name for character in "/,= \t\n") or not name.isascii():
        raise SettingsError(f"user {name!r}: a name must be ASCII without blanks, '/', ',' and '='")
    if not isinstance(table, dict):
        raise SettingsError(f"user {name}: write a table [users.{name}]")
    unknown = sorted(set(table) - {"secret", "admin", "internal", "allow"})
    if unknown:
        raise SettingsError(f"user {name}: unknown key {unknown[0]!r}; known are secret, admin, internal and allow")
    admin, internal, allow = table.get("admin", False), table.get("internal", False), table.get("allow", [])
    if not isinstance(admin, bool) or not isinstance(internal, bool) or not isinstance(allow, list):
        raise SettingsError(f"user {name}: admin and internal must be true or false, allow must be a list")
    if ((admin or internal) and allow) or (admin and internal):
        raise SettingsError(f"user {name}: give one of admin, internal and allow")
    return User(
        name=name,
        secrets=tuple(_secrets(name, table.get("secret"))),
        admin=admin,
        internal=internal,
        allowed=_allowed(name, allow),
    )


def _secrets(name: str, secret_table: Any) -> Iterator[Secret]:
    secrets = secret_table if isinstance(secret_table, list) else [secret_table]
    if not 1 <= len(secrets) <= SECRETS_MAX:
        raise SettingsError(f"user {name}: give a secret, or a list of 1 to {SECRETS_MAX}")
    for secret in secrets:
        if not isinstance(secret, str) or len(secret) < SECRET_LENGTH_MIN:
            raise SettingsError(f"user {name}: a secret is a text of at least {SECRET_LENGTH_MIN} characters")
        yield Secret(secret)


def _allowed(name: str, grants: Sequence[Any]) -> Mapping[tuple[UserResource, Action], _AllowedNames]:
    allowed: dict[tuple[UserResource, Action], _AllowedNames] = {}
    for grant in grants:
        if not isinstance(grant, dict) or set(grant) != {"resource", "actions"}:
            raise SettingsError(f'user {name}: a grant is {{ resource = "topic:NAME", actions = ["consume"] }}')
        kind, pattern = _resource(name, grant["resource"])
        for action in _actions(name, kind, grant["actions"]):
            names = allowed.setdefault((kind, action), _AllowedNames())
            if pattern == "*":
                names.everything = True
            elif pattern.endswith("*"):
                names.prefixes = (*names.prefixes, pattern[:-1])
            else:
                names.exact.add(pattern)
    return allowed


def _resource(name: str, resource: Any) -> tuple[UserResource, str]:
    kind, colon, pattern = str(resource).partition(":")
    if kind == UserResource.CLUSTER and not colon:
        return UserResource.CLUSTER, "*"
    if kind not in {UserResource.TOPIC, UserResource.GROUP} or not pattern or "*" in pattern[:-1]:
        raise SettingsError(
            f"user {name}: resource {resource!r} is not one of topic:NAME, topic:PREFIX*, topic:*, the same with "
            "group:, and cluster"
        )
    return UserResource(kind), pattern


def _actions(name: str, kind: UserResource, actions: Any) -> frozenset[Action]:
    known = _ACTIONS[kind]
    if actions == ["*"]:
        return known
    if not isinstance(actions, list) or not actions or not all(action in known for action in actions):
        raise SettingsError(
            f'user {name}: actions {actions!r} of a {kind}; give a list out of {", ".join(sorted(known))}, or ["*"]'
        )
    return frozenset({*map(Action, actions), Action.DESCRIBE})  # each right includes DESCRIBE
