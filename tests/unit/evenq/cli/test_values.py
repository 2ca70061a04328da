"""Values of options: numbers, durations, times and places, and what is refused."""

import argparse
from datetime import datetime
from pathlib import Path

import pytest

from evenq.cli.__main__ import main
from evenq.cli.values import duration_ms, duration_text, moment_ms
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


@pytest.mark.parametrize("text", ["", "soon", "-2h", "2026-13-01", "1.5h", "9" * 5_000, "9" * 5_000 + "d"])
def test_what_is_not_a_time_is_refused_with_examples(text):
    with pytest.raises(BadRequest, match="90m"):
        moment_ms(text, now_ms=NOW)


def test_a_time_that_no_server_can_store_is_refused_with_its_limit():
    with pytest.raises(BadRequest, match=r"above 9223372036854775807 ms since the epoch"):
        moment_ms(str(1 << 63), now_ms=NOW)


@pytest.mark.parametrize("text", ["1000000001d", "9" * 20 + "ms", "9" * 5_000 + "d"])
def test_a_duration_that_no_server_can_store_is_refused_with_its_limit(text):
    with pytest.raises(argparse.ArgumentTypeError, match="above 1000000000d"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["500ms", "10s", "5m", "2h", "1d", "0ms"])
def test_what_is_read_is_what_is_shown(text: str) -> None:
    assert duration_text(duration_ms(text)) == text


@pytest.mark.parametrize("text", ["10", "s", "-1s", "1.5s", "ten s"])
def test_another_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration: write 500ms"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("value", "said"),
    [("x", "'x' is not a whole number"), ("-1", "-1 is below 0"), ("2147483648", "2147483648 is above 2147483647")],
)
def test_a_number_that_is_none_is_named(value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["broker", "remove-replica", "broker-a", f"--copy={value}"])
    assert f"--copy: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "0", "99999999999999999999"])
def test_a_count_that_is_none_is_named_by_its_option(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"nan": "'nan' is not a whole number", "0": "0 is below 1"}.get(value, f"{value} is above 2147483647")
    for option in ("--timeout", "--queues"):
        with pytest.raises(SystemExit):
            main(["topic", "create", "orders", f"{option}={value}"])
        assert f"{option}: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1023", "0K", "1048577G", "9" * 20, "fast"])
def test_the_rate_of_a_backup_is_checked(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["backup", "create", "--to", "b", f"--max-rate={value}", "--endpoint", "127.0.0.1:9"])
    assert "is not a rate: write bytes per second, 1K to 1048576G, as in 500K or 20M" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["1000000001d", "9" * 5_000 + "d"])
def test_a_retention_that_no_server_can_store_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["topic", "create", "orders", f"--retention={value}", "--endpoint", "127.0.0.1:9"])
    assert f"--retention: {value:.80} is above 1000000000d" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["list", "replay"])
@pytest.mark.parametrize(("value", "said"), [("-1", "-1 is below"), ("2147483648", "2147483648 is above 2147483647")])
def test_a_number_of_dead_letters_is_checked(
    verb: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["dlq", verb, "billing", f"--max={value}"])
    assert f"--max: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["backup", "create", "--to", ""], "--to"),
        (["backup", "list", ""], "TARGET"),
        (["backup", "verify", " "], "TARGET"),
        (["backup", "restore", "b", "--data", ""], "--data"),
        (["store", "repair", "", "--apply"], "DIR"),
        (["up", "--data", ""], "--data"),
    ],
)
def test_an_empty_place_is_refused_and_nothing_is_written(
    words: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"{option}: it is empty; give a folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
