"""Where `evenq produce` takes its bodies from."""

import io
import sys

import pytest

from evenq.cli.parser import make_parser
from evenq.cli.produce import bodies
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
