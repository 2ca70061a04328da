"""The forms of a result: `-o` of every command, its older names, and what each form holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evenq.cli.output import Column, Listing, Page
from evenq.cli.parser import make_parser
from evenq.cli.yaml_text import yaml_text
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

TEXTS = st.text(max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))


def topics() -> admin_pb2.ListTopicsResponse:
    response = admin_pb2.ListTopicsResponse()
    for name in ("orders", "no"):
        response.topics.add(topic=name, message_type=1, brokers=1, queues=8, messages=5)
    return response


@given(VALUES)
def test_yaml_is_read_as_the_same_value_and_is_printable(value: Any) -> None:
    text = yaml_text({"rows": [value], "value": value})
    assert yaml.safe_load(text) == {"rows": [value], "value": value}
    assert text.replace("\n", "").isprintable()


def test_a_text_that_yaml_would_read_as_something_else_stays_a_text() -> None:
    value = {"on": ["no", "1e3", "2026-01-01", "~", "- a", "a: b", "\u2028", "\U000e0001"], "null": "null"}
    assert yaml.safe_load(yaml_text(value)) == value


@pytest.mark.parametrize(
    ("option", "same"), [("-o json", "--json"), ("--output json", "--json"), ("-o JSON", "--json")]
)
def test_the_older_options_are_names_of_the_form(run: Any, option: str, same: str) -> None:
    outs = [run(f"topic list {one}", ListTopics=topics())[1] for one in (option, same)]
    assert outs[0] == outs[1]
    assert [row["topic"] for row in json.loads(outs[0])] == ["no", "orders"]
    assert make_parser().parse_args(["group", "show", "--wide"]).output == "wide"


def test_yaml_and_json_hold_the_same(run: Any) -> None:
    as_yaml, as_json = (run(f"topic list -o {form}", ListTopics=topics())[1] for form in ("yaml", "json"))
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_names_are_one_a_line_for_a_shell(run: Any) -> None:
    assert run("topic list -o name", ListTopics=topics())[1] == "no\norders\n"
    response = admin_pb2.DescribeTopicResponse()
    response.queues.add(queue=common_pb2.Queue(topic="orders", broker_name="a", queue_id=0))
    assert run("topic show orders -o name", DescribeTopic=response)[1] == "orders\n"
    assert run("topic list -o name", ListTopics=admin_pb2.ListTopicsResponse())[1] == "", "no hint for people"


def test_a_page_says_which_of_its_values_are_names() -> None:
    columns = (Column("broker", "broker"), Column("path", "path"))
    listing = Listing(key="steps", columns=columns, rows=[("a", "x"), ("a", "y"), ("b", "")])
    assert Page(facts={"done": True}, listings=[listing], names="steps.path").named() == ["x", "y"]
    assert Page(facts={"done": True}, listings=[listing], names="steps").named() == ["a", "b"]
    assert Page(facts={"topic": "t"}, listings=[listing]).named() == ["t"]
    assert Page(facts={}, listings=[listing]).named() == ["a", "b"]


def test_a_form_that_is_not_known_is_named_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["topic", "list", "-o", "xml"])
    assert "'xml' is not a form; choose from table, wide, json, yaml, name" in capsys.readouterr().err
