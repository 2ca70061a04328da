"""Rules of recurring messages: a cron expression with a time zone, or a fixed interval. `next_ms` is all they do.

Expressions have the five fields of cron (minute, hour, day of month, month, day of week), with names, lists, ranges and
steps, and the IANA name of a zone as a sixth word; without it, UTC. If neither day field begins with `*`, one of them
has to match, otherwise both. A change of the clocks counts as in Debian's cron:

- If the minute or the hour begins with `*`, the rule follows elapsed time: a message for each instant whose local time
  matches, none for a local time that does not exist, two for one that exists twice.
- Otherwise each matching local time counts once: at the first of two instants, or, if it does not exist, at the
  instant when the clock jumps. Times that fall together there are one.

Example: `30 2 * * * Europe/Berlin` fires on 2026-03-29 at 03:00 CEST (02:30 does not exist) and on 2026-10-25 at 02:30
CEST only. `30 * * * *` fires after 01:30 CET at 03:30 CEST, and at 02:30 both CEST and CET.

Pure: the zone comes in. Used by `loops.sending.schedules`. Reference: cron(8) of Debian, systemd.time(7); decision 150.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

EVERY_MS_MIN = 1_000
EVERY_MS_MAX = 366 * 86_400_000
EXPRESSION_MAX = 256
YEARS_MAX = 50
"""A rule without a time in this many years never fires: 29 February may be a given weekday only every 40 years."""
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MONTHS = {
    name: n
    for n, name in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)
}
_DAYS = {name: n for n, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}), ("hour", 0, 23, {}), ("day of month", 1, 31, {}), ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)  # fmt: skip
_PART = re.compile(r"(?:(?P<all>\*)|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d{1,4}))?")
_MINUTE = timedelta(minutes=1)
ZoneOf = Callable[[str], tzinfo]
"""Returns a time zone by its name. Raises ValueError with a sentence for a name that it does not know."""


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval, counted from the previous firing."""

    every_ms: int

    def __post_init__(self) -> None:
        if not EVERY_MS_MIN <= self.every_ms <= EVERY_MS_MAX:
            raise ValueError(
                f"the interval is {self.every_ms} ms, the range is {EVERY_MS_MIN} ms (1 s) to {EVERY_MS_MAX} ms (366 d)"
            )

    def next_ms(self, after_ms: int) -> int | None:
        return after_ms + self.every_ms


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 = Sunday to 6 = Saturday."""
    either_day: bool
    """True: the day of month or the day of week has to match."""
    elapsed: bool
    """True: the rule follows elapsed time; see the module."""
    zone: tzinfo = UTC

    @classmethod
    def parse(cls, expression: str, zone_of: ZoneOf) -> Cron:
        """Reads an expression. Raises ValueError with a sentence that names the part that is not valid."""
        if len(expression) > EXPRESSION_MAX:
            raise ValueError(f"the schedule has {len(expression)} characters, the limit is {EXPRESSION_MAX}")
        words = expression.split()
        if words and words[0].startswith("@"):
            if words[0] not in _MACROS:
                raise ValueError(f"the schedule begins with {words[0]!r}; use one of {', '.join(_MACROS)}, or 5 fields")
            words[:1] = _MACROS[words[0]].split()
        if not 5 <= len(words) <= 6:
            raise ValueError(
                f"the schedule {expression!r} has {len(words)} words; give minute, hour, day of month, month, day of "
                "week and optionally a time zone, such as '0 6 * * MON-FRI Europe/Berlin'"
            )
        minutes, hours, days, months, weekdays = (
            _values(word, *field) for word, field in zip(words, _FIELDS, strict=False)
        )
        stars = [word.startswith("*") for word in words]
        return cls(
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            frozenset(days),
            frozenset(months),
            frozenset(day % 7 for day in weekdays),
            either_day=not (stars[2] or stars[4]),
            elapsed=stars[0] or stars[1],
            zone=zone_of(words[5]) if len(words) == 6 else UTC,
        )

    def next_ms(self, after_ms: int) -> int | None:
        """Returns the first time after `after_ms`, both ms since the epoch; None: there is none in `YEARS_MAX`."""
        after = datetime.fromtimestamp(after_ms // 1_000, UTC)
        local = after.astimezone(self.zone).replace(tzinfo=None, fold=0)
        found = [self._first(after, local, fold=0)]
        if self.elapsed:
            # Local times that are about to be repeated are earlier than `local`.
            shift = local.replace(tzinfo=self.zone, fold=1).utcoffset() or timedelta()
            found.append(self._first(after, after.replace(tzinfo=None) + shift, fold=1))
        times = [one for one in found if one is not None]
        return int(min(times).timestamp()) * 1_000 if times else None

    def _first(self, after: datetime, local: datetime, *, fold: int) -> datetime | None:
        for one in self._local_times(local):
            at = self._instant(one, fold)
            if at is not None and at > after:
                return at
        return None

    def _instant(self, local: datetime, fold: int) -> datetime | None:
        """Returns the instant of a local time; of one that does not exist, None or the jump of the clock."""
        at = local.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
        if at.astimezone(self.zone).replace(tzinfo=None, fold=0) == local:
            return at
        if self.elapsed:
            return None
        # `at` counts with the offset before the jump, so it is later than the jump by less than the gap.
        before, jump = local.replace(tzinfo=self.zone, fold=1).astimezone(UTC), at
        old = before.astimezone(self.zone).utcoffset()
        while jump - before > timedelta(seconds=1):
            middle = before + (jump - before) // 2
            middle = middle.replace(microsecond=0)
            before, jump = (middle, jump) if middle.astimezone(self.zone).utcoffset() == old else (before, middle)
        return jump

    def _local_times(self, after: datetime) -> Iterator[datetime]:
        """Yields matching local times later than `after`, ascending; ends after `YEARS_MAX`."""
        begin = after.replace(second=0, microsecond=0) + _MINUTE
        for number in range(begin.year * 12 + begin.month - 1, min((begin.year + YEARS_MAX) * 12, 9_999 * 12)):
            year, month = number // 12, number % 12 + 1
            if month not in self.months:
                continue
            first_weekday, length = monthrange(year, month)
            for day in range(begin.day if (year, month) == (begin.year, begin.month) else 1, length + 1):
                # monthrange counts from Monday = 0, cron from Sunday = 0.
                if not self._matches(day, (first_weekday + day) % 7):
                    continue
                is_first = (year, month, day) == (begin.year, begin.month, begin.day)
                for hour in self.hours:
                    if is_first and hour < begin.hour:
                        continue
                    for minute in self.minutes:
                        if not is_first or (hour, minute) >= (begin.hour, begin.minute):
                            yield datetime(year, month, day, hour, minute)  # noqa: DTZ001  a local time

    def _matches(self, day: int, weekday: int) -> bool:
        if self.either_day:
            return day in self.days or weekday in self.weekdays
        return day in self.days and weekday in self.weekdays


def _values(word: str, what: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    """Returns the values of one field. Raises ValueError."""
    values: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"the {what} {word!r} is not valid; use *, numbers {low} to {high}, a-b, lists and /steps")
        first, last = low, high
        if match["low"]:
            first = _number(match["low"], what, low, high, names)
            last = _number(match["high"], what, low, high, names) if match["high"] else first
            if match["step"] and not match["high"]:
                last = high
        if first > last:
            raise ValueError(f"the {what} {part!r} ends before it begins; write two ranges, such as 22-23,0-4")
        step = int(match["step"] or 1)
        if step < 1:
            raise ValueError(f"the {what} {part!r} has a step of 0, the least is 1")
        values.update(range(first, last + 1, step))
    return values


def _number(text: str, what: str, low: int, high: int, names: dict[str, int]) -> int:
    number = names.get(text.lower(), -1)
    if number < 0 and text.isascii() and text.isdigit():
        number = int(text)
    if not low <= number <= high:
        named = f", or {', '.join(names).upper()}" if names else ""
        raise ValueError(f"the {what} is {text!r}, the range is {low} to {high}{named}")
    return number


@dataclass(frozen=True, slots=True)
class DueTimes:
    """Firing times of a rule up to now."""

    newest: tuple[int, ...]
    """The last ones, ascending, as many as were requested. Empty while `more`."""
    passed: int
    """Number of times before them."""
    until_ms: int
    """The last time looked at; the next look continues there."""
    more: bool
    """True: the look ended at its limit of steps, before now."""


def due_times(rule: Every | Cron, after_ms: int, now_ms: int, *, keep: int, steps: int) -> DueTimes:
    """Returns the times after `after_ms` and not after `now_ms`. Looks at `steps` of them at most, more than `keep`."""
    passed = 0
    if isinstance(rule, Every):  # an outage of a day has 86,400 times of 1 s
        passed = max(0, (now_ms - after_ms) // rule.every_ms - keep)
        after_ms += passed * rule.every_ms
    times: list[int] = []
    at = rule.next_ms(after_ms)
    while at is not None and at <= now_ms and len(times) < steps:
        times.append(at)
        at = rule.next_ms(at)
    if at is not None and at <= now_ms:
        # The last ones may be among the newest: the next look begins before them.
        looked = times[: len(times) - keep]
        return DueTimes((), passed + len(looked), looked[-1], more=True)
    newest = times[max(0, len(times) - keep) :]
    return DueTimes(tuple(newest), passed + len(times) - len(newest), times[-1] if times else after_ms, more=False)
