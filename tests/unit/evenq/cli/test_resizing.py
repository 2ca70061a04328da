"""The words of the commands that resize: their options, and what they say of those that others wait for."""

import pytest

from evenq.cli.parser import make_parser
from evenq.cli.resizing import permission_text
from evenq.cli.waiting import who
from evenq.client.core.views import UnfinishedView
from evenq.model import MessageQueue, Permission


def test_scale_waits_unless_told_otherwise_and_needs_a_number() -> None:
    told = make_parser().parse_args(["topic", "scale", "t", "--queues", "3"])
    assert (told.queues, told.wait, told.no_wait, told.force, told.broker) == (3, 300, False, False, "")
    told = make_parser().parse_args(["topic", "scale", "t", "--queues", "3", "--no-wait", "--force", "--broker", "b"])
    assert (told.no_wait, told.force, told.broker) == (True, True, "b")
    for wrong in (["topic", "scale", "t"], ["topic", "scale", "t", "--queues", "-1"], ["topic", "permit", "t", "rw"]):
        with pytest.raises(SystemExit):
            make_parser().parse_args(wrong)


def test_draining_names_a_broker() -> None:
    told = make_parser().parse_args(["broker", "drain", "b", "--wait", "9"])
    assert (told.name, told.wait) == ("b", 9)
    assert make_parser().parse_args(["broker", "resume", "b"]).name == "b"


def test_permissions_have_words() -> None:
    assert [permission_text(one.name) for one in Permission] == ["none", "read", "write", "read-write"]


def test_those_who_have_most_to_read_are_named_first() -> None:
    left = [
        UnfinishedView(queue=MessageQueue("t", "b", queue), group=f"g{group}", lag=lag, inflight=0)
        for group, queue, lag in [(1, 0, 5), (2, 0, 1_000), (1, 1, 6), *((number, 0, 1) for number in range(3, 9))]
    ]
    assert who(left).startswith("g2 1,000, g1 11, ")
    assert who(left).endswith(" and 3 more groups")
    assert who([]) == "none"
