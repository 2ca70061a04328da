"""Tables and JSON of one answer."""

import ast
import json
from pathlib import Path

import pytest

from evenq.cli import output
from evenq.cli.output import Column, Listing, Page, complain, print_lines, print_page, progress_console
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, dead_letters_pb2

COLUMNS = (Column("name", "name"), Column("count", "count", "number"), Column("at_ms", "at", "time"))
ROWS = [("or[der]s", 1234567, 0), ("jobs", 2, 1_700_000_000_000)]


def printed(page, capsys, *, as_json):
    print_page(page, as_json=as_json)
    return capsys.readouterr().out


def test_a_table_shows_all_rows_with_readable_numbers_and_times(capsys):
    text = printed(Page(facts={}, listings=[Listing(key="x", columns=COLUMNS, rows=ROWS)]), capsys, as_json=False)
    assert "or[der]s" in text
    assert "1,234,567" in text
    assert "2023-11-1" in text
    assert text.index("name") < text.index("count")


def test_a_page_of_one_listing_is_a_json_array(capsys):
    text = printed(Page(facts={}, listings=[Listing(key="x", columns=COLUMNS, rows=ROWS)]), capsys, as_json=True)
    assert json.loads(text)[0] == {"name": "or[der]s", "count": 1234567, "at_ms": 0}


def test_a_page_of_facts_and_listings_is_one_json_object(capsys):
    page = Page(facts={"a": True, "b": ["x"]}, listings=[Listing(key="rows", columns=COLUMNS, rows=[])], sentence="Hi.")
    assert json.loads(printed(page, capsys, as_json=True)) == {"a": True, "b": ["x"], "rows": []}


def test_facts_are_read_by_people_without_brackets_and_quotes(capsys):
    text = printed(Page(facts={"max_attempts": 17, "ordered": False, "groups": []}), capsys, as_json=False)
    assert text == "max attempts  17\nordered       no\ngroups        -\n"


def test_an_empty_listing_says_so(capsys):
    listing = Listing(key="x", columns=COLUMNS, rows=[], title="Members", empty="no member reads now")
    assert printed(Page(facts={}, listings=[listing]), capsys, as_json=False) == "Members: no member reads now\n"


def test_a_sentence_stands_instead_of_the_facts(capsys):
    page = Page(facts={"topic": "t"}, sentence="Topic t [x] has 4 queues.")
    assert printed(page, capsys, as_json=False) == "Topic t [x] has 4 queues.\n"


HOSTILE = "\x1b[2J\nfake  line\x9b1m [/x] [red]y :smile:"
SHOWN = r"\x1b[2J\nfake  line\x9b1m [/x] [red]y :smile:"


def hostile_page():
    columns = (Column("a", "[/x]"), Column("b", "b", "sentence"))
    listing = Listing(key="rows", columns=columns, rows=[(HOSTILE, HOSTILE)], title=HOSTILE)
    empty = Listing(key="none", columns=columns, rows=[], title=HOSTILE, empty=HOSTILE)
    return Page(facts={"fact": HOSTILE, "list": [HOSTILE]}, listings=[listing, empty])


def test_no_value_reaches_the_terminal_as_markup_or_control_characters(capsys):
    text = printed(hostile_page(), capsys, as_json=False)
    text += printed(Page(facts={}, sentence=HOSTILE), capsys, as_json=False)
    progress_console().print(HOSTILE)
    complain(HOSTILE)
    print_lines(HOSTILE)
    out = capsys.readouterr()
    text += out.out + out.err
    assert text.replace("\n", "").isprintable()
    assert text.count(SHOWN) >= 9  # nothing is cut, dropped or replaced
    assert not any(line.startswith("fake") for line in text.splitlines())


def test_json_keeps_exact_values_and_is_printable(capsys):
    text = printed(hostile_page(), capsys, as_json=True)
    assert text.rstrip("\n").isprintable()
    assert json.loads(text)["fact"] == HOSTILE
    assert json.loads(text)["rows"] == [{"a": HOSTILE, "b": HOSTILE}]


def hostile(response, depth=6):
    """Every text of an answer as an attacker would choose it."""
    for field in response.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and field.name not in NOT_FREE:
            value = HOSTILE
        elif field.type == field.TYPE_BYTES:
            value = HOSTILE.encode()
        elif field.type != field.TYPE_MESSAGE or not depth:
            continue
        elif field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].type == field.TYPE_STRING:
                getattr(response, field.name)[HOSTILE] = HOSTILE
            continue
        elif field.is_repeated:
            hostile(getattr(response, field.name).add(), depth - 1)
            continue
        else:
            hostile(getattr(response, field.name), depth - 1)
            continue
        if field.is_repeated:
            getattr(response, field.name).append(value)
        else:
            setattr(response, field.name, value)
    return response


NOT_FREE = {"weight", "permission", "moves"}
"""Closed choices of the servers."""


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("message find orders", ["FindMessages"]),
        ("message tail orders", ["FindMessages"]),
        ("message get id-1 --body none", ["FindMessages"]),
        ("message trace id-1", ["TraceMessage"]),
        ("client list", ["ListClients"]),
        ("dlq list billing", ["DeadLetters/List"]),
        ("dlq show billing", ["DeadLetters/List"]),
        ("topic list", ["ListTopics"]),
        ("topic show orders", ["DescribeTopic", "DescribeGroup"]),
        ("group list", ["ListGroups"]),
        ("group show billing", ["DescribeGroup"]),
        ("group explain billing", ["Explain"]),
        ("offset show billing", ["DescribeGroup"]),
        ("broker list", ["ListBrokers"]),
        ("cluster show", ["DescribeCluster"]),
    ],
)
def test_no_answer_of_a_server_controls_the_terminal(run, line, answers):
    types = {
        "DeadLetters/List": dead_letters_pb2.ListDeadLettersResponse,
        "Explain": assignment_pb2.ExplainResponse,
    }
    filled = {
        name.rpartition("/")[2]: hostile((types.get(name) or getattr(admin_pb2, f"{name}Response"))())
        for name in answers
    }
    for one in filled.values():
        one.status.code = 20000
    _, out, err, _ = run(line, **filled)
    assert (out + err).replace("\n", "").isprintable()
    assert "fake" in out, "the text was shown"
    assert not any(shown.lstrip().startswith("fake") for shown in (out + err).splitlines())


WRITES_ITSELF = {
    "output.py": "makes text safe",
    "store_dump.py": "millions of rows, each made by json_line",
}


def test_only_one_module_of_the_command_line_writes_to_the_terminal():
    folder = Path(output.__file__).parent
    found = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.Call(func=ast.Name(id="print"))
                    | ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"),
                        attr="write" | "writelines",
                    )
                ):
                    found.append(f"{path.name}:{node.lineno}")
                case ast.ImportFrom(module=("rich.console" | "rich.table" | "rich.text")):
                    found.append(f"{path.name}:{node.lineno}")
                case ast.keyword(value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr")):
                    found.append(f"{path.name}:{node.value.lineno}")
    assert {entry.partition(":")[0] for entry in found} <= set(WRITES_ITSELF), found
