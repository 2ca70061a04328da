"""Untrusted text on terminals and in logs."""

import json

import pytest

from evenq.runtime.printable import json_line, printable

HOSTILE = ["\x1b[2J", "\x9b2J", "a\nb", "\r", "\x07", "\u202ecod.exe", "\u2028", "\ud800", "\U000e0041"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_moves_a_cursor_ends_a_line_or_turns_it_around_becomes_an_escape(text):
    assert printable(text).isprintable()
    assert json_line({"x": text}).isprintable()


@pytest.mark.parametrize("text", [*HOSTILE, "Grüße, 世界 🙂"])
def test_json_gives_the_exact_value(text):
    assert json.loads(json_line([text])) == [text]


def test_letters_of_all_languages_stay():
    assert printable("Grüße, 世界 🙂 [/x] \\x1b") == "Grüße, 世界 🙂 [/x] \\x1b"
    assert "世界" in json_line("世界")


def test_a_body_keeps_its_lines_when_it_is_the_only_thing_shown():
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"
