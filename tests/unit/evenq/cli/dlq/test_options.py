"""The grammar of `evenq dlq`."""

import argparse

import pytest

from evenq.cli.dlq.options import _rate
from evenq.cli.parser import make_parser


def test_a_rate_is_a_number_by_a_unit_of_time() -> None:
    assert [_rate(text) for text in ("50/s", "30/m", "36/h", "2", "0.5/s")] == [50, 0.5, 0.01, 2, 0.5]


@pytest.mark.parametrize("text", ["", "x/s", "5/d", "0/s", "-1/s", "nan/s", "5/", "inf"])
def test_anything_else_is_no_rate(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="50/s"):
        _rate(text)


def test_the_actions_take_their_words() -> None:
    parser = make_parser()
    assert parser.parse_args(["dlq", "list"]).group is None
    listed = parser.parse_args(["dlq", "list", "billing", "--waiting", "--max", "5"])
    assert (listed.group, listed.waiting, listed.max) == ("billing", True, 5)
    assert parser.parse_args(["dlq", "show", "billing"]).message_id == ""
    replay = parser.parse_args(["dlq", "replay", "billing", "--filter", "a || b", "--to", "t", "--rate", "10/s"])
    assert (replay.group, replay.filter, replay.to, replay.rate, replay.max) == ("billing", "a || b", "t", 10.0, 0)
