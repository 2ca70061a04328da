"""How `evenq consume` shows a message."""

import sys
from collections import Counter
from dataclasses import replace

import pytest

from evenq.cli.__main__ import main
from evenq.cli.consume import message_as_text, message_fields, print_and_ack
from evenq.cli.output import print_lines
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage


def message(**fields):
    known = {
        "topic": "t",
        "body": b"hello",
        "message_id": "01",
        "tag": "new",
        "keys": ("k1",),
        "properties": {"a": "b"},
        "message_group": None,
        "queue": MessageQueue(topic="t", broker_name="broker-a", queue_id=3),
        "queue_offset": QueueOffset(17),
        "born_ms": 1_700_000_000_000,
        "store_ms": 1_700_000_000_000,
    }
    return ReceivedMessage(**{**known, **fields})


def test_a_line_for_people_has_place_marks_and_body():
    line = message_as_text(message())
    assert "broker-a/3:17" in line
    assert "[new k1] hello" in line
    assert "attempt" not in line


def test_a_message_of_a_lite_topic_names_it():
    assert "[ann] hello" in message_as_text(message(tag=None, keys=(), lite_topic="ann"))
    assert message_fields(message(lite_topic="ann"))["lite_topic"] == "ann"
    assert message_fields(message())["lite_topic"] is None


def test_a_repeat_is_marked():
    assert message_as_text(message(delivery_attempt=2)).endswith("hello (attempt 2)")


def test_control_codes_never_reach_the_terminal():
    line = message_as_text(message(body=b"a\x1b[31m\nb\xff"))
    assert line.endswith(r"a\x1b[31m\nb\xff")


def test_json_holds_everything_and_bytes_in_base64():
    fields = message_fields(message())
    assert (fields["body"], fields["queue"], fields["offset"], fields["keys"]) == ("hello", 3, 17, ["k1"])
    assert message_fields(message(body=b"\xff"))["body_base64"] == "/w=="


class Consumer:
    """Remembers what was acknowledged together, and what had been printed by then."""

    def __init__(self, output, *, interrupt=False):
        self.output, self.interrupt, self.acked, self.printed = output, interrupt, [], []

    def ack(self, *messages):
        self.acked.append([one.message_id for one in messages])
        self.printed.append(self.output.flushed)
        if self.interrupt:
            self.interrupt = False
            raise KeyboardInterrupt


class Output:
    """Standard output that fails when it is to write one line out, which is lost then."""

    def __init__(self, *, at="", error=None):
        self.waiting, self.flushed, self.at, self.error = "", "", at, error

    def write(self, text):
        self.waiting += text

    def flush(self):
        waiting, self.waiting = self.waiting, ""
        if self.at and self.at in waiting:
            raise self.error
        self.flushed += waiting


@pytest.fixture
def shown(monkeypatch):
    """Prints three messages; gives the consumer, how many are counted, and what was raised."""

    def show(output, *, interrupt=False):
        monkeypatch.setattr(sys, "stdout", output)
        consumer, counted, raised = Consumer(output, interrupt=interrupt), Counter(), None
        messages = [replace(message(), message_id=name) for name in "abc"]
        try:
            print_and_ack(consumer, messages, lambda one: print_lines(one.message_id), counted)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            raised = type(error)
        return consumer, counted["received"], raised

    return show


def test_what_was_received_together_is_acknowledged_in_one_call_once_it_is_printed(shown):
    consumer, count, raised = shown(Output())
    assert (consumer.acked, consumer.printed) == ([["a", "b", "c"]], ["a\nb\nc\n"])
    assert (count, raised) == (3, None)


def test_ctrl_c_acknowledges_what_was_printed_and_nothing_else(shown):
    consumer, count, raised = shown(Output(at="c", error=KeyboardInterrupt()))
    assert (consumer.acked, consumer.printed) == ([["a", "b"]], ["a\nb\n"])
    assert (count, raised) == (2, KeyboardInterrupt)


def test_ctrl_c_in_the_middle_of_the_call_acknowledges_again(shown):
    consumer, _, raised = shown(Output(), interrupt=True)
    assert (consumer.acked, raised) == ([["a", "b", "c"]] * 2, KeyboardInterrupt)


@pytest.mark.parametrize("at", ["b", "c"])
def test_a_pipe_that_breaks_acknowledges_nothing(shown, at):
    consumer, _, raised = shown(Output(at=at, error=BrokenPipeError()))
    assert (consumer.acked, raised) == ([], BrokenPipeError)


class Silent:
    """A consumer for which nothing comes, and then Ctrl-C."""

    def __init__(self, empty: int) -> None:
        self.left, self.waits = empty, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Nothing to end."""

    def receive(self, _count, *, invisible_ms, wait_ms):
        self.waits.append(wait_ms)
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return []


@pytest.mark.parametrize(("line", "code"), [("--max 5", 130), ("--idle 60", 130), ("", 0)])
def test_ctrl_c_is_the_end_only_of_a_command_that_has_none_of_its_own(monkeypatch, capsys, line, code):
    monkeypatch.setattr("evenq.cli.consume._consumer", lambda _: Silent(0))
    assert main(f"consume orders --group billing {line}".split()) == code
    assert "Received 0 messages of orders as billing." in capsys.readouterr().err


@pytest.mark.parametrize(("line", "said"), [("", 1), ("--from last", 1), ("--from first", 0)])
def test_it_says_once_that_it_waits_for_new_messages(monkeypatch, capsys, line, said):
    silent = Silent(3)
    monkeypatch.setattr("evenq.cli.consume._consumer", lambda _: silent)
    assert main(f"consume orders --group billing {line}".split()) == 0
    err = " ".join(capsys.readouterr().err.split())
    assert err.count("a group that has not read a topic starts at its end (LAST)") == said
    assert silent.waits[0] < silent.waits[1], "a person is told soon"
