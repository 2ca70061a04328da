"""Shares of a limit that all tenants of a broker use together, so that none of them leaves the others without.

A tenant is a user whose grants cover some names. A limit counts things that have the name of a topic or group: the
topics themselves, or the open transactions of a topic. Nothing needs a stored owner: the things of a tenant are those
with names that it may make. So a broker may also refuse what another broker, a retry or a dead letter would add, where
no user calls. Names that no tenant may make (of operators, of users with `*`, without authentication) are bound by the
limit alone.

Always true: a tenant's first name is accepted while anything is free. Nothing is counted while less than three quarters
are taken, because a share can bind only then.

Example, 8 topics: `a` makes `a-1` to `a-6`, and `a-7` is refused, as 7 is more than three times the one that would be
left. `b` makes `b-1`. The rule is that of buffers in switches (Choudhury and Hahne, Dynamic queue length thresholds for
shared-memory packet switches, 1998).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from evenq.serving.auth.users import User, UserResource, Users

SHARE = 3
"""One tenant may hold up to this many times what it leaves free. That is three quarters if it is alone, three sevenths
each if there are two, and some is always left for the next one.
"""

UsersNow = Callable[[], Users | None]  # the present users; None: calls are not signed


def no_users() -> None:
    """Returns None, as `UsersNow` does where calls are not signed."""


def has_share(users: Users | None, name: str) -> bool:
    """Returns True if this user is one of several tenants: it may take a share of things without names."""
    user = users.get(name) if users is not None else None
    return user is not None and not user.makes_all(UserResource.GROUP)


def within_share(limit: int, *, total: int, own: int, more: int = 1) -> bool:
    """Returns True if a tenant that holds `own` of the `total` may take `more`, when all together may hold `limit`."""
    free = limit - total - more
    return free >= 0 and (own == 0 or own + more <= SHARE * free)


class Shares:
    """Shares of one limit."""

    __slots__ = ("_kind", "_limit", "_own", "_setting", "_users", "_version", "_what")

    def __init__(self, kind: UserResource, users: UsersNow, *, limit: int, setting: str, what: str) -> None:
        """`kind`: of the names that are counted; `what`: the counted things, as a plural."""
        self._kind, self._users = kind, users
        self._limit, self._setting, self._what = limit, setting, what
        self._version = -1
        self._own: dict[str, tuple[User, int]] = {}

    def refusal(
        self,
        name: str,
        counts: Callable[[], Mapping[str, int] | Iterable[str]],
        *,
        total: int,
        version: int,
        more: int = 1,
    ) -> str:
        """Returns why there cannot be `more` of this name, as the beginning of a sentence; empty: there can.

        `counts`: the names, or how many things each has; `version`: changes whenever they do.
        """
        if total + more > self._limit:
            return f"this broker has {total} {self._what}, the limit is {self._limit} ({self._setting})"
        if within_share(self._limit, total=total, own=total, more=more):
            return ""  # no share can bind
        users = self._users()
        held: list[tuple[int, str]] = []
        for tenant in users.tenants_of(self._kind, name) if users is not None else ():
            own = self._held(tenant, counts, version)
            if within_share(self._limit, total=total, own=own, more=more):
                return ""
            held.append((own, tenant.name))
        if not held:
            return ""
        own, user = min(held)
        return (
            f"this broker has {total} {self._what}, {own} of them under the grants of user {user}; the limit is "
            f"{self._limit} ({self._setting}), and one user may have three times what is left of it"
        )

    def _held(self, tenant: User, counts: Callable[[], Mapping[str, int] | Iterable[str]], version: int) -> int:
        # A client that is refused tries again: the names are counted once, not once for each attempt.
        if version != self._version:
            self._version = version
            self._own.clear()
        known = self._own.get(tenant.name)
        if known is None or known[0] is not tenant:
            names = counts()
            each = names.items() if isinstance(names, Mapping) else ((name, 1) for name in names)
            own = sum(count for name, count in each if tenant.may_make(self._kind, name))
            known = self._own[tenant.name] = (tenant, own)
        return known[1]
