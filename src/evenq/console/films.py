"""The moves of a group's queues between members, as far as this console saw them.

The cluster keeps the last move of each queue only. So while somebody looks at a group, the console explains it every
few seconds and keeps each move that it has not seen before, with its reason. The moves of one moment are a step.

- A move that happened between two looks and was followed by another one is lost. The next move of that queue then has
  another previous owner than the last one that was seen; it is marked as `gap`, so that nobody takes the film as whole.
- Everything is bounded: groups of a user, moves and queues of a group. The oldest moves are dropped and counted.
- A film is of one user: it has only what the cluster shows to that user.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from evenq.client.async_admin import Admin
from evenq.client.core.admin.views import ExplainedQueueView, ExplainView
from evenq.errors import Error
from evenq.model import MessageQueue
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

INTERVAL_MS = 5_000
LOAD_PARTS = 10  # looks that take a second are followed by at least nine without one
IDLE_MS = 300_000
GROUPS_MAX = 8
MOVES_MAX = 500
QUEUES_MAX = 10_000
STEP_MS = 1_000
"""Moves within this time of the previous one are of the same step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMove:
    """A queue that got another owner."""

    at_ms: int
    """When the cluster says that it moved; otherwise when this console saw it."""
    queue: MessageQueue
    before: str | None
    """Client id; empty: no member; None: unknown."""
    after: str
    """Client id; empty: no member; `*`: every member."""
    reason: str
    gap: bool = False
    """True: since its previous move of this film the queue had other owners, which are not known."""


@dataclass(frozen=True, slots=True)
class FilmStep:
    """Moves of one moment, by ascending time."""

    moves: Sequence[SeenMove]

    @property
    def at_ms(self) -> int:
        return self.moves[-1].at_ms

    @property
    def reasons(self) -> list[str]:
        return sorted({one.reason for one in self.moves})

    @property
    def ways(self) -> list[tuple[str | None, str, int]]:
        """Returns previous owner, new owner and number of queues, the most first."""
        counts = Counter((one.before, one.after) for one in self.moves)
        return sorted(((*way, count) for way, count in counts.items()), key=lambda one: (-one[2], one[0] or "", one[1]))


@dataclass(slots=True)
class GroupFilm:
    """The moves of one group that were seen, and the owners at the newest look."""

    since_ms: int
    """First look."""
    looked_ms: int = 0
    """Newest look that was answered."""
    problem: str = ""
    """Why the newest look failed."""
    moves: deque[SeenMove] = field(default_factory=lambda: deque(maxlen=MOVES_MAX))
    """By the time at which they were seen."""
    dropped: int = 0
    """Older moves than the film has space for."""
    left_out: int = 0
    """Queues beyond `QUEUES_MAX`, which are not followed."""
    owners: dict[MessageQueue, tuple[int, str]] = field(default_factory=dict)
    """Since when, and the owner, at the newest look."""
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def see(self, view: ExplainView, now_ms: int) -> None:
        """Keeps the moves of a look that are new."""
        rows = _by_queue(view.queues)
        self.left_out = max(0, len(rows) - QUEUES_MAX)
        followed = dict(islice(rows.items(), QUEUES_MAX))
        new = [move for one in followed.values() if (move := self._move(one, now_ms)) is not None]
        if not view.problems:  # otherwise a queue may be missing because its broker does not answer
            for queue in self.owners.keys() - followed.keys():
                _, owner = self.owners.pop(queue)
                reason = "the queue is not assigned any more"
                new.append(SeenMove(at_ms=now_ms, queue=queue, before=owner, after="", reason=reason))
        new.sort(key=lambda one: (one.at_ms, one.queue))
        self.dropped += max(0, len(self.moves) + len(new) - MOVES_MAX)
        self.moves.extend(new)
        self.looked_ms, self.problem = now_ms, ""

    def _move(self, one: ExplainedQueueView, now_ms: int) -> SeenMove | None:
        known = self.owners.get(one.queue)
        self.owners[one.queue] = (one.since_ms, one.owner)
        before: str | None = one.previous_owner
        gap = False
        if known is None:
            if not one.since_ms or not (one.owner or one.previous_owner):
                return None  # it is not known to have moved
            before = before or ("" if self.looked_ms else None)
        elif known == (one.since_ms, one.owner):
            return None
        elif known[1] == one.owner:  # it was elsewhere in between; otherwise only its time is newer
            if before in {"", one.owner}:
                return None
            gap = True
        elif before in {"", known[1]} or not known[1]:
            before = known[1]
        else:
            gap = True
        at_ms = one.since_ms or now_ms
        return SeenMove(at_ms=at_ms, queue=one.queue, before=before, after=one.owner, reason=one.reason, gap=gap)

    def steps(self) -> list[FilmStep]:
        """Returns the moves by moment, the newest first."""
        steps: list[list[SeenMove]] = []
        for move in sorted(self.moves, key=lambda one: (one.at_ms, one.queue)):
            if steps and move.at_ms - steps[-1][-1].at_ms <= STEP_MS:
                steps[-1].append(move)
            else:
                steps.append([move])
        return [FilmStep(one) for one in reversed(steps)]

    def owners_at(self, at_ms: int) -> dict[MessageQueue, str | None]:
        """Returns the owner of each queue just after a moment; None: unknown."""
        owners: dict[MessageQueue, str | None] = {queue: owner for queue, (_, owner) in self.owners.items()}
        for move in sorted(self.moves, key=lambda one: (-one.at_ms, one.queue)):
            if move.at_ms <= at_ms:
                break
            owners[move.queue] = None if move.gap else move.before
        return owners


def _by_queue(rows: Iterable[ExplainedQueueView]) -> dict[MessageQueue, ExplainedQueueView]:
    """Returns one row for each queue; several owners of a queue become one text."""
    found: dict[MessageQueue, list[ExplainedQueueView]] = {}
    for one in rows:
        found.setdefault(one.queue, []).append(one)
    return {queue: _merged(owners) for queue, owners in found.items()}


def _merged(rows: Sequence[ExplainedQueueView]) -> ExplainedQueueView:
    if len(rows) == 1:
        return rows[0]
    newest = max(rows, key=lambda one: (one.since_ms, one.owner))
    return replace(newest, owner=f"{len(rows)} members", previous_owner="")


@dataclass(frozen=True, slots=True)
class StripPart:
    """A time in which one queue has one owner, for the picture of a film."""

    begin: int
    """In thousandths of the width, as `length`."""
    length: int
    owner: str | None
    """None: unknown."""
    number: int
    """Of the owner, by which the picture colours it; -1: none, or unknown."""


def members_of(film: GroupFilm) -> list[str]:
    """Returns all owners of a film; their places in the list are their numbers in its picture."""
    return sorted(
        {owner for _, owner in film.owners.values() if owner}
        | {name for one in film.moves for name in (one.before, one.after) if name}
    )


def strip(
    film: GroupFilm, queues: Iterable[MessageQueue], begin_ms: int, end_ms: int
) -> dict[MessageQueue, list[StripPart]]:
    """Returns the parts of each queue from `begin_ms` to `end_ms`."""
    wanted = list(queues)
    numbers = {name: number for number, name in enumerate(members_of(film))}
    at_begin = film.owners_at(begin_ms)
    changes: dict[MessageQueue, list[tuple[int, str | None, bool]]] = {}
    for move in sorted(film.moves, key=lambda one: (one.at_ms, one.queue)):
        if begin_ms < move.at_ms <= end_ms:
            changes.setdefault(move.queue, []).append((move.at_ms, move.after, move.gap))
    length_ms = max(1, end_ms - begin_ms)
    parts: dict[MessageQueue, list[StripPart]] = {}
    for queue in wanted:
        times = [(begin_ms, at_begin.get(queue), False), *changes.get(queue, [])]
        ends = [*(at_ms for at_ms, _, _ in times[1:]), end_ms]
        parts[queue] = [
            StripPart(
                (at_ms - begin_ms) * 1_000 // length_ms,
                max(1, (until_ms - at_ms) * 1_000 // length_ms),
                owner,
                numbers.get(owner or "", -1),
            )
            for (at_ms, owner, _), until_ms in zip(times, ends, strict=True)
        ]
    return parts


class Films:
    """The films of one user. Belongs to one event loop."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin, self._clock = admin, clock
        self._films: dict[str, GroupFilm] = {}
        """The last one is that of the newest visit."""
        self._used_ms: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def of(self, group: str) -> GroupFilm:
        """Returns the film of a group after a look now; looks continue while pages request it. Raises the error of the
        first look: a group that the user may not see has no film.
        """
        film = self._films.get(group)
        if film is None:
            now_ms = self._clock.now_ms()
            film = GroupFilm(since_ms=now_ms)
            film.see(await self._admin.explain_group(group), now_ms)
            film = self._films.setdefault(group, film)  # another page may have begun it meanwhile
        else:
            await self._look(group)
        self._used_ms[group] = self._clock.monotonic_ms()
        while len(self._films) > GROUPS_MAX:
            oldest = min(self._films, key=lambda name: self._used_ms.get(name, 0))
            del self._films[oldest]
            self._used_ms.pop(oldest, None)
        if not self._closed and (self._task is None or self._task.done()):
            self._task = spawn(self._run(), name="console films")
        return film

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _watched(self) -> list[str]:
        now_ms = self._clock.monotonic_ms()
        return [group for group, used_ms in self._used_ms.items() if now_ms - used_ms < IDLE_MS]

    async def _run(self) -> None:
        while watched := self._watched():
            await self._clock.sleep_ms(INTERVAL_MS)
            begin_ms = self._clock.monotonic_ms()
            for group in watched:
                await self._look(group)
            await self._clock.sleep_ms((self._clock.monotonic_ms() - begin_ms) * (LOAD_PARTS - 1))

    async def _look(self, group: str) -> None:
        film = self._films.get(group)
        if film is None:
            return
        async with film.looking:  # an old answer after a newer one would look like a move back
            try:
                view = await self._admin.explain_group(group)
            except Error as error:
                film.problem = f"{error}"
                return
            film.see(view, self._clock.now_ms())
