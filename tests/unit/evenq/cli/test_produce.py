"""Where `evenq produce` takes its bodies from, and what its options give to each message."""

import io
import sys
from collections import Counter

import pytest

from evenq.cli import produce
from evenq.cli.parser import make_parser
from evenq.cli.produce import _check, bodies
from evenq.errors import BadRequest


def sent(*words):
    return list(bodies(make_parser().parse_args(["produce", "t", *words])))


def pipe(monkeypatch, data, *, terminal=False):
    class Stdin(io.TextIOWrapper):
        def isatty(self):
            return terminal

    monkeypatch.setattr(sys, "stdin", Stdin(io.BytesIO(data)))


def test_a_body_is_sent_once_or_as_often_as_asked():
    assert sent("--body", "x") == [b"x"]
    assert sent("--body", "order {n}", "--count", "2") == [b"order 1", b"order 2"]
    assert sent("--count", "2") == [b"message 1", b"message 2"]


def test_a_body_that_is_not_utf_8_is_sent_as_it_is():
    assert sent("--body", "caf\udce9 {n}") == [b"caf\xe9 1"]


def test_a_file_is_sent_line_by_line_without_empty_lines(tmp_path):
    path = tmp_path / "orders"
    path.write_bytes("ä\r\n\nb\nc".encode())
    assert sent("--file", str(path)) == ["ä".encode(), b"b", b"c"]
    assert sent("--file", str(path), "--count", "2") == ["ä".encode(), b"b"]


def test_a_pipe_is_read_without_being_named(monkeypatch):
    pipe(monkeypatch, b"a\nb\n")
    assert sent() == [b"a", b"b"]
    pipe(monkeypatch, b"c\n")
    assert sent("--file", "-") == [b"c"]


def test_a_terminal_is_not_waited_for(monkeypatch):
    pipe(monkeypatch, b"", terminal=True)
    with pytest.raises(BadRequest, match="nothing to send"):
        sent()


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        sent("--file", str(tmp_path / "none"))


def test_a_file_or_a_pipe_is_sent_whole_with_its_line_breaks(tmp_path, monkeypatch):
    path = tmp_path / "order.json"
    path.write_bytes(b'{\n "id": 1\n}\n')
    assert sent("--file", str(path), "--whole") == [b'{\n "id": 1\n}\n']
    pipe(monkeypatch, b"a\nb\n")
    assert sent("--whole") == [b"a\nb\n"]
    pipe(monkeypatch, b"c\n\n")
    assert sent("--file", "-", "--whole") == [b"c\n\n"]


def test_a_whole_file_that_is_empty_or_too_large_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "none"
    path.touch()
    with pytest.raises(BadRequest, match="none is empty, and a message has at least one byte"):
        sent("--file", str(path), "--whole")
    monkeypatch.setattr(produce, "WHOLE_BYTES_MAX", 1 << 20)
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(BadRequest, match="larger than 1 MiB"):
        sent("--file", str(path), "--whole")


def checked(*words):
    return _check(make_parser().parse_args(["produce", "t", *words]))


def test_a_delivery_time_is_a_time_that_is_not_over():
    assert checked() is None
    assert checked("--at", "2096-12-01T08:00Z") == 4_005_187_200_000
    assert checked("--at", "4005187200000") == 4_005_187_200_000
    for text, error in (
        ("2020-01-01T00:00Z", "is in the past .20"),
        ("5m", "is a duration, not a time; give it to --delay"),
        ("tomorrow", "is not a time"),
    ):
        with pytest.raises(BadRequest, match=error):
            checked("--at", text)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--property", "a=1", "--property", "a=2"], "property a is given twice"),
        (["--file", "x", "--whole", "--count", "2"], "leave out --count and --body"),
        (["--body", "x", "--whole"], "leave out --count and --body"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words, error):
    with pytest.raises(BadRequest, match=error):
        checked(*words)


def test_a_property_keeps_what_follows_its_first_equals_sign(capsys):
    assert make_parser().parse_args(["produce", "t", "--property", "a=b=c"]).property == [("a", "b=c")]
    for words in (["--property", "a"], ["--property", "=b"], ["--delay", "5m", "--at", "2096-12-01"]):
        with pytest.raises(SystemExit):
            make_parser().parse_args(["produce", "t", *words])
    assert "write NAME=VALUE, as in region=eu" in capsys.readouterr().err


def test_the_command_that_recalls_a_message_has_a_line_of_its_own(capsys):
    options = make_parser().parse_args(["produce", "t", "--body", "x", "--delay", "30s"])
    produce._report(options, Counter({("a", 0): 1}), {"message_id": "01", "recall_handle": "h"}, [], None)
    assert capsys.readouterr().out.splitlines()[-2:] == ["To recall it:", "evenq message recall t h"]
    options = make_parser().parse_args(["produce", "t", "--body", "x", "--delay", "30s", "--json"])
    produce._report(options, Counter({("a", 0): 1}), {"message_id": "01", "recall_handle": "h"}, [], None)
    assert "To recall" not in capsys.readouterr().out
