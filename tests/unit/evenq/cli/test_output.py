"""Tables and JSON of one answer."""

import ast
import json
from pathlib import Path

import pytest

from evenq.cli import output
from evenq.cli.formats import Output
from evenq.cli.output import Column, Listing, Page, complain, print_lines, print_page, progress_console
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, dead_letters_pb2

COLUMNS = (Column("name", "name"), Column("count", "count", "number"), Column("at_ms", "at", "time"))
ROWS = [("or[der]s", 1234567, 0), ("jobs", 2, 1_700_000_000_000)]


def printed(page, capsys, *, as_json):
    print_page(page, Output.JSON if as_json else Output.TABLE)
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


def test_no_text_of_the_command_line_has_a_line_break_which_would_be_printed_as_an_escape():
    folder = Path(output.__file__).parent
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="print") | ast.Name(id="complain"), args=values):
                    pass
                case ast.Call(func=ast.Name(id="print_lines"), args=values) if not node.keywords:
                    pass
                case ast.keyword(arg="sentence", value=value):
                    values = [value]
                case _:
                    continue
            parts = [part for value in values for part in ast.walk(value) if isinstance(part, ast.Constant)]
            found += [f"{path.name}:{part.lineno}" for part in parts if "\n" in str(part.value)]
    assert not found


ID = "01A2B3C4D5E6F708192A3B4C5D6E7F8091"
MEMBER = "worker-6d5f9c7b8-x2x7p@7@1@2f4k8a"


def long_answers():
    group = admin_pb2.DescribeGroupResponse()
    group.summary.group = "billing"
    member = group.members.add(client_id=MEMBER, language="PYTHON", version="0.9.1", protocol="evenq", zone="zone-1")
    member.subscriptions.add(topic="orders")
    queue = group.queues.add(owner=MEMBER, committed=1234, max_offset=2345, lag=1111, inflight=32)
    queue.queue.topic, queue.queue.broker_name, queue.queue.queue_id = "orders", "broker-a", 11
    messages = admin_pb2.FindMessagesResponse()
    one = messages.messages.add(body_bytes=200)
    one.queue.CopyFrom(queue.queue)
    one.message.body = b"a body of many words " * 3
    one.message.system_properties.message_id = ID
    one.message.system_properties.keys.extend(["key-one", "key-two"])
    brokers = admin_pb2.ListBrokersResponse()
    broker = brokers.brokers.add(answered=True, topics=12, messages_in=10**9, messages_out=10**9, log_bytes=10**12)
    broker.broker.name, broker.broker.start_ms = "broker-a", 1_700_000_000_000
    broker.broker.listeners.add(name="default", host="10.123.101.17", port=18081)
    return {"DescribeGroup": group, "FindMessages": messages, "ListBrokers": brokers}


@pytest.fixture
def terminal(run, monkeypatch):
    """Runs a command at a terminal of some columns."""

    def at(columns, line):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(output, "UNBOUNDED", columns)
        code, out, _, _ = run(line, **long_answers())
        assert code == 0
        return out

    return at


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("group show billing", [MEMBER, "orders broker-a/11"]),
        ("message find orders", [ID]),
        ("broker list", ["broker-a"]),
        ("offset show billing", ["orders broker-a/11"]),
    ],
)
def test_80_columns_show_the_ids_whole_and_few_columns(terminal, line, whole):
    out = terminal(80, line)
    assert max(len(text.rstrip()) for text in out.splitlines()) <= 80
    assert all(text in out for text in whole)


@pytest.mark.parametrize("line", ["group show billing", "message find orders", "broker list", "offset show billing"])
def test_nothing_is_cut_in_a_pipe_at_a_narrow_terminal_or_with_all_columns(terminal, run, line):
    for out in (terminal(40, line), terminal(30, f"{line} --wide"), run(f"{line} --wide", **long_answers())[1]):
        assert "\N{HORIZONTAL ELLIPSIS}" not in out


def test_a_table_in_a_pipe_is_as_wide_as_its_cells(run):
    _, out, _, _ = run("group show billing --wide", **long_answers())
    rows = [text.split() for text in out.splitlines() if MEMBER in text]
    assert rows[0][:5] == [MEMBER, "PYTHON", "0.9.1", "evenq", "zone-1"]
    assert rows[1][:4] == ["orders", "broker-a/11", MEMBER, "1,234"]
    assert all(len(text.split()) >= 7 for text in out.splitlines() if MEMBER in text)
