"""The grammar of the command line."""

import argparse
import subprocess
import sys

import pytest

from evenq.cli.grammar import HelpFormatter
from evenq.cli.parser import make_parser


def parse(*words):
    return make_parser().parse_args(words)


def test_a_quick_start_needs_no_options():
    options = parse("up")
    assert (options.port, options.data, options.brokers, options.processes, options.topic) == (8081, None, 1, False, [])


def test_a_topic_has_a_type_and_queues():
    options = parse("topic", "create", "orders", "--queues", "8", "--type", "fifo")
    assert (options.name, options.queues, options.type) == ("orders", 8, "FIFO")


def test_a_group_has_its_settings():
    options = parse("group", "create", "g", "--ordered", "--max-attempts", "3", "--strategy", "AVG", "--from", "first")
    assert (options.ordered, options.max_attempts, options.strategy, options.start_from) == (True, 3, "AVG", "FIRST")


def test_consume_starts_as_the_group_is_configured_unless_told():
    assert parse("consume", "t", "--group", "g").start_from is None
    assert parse("consume", "t", "--group", "g", "--from", "FIRST").start_from == "first"


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create"],
        ["topic", "create", "t", "--queues", "0"],
        ["topic", "create", "t", "--queues", "many"],
        ["topic", "create", "t", "--type", "ODD"],
        ["up", "--port", "70000"],
        ["consume", "t"],
        ["consume", "t", "--group", "g", "--from", "middle"],
        ["produce", "t", "--body", "x", "--file", "y"],
        ["fly"],
    ],
)
def test_wrong_usage_ends_with_code_2_and_one_hint(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["up"], ["topic"], ["topic", "create"], ["group"], ["produce"], ["consume"]])
def test_help_teaches_with_examples(words, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(*words, "--help")
    assert ended.value.code == 0
    assert "evenq " in capsys.readouterr().out.split("\n\n", 1)[1]


def all_parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from all_parsers(below)


@pytest.mark.parametrize("columns", [80, 120])
def test_help_is_as_wide_as_the_terminal_except_for_commands_to_copy(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    parsers = list(all_parsers(make_parser()))
    assert len(parsers) > 80
    wide = [
        (parser.prog, line)
        for parser in parsers
        for line in parser.format_help().splitlines()
        if len(line) > columns and not line.startswith(("  evenq ", "  cat ", "  source "))
    ]
    assert wide == []


def test_help_wraps_prose_lists_and_comments_and_keeps_examples(monkeypatch):
    monkeypatch.setenv("COLUMNS", "42")
    examples = (
        "examples:\n  evenq x --long-option --and-another --third 1     does all of it together, and then more\n\n"
        "A sentence that is\nsplit in the source.\n  word   what the word means in this table of words\n"
        "         and its second line\n"
    )
    formatter = HelpFormatter("evenq")
    assert formatter._fill_text(examples, 40, "").splitlines() == [
        "examples:",
        "  evenq x --long-option --and-another --third 1",
        "      does all of it together, and then",
        "      more",
        "",
        "A sentence that is split in the source.",
        "  word   what the word means in this",
        "         table of words and its second",
        "         line",
    ]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from evenq.cli.parser import make_parser; make_parser().format_help();"
        "print([name for name in ('grpc', 'rich', 'pydantic', 'google.protobuf', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "ms"), [("90m", 5_400_000), ("24h", 86_400_000), ("7d", 604_800_000), ("forever", 0), ("default", -1)]
)
def test_a_topic_can_keep_its_messages_for_a_time_of_its_own(text, ms):
    assert parse("topic", "create", "orders", "--retention", text).retention == ms


@pytest.mark.parametrize("text", ["", "7", "h", "0d", "-3h", "1w"])
def test_a_retention_that_is_no_time_names_what_is(text, capsys):
    with pytest.raises(SystemExit):
        parse("topic", "create", "orders", f"--retention={text}")
    assert "write 30s, 90m, 24h, 7d, forever or default" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["topci", "list"], "no command `evenq topci`; did you mean `evenq topic`?"),
        (["topic", "lits"], "no command `evenq topic lits`; did you mean `evenq topic list`?"),
        (["xyzzy"], "no command `evenq xyzzy`; it is one of up, console, context,"),
    ],
)
def test_a_mistyped_command_names_the_nearest(words, output, capsys):
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    assert ended.value.code == 2
    assert output in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["message", "find", "t", "--limit", "x"], "--limit: 'x' is not a whole number"),
        (["message", "find", "t", "--limit", "1001"], "--limit: 1001 is above 1000"),
        (["message", "get", "--topic", "t", "--offset", "first"], "--offset: 'first' is not a whole number"),
        (["offset", "reset", "g", "--to-offset", "-1"], "--to-offset: -1 is below 0"),
        (["up", "--port", "x"], "--port: 'x' is not a whole number"),
        (["up", "--metrics-port", "70000"], "--metrics-port: 70000 is above 65535"),
    ],
)
def test_a_number_that_is_not_valid_is_named_with_its_range(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(words)
    assert text in capsys.readouterr().err
