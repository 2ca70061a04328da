"""`--watch`: drawn over at a terminal, one after the other in a pipe, and 0 at Ctrl-C."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import yaml

from evenq.cli import watching
from evenq.errors import ConnectionFailed, Forbidden
from evenq.wire.stubs.evenq.v1 import admin_pb2

ONE, TWO = (admin_pb2.ListTopicsResponse(topics=[admin_pb2.TopicSummary(topic=name)]) for name in ("orders", "jobs"))


@pytest.fixture
def rounds(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a line until the given number of rounds are over, then Ctrl-C."""

    def go(line: str, number: int, **answers: Any) -> Any:
        waits: list[float] = []

        def pause(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) >= number:
                raise KeyboardInterrupt

        monkeypatch.setattr(watching, "pause", pause)
        return (*run(line, **answers)[:3], waits)

    return go


def test_in_a_pipe_each_table_follows_a_line_with_the_time(rounds: Any) -> None:
    code, out, _, waits = rounds("topic list --watch", 2, ListTopics=[ONE, TWO])
    assert (code, waits) == (0, [2.0, 2.0])
    assert out.count("\n--- 20") + out.startswith("--- 20") == 2
    assert out.index("orders") < out.index("jobs")


def test_json_is_a_line_and_yaml_a_document_of_each_round(rounds: Any) -> None:
    _, out, _, _ = rounds("topic list --watch=0.5 -o json", 2, ListTopics=[ONE, TWO])
    assert [json.loads(line)[0]["topic"] for line in out.splitlines()] == ["orders", "jobs"]
    _, out, _, waits = rounds("topic list --watch 5 -o yaml", 2, ListTopics=[ONE, TWO])
    assert [rows[0]["topic"] for rows in yaml.safe_load_all(out)] == ["orders", "jobs"]
    assert waits[0] == 5.0


def test_a_terminal_is_drawn_over_and_long_results_say_so(rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("LINES", "10")
    many = admin_pb2.ListTopicsResponse(topics=[admin_pb2.TopicSummary(topic=f"t{number}") for number in range(50)])
    code, out, _, _ = rounds("topic list --watch", 2, ListTopics=[ONE, many])
    assert code == 0
    first, second = out.split("\x1b[H")[1:]
    assert "Every 2 s: evenq topic list --watch" in first
    assert "orders" in first
    assert second.count("\n") <= 10
    assert "more lines" in second


def test_a_later_error_is_shown_and_the_next_round_follows(rounds: Any) -> None:
    answers = [ONE, ConnectionFailed("broker-a restarts"), TWO]
    code, out, err, waits = rounds("topic list --watch", 3, ListTopics=answers)
    assert (code, len(waits)) == (0, 3)
    assert "no server answers" in err
    assert "jobs" in out


def test_the_error_of_the_first_round_ends_the_command(rounds: Any) -> None:
    code, out, err, waits = rounds("topic list --watch", 3, ListTopics=Forbidden("no grant"))
    assert (code, out, waits) == (4, "", [])
    assert "no grant" in err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("topic show --watch orders", "write --watch=2, or --watch at the end"),
        ("topic list --watch=0.1", "0.1 is outside 0.2 to 3600 seconds"),
    ],
)
def test_a_period_that_is_not_valid_says_what_is(
    run: Any, line: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(line)
    assert text in capsys.readouterr().err


def test_every_list_and_show_command_can_be_watched() -> None:
    from evenq.cli.parser import make_parser

    lines = ["topic list", "topic show t", "group list", "group show g", "group explain g", "broker list", "dlq list"]
    lines += ["broker show b", "cluster show", "client list", "client show c", "offset show g", "dlq show g"]
    lines += ["message trace m", "context list", "backup list x"]
    for line in lines:
        assert make_parser().parse_args([*line.split(), "--watch"]).watch == 2.0, line
