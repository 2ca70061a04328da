"""How `evenq consume` shows a message."""

import json

from evenq.cli.consume import message_as_json, message_as_text
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
    assert json.loads(message_as_json(message(lite_topic="ann")))["lite_topic"] == "ann"
    assert json.loads(message_as_json(message()))["lite_topic"] is None


def test_a_repeat_is_marked():
    assert message_as_text(message(delivery_attempt=2)).endswith("hello (attempt 2)")


def test_control_codes_never_reach_the_terminal():
    line = message_as_text(message(body=b"a\x1b[31m\nb\xff"))
    assert line.endswith(r"a\x1b[31m\nb\xff")


def test_json_holds_everything_and_bytes_in_base64():
    fields = json.loads(message_as_json(message()))
    assert (fields["body"], fields["queue"], fields["offset"], fields["keys"]) == ("hello", 3, 17, ["k1"])
    assert json.loads(message_as_json(message(body=b"\xff")))["body_base64"] == "/w=="
