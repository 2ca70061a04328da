"""Times on the command line."""

from datetime import datetime

import pytest

from evenq.cli.moments import moment_ms
from evenq.errors import BadRequest

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("30s", 30_000), ("90m", 5_400_000), ("2h", 7_200_000), ("7d ago", 604_800_000), ("now", 0), ("99999999d", NOW)],
)
def test_an_age_is_so_long_ago(text, ago_ms):
    assert moment_ms(text, now_ms=NOW) == NOW - ago_ms


def test_a_number_is_ms_and_iso_is_local_unless_it_says():
    assert moment_ms("1234", now_ms=NOW) == 1234
    assert moment_ms("1970-01-01T00:00:01+00:00", now_ms=NOW) == 1_000
    local = int(datetime.fromisoformat("2026-01-31T08:00").astimezone().timestamp() * 1000)
    assert moment_ms("2026-01-31T08:00", now_ms=NOW) == local


@pytest.mark.parametrize("text", ["", "soon", "-2h", "2026-13-01", "1.5h"])
def test_what_is_no_time_is_told_with_examples(text):
    with pytest.raises(BadRequest, match="90m"):
        moment_ms(text, now_ms=NOW)
