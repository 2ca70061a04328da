"""Rules of recurring messages: what they match, changes of the clocks, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from evenq_broker.core.sending.cron import EVERY_MS_MAX, Cron, Every, due_times
from hypothesis import given, settings
from hypothesis import strategies as st

MINUTE_MS, DAY_MS = 60_000, 86_400_000


def ms(text: str, zone: str = "UTC", *, fold: int = 0) -> int:
    at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(at.timestamp()) * 1_000


def firings(expression: str, after: str, count: int) -> list[str]:
    """The next firings after a time of UTC, with their offsets."""
    rule, at, found = Cron.parse(expression, ZoneInfo), ms(after), []
    for _ in range(count):
        following = rule.next_ms(at)
        assert following is not None
        at = following
        found.append(datetime.fromtimestamp(at / 1000, rule.zone).isoformat(timespec="minutes"))
    return found


@pytest.mark.parametrize(
    ("expression", "after", "wanted"),
    [
        ("0 6 * * MON-FRI", "2026-07-10T07:00", ["2026-07-13T06:00+00:00", "2026-07-14T06:00+00:00"]),
        ("*/20 8-9 * * *", "2026-07-10T08:30", ["2026-07-10T08:40+00:00", "2026-07-10T09:00+00:00"]),
        ("5,10 0 1 jan,JUL *", "2026-01-01T00:05", ["2026-01-01T00:10+00:00", "2026-07-01T00:05+00:00"]),
        ("10-40/15 3 * * 7", "2026-07-11T00:00", ["2026-07-12T03:10+00:00", "2026-07-12T03:25+00:00"]),
        ("0 12 13 * 5", "2026-02-13T12:00", ["2026-02-20T12:00+00:00", "2026-02-27T12:00+00:00"]),
        ("0 12 */9 * 5", "2026-02-14T00:00", ["2026-04-10T12:00+00:00", "2026-05-01T12:00+00:00"]),
        ("30 0 29 2 *", "2026-01-01T00:00", ["2028-02-29T00:30+00:00", "2032-02-29T00:30+00:00"]),
        ("0 0 29 2 *", "2096-03-01T00:00", ["2104-02-29T00:00+00:00"]),
        ("0 0 29 2 */7", "2072-03-01T00:00", ["2088-02-29T00:00+00:00", "2128-02-29T00:00+00:00"]),
        ("50/5 23 31 12 *", "2026-12-31T23:55", ["2027-12-31T23:50+00:00", "2027-12-31T23:55+00:00"]),
        ("@monthly", "2026-07-10T00:00", ["2026-08-01T00:00+00:00"]),
        ("@daily Asia/Kolkata", "2026-07-10T00:00", ["2026-07-11T00:00+05:30"]),
    ],
)
def test_the_fields_are_those_of_cron(expression: str, after: str, wanted: list[str]) -> None:
    assert firings(expression, after, len(wanted)) == wanted


@pytest.mark.parametrize(
    ("expression", "after", "wanted"),
    [
        # 2026-03-29: 02:00 CET is 03:00 CEST. 2026-10-25: 03:00 CEST is 02:00 CET.
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("0,30 2,3 * * *", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("0 1-4 * * *", "2026-10-24T23:00", ["2026-10-25T02:00+02:00", "2026-10-25T03:00+01:00"]),
        ("30 * * * *", "2026-03-29T00:00", ["2026-03-29T01:30+01:00", "2026-03-29T03:30+02:00"]),
        ("30 * * * *", "2026-10-24T23:45", ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]),
        ("* 2 * * *", "2026-03-28T02:00", ["2026-03-30T02:00+02:00"]),
        ("*/30 2 * * *", "2026-10-25T00:15", ["2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00"]),
        ("*/20 * * * *", "2026-10-25T00:40", ["2026-10-25T02:00+01:00", "2026-10-25T02:20+01:00"]),
    ],
)
def test_local_times_that_do_not_exist_or_exist_twice_are_fired_as_debians_cron_does(
    expression: str, after: str, wanted: list[str]
) -> None:
    assert firings(f"{expression} Europe/Berlin", after, len(wanted)) == wanted


def test_a_local_day_that_does_not_exist_is_fired_when_the_clock_jumps() -> None:
    # Samoa went from 2011-12-29 to 2011-12-31.
    assert firings("0 9 * * * Pacific/Apia", "2011-12-29T20:00", 2) == [
        "2011-12-31T00:00+14:00",
        "2011-12-31T09:00+14:00",
    ]


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6,9,11 *"])
def test_a_rule_that_never_matches_has_no_next_time(expression: str) -> None:
    assert Cron.parse(expression, ZoneInfo).next_ms(ms("2026-01-01T00:00")) is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "has 0 words"),
        ("* * * *", "has 4 words"),
        ("* * * * * UTC x", "has 7 words"),
        ("60 * * * *", "the minute is '60', the range is 0 to 59"),
        ("* 24 * * *", "the hour is '24', the range is 0 to 23"),
        ("* * 0 * *", "the day of month is '0', the range is 1 to 31"),
        ("* * * 13 *", "the month is '13', the range is 1 to 12, or JAN"),
        ("* * * * 8", "the day of week is '8', the range is 0 to 7, or SUN"),
        ("* * * * MO", "the day of week is 'MO'"),
        ("5-1 * * * *", "ends before it begins"),
        ("*/0 * * * *", "has a step of 0"),
        ("1,,2 * * * *", "the minute '1,,2' is not valid"),
        ("-1 * * * *", "is not valid"),
        ("\u0661 * * * *", "the minute is '\u0661'"),
        ("@reboot", "begins with '@reboot'"),
        ("0 " * 200, "characters, the limit is 256"),
        ("0 0 L * *", "the day of month is 'L'"),
    ],
)
def test_what_is_not_an_expression_is_refused_with_the_part_and_its_range(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cron.parse(expression, ZoneInfo)


@pytest.mark.parametrize("every_ms", [999, 0, -5, EVERY_MS_MAX + 1])
def test_an_interval_has_a_range(every_ms: int) -> None:
    with pytest.raises(ValueError, match=r"1000 ms \(1 s\) to 31622400000 ms"):
        Every(every_ms)


# ---------------------------------------------------------------------------------------------------- a scan as peer

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca"]
STARTS = [
    "2026-03-08T00:00",
    "2026-03-28T12:00",
    "2026-10-03T12:00",
    "2026-10-24T18:00",
    "2026-11-01T00:00",
    "2027-02-13T20:00",
    "2026-06-30T20:00",
]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.builds("*/{}".format, st.integers(1, 45)),
        number.map(str),
        st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}"),
        st.lists(number, min_size=1, max_size=4).map(lambda several: ",".join(map(str, several))),
    )


def matches(rule: Cron, local: datetime) -> bool:
    weekday = local.isoweekday() % 7
    day = (
        (local.day in rule.days or weekday in rule.weekdays)
        if rule.either_day
        else (local.day in rule.days and weekday in rule.weekdays)
    )
    return local.minute in rule.minutes and local.hour in rule.hours and local.month in rule.months and day


def scanned(rule: Cron, begin: datetime, minutes: int) -> list[datetime]:
    """The firings after `begin`, found by a look at each minute, and at the local times that it skips or repeats."""
    found, seen = [], set()
    for number in range(-24 * 60, minutes + 1):
        at = begin + timedelta(minutes=number)
        local = at.astimezone(rule.zone).replace(tzinfo=None, fold=0)
        before = (at - timedelta(minutes=1)).astimezone(rule.zone).replace(tzinfo=None, fold=0)
        skipped = [before + timedelta(minutes=n) for n in range(1, int((local - before).total_seconds()) // 60)]
        if rule.elapsed:
            fires = matches(rule, local)
        else:
            fires = any(matches(rule, one) and one not in seen for one in [*skipped, local])
            seen.update([*skipped, local])
        if fires and number > 0:
            found.append(at)
    return found


@given(
    fields=st.tuples(field(0, 59), st.one_of(field(0, 23), field(0, 4)), field(1, 31), field(1, 12), field(0, 6)),
    zone=st.sampled_from(ZONES),
    start=st.sampled_from(STARTS),
    shift=st.integers(0, 1_000),
)
@settings(max_examples=150, deadline=None)
def test_a_scan_of_all_minutes_finds_the_same_firings(
    fields: tuple[str, ...], zone: str, start: str, shift: int
) -> None:
    rule = Cron.parse(" ".join([*fields, zone]), ZoneInfo)
    begin = datetime.fromisoformat(start).replace(tzinfo=UTC) + timedelta(minutes=shift)
    end_ms, at, found = int((begin + timedelta(minutes=2_000)).timestamp()) * 1_000, int(begin.timestamp()) * 1_000, []
    while (following := rule.next_ms(at)) is not None and following <= end_ms:
        assert following > at
        at = following
        found.append(datetime.fromtimestamp(at / 1000, UTC))
    assert found == scanned(rule, begin, 2_000)


# ---------------------------------------------------------------------------------------------------- due times


@given(
    every_s=st.integers(1, 100),
    late_s=st.integers(0, 5_000),
    keep=st.integers(1, 10),
    steps=st.integers(11, 40),
    cron=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_looks_in_parts_find_each_time_once_and_keep_the_newest(
    every_s: int, late_s: int, keep: int, steps: int, cron: bool
) -> None:
    rule = Cron.parse("* * * * *", ZoneInfo) if cron else Every(every_s * 1_000)
    step_ms = 60_000 if cron else every_s * 1_000
    begin, now_ms = 60_000_000, 60_000_000 + late_s * 1_000
    after, passed = begin, 0
    while (due := due_times(rule, after, now_ms, keep=keep, steps=steps)).more:
        assert due.until_ms > after
        after, passed = due.until_ms, passed + due.passed
    times = [begin + n * step_ms for n in range(1, (now_ms - begin) // step_ms + 1)]
    assert list(due.newest) == times[-keep:]
    assert passed + due.passed + len(due.newest) == len(times)
    assert due.until_ms == (times[-1] if times else after)
