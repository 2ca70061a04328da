"""Log lines."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from evenq.serving.program.logs import ALIKE_BURST, AUDIT, FewAlike, JsonFormatter, setup_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _keep_logging() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_a_line_is_one_json_object_with_the_extra_fields() -> None:
    stream = io.StringIO()
    setup_logs("INFO", program="broker", stream=stream)
    logging.getLogger("x.y").info("topic %s", "made", extra={"topic": "ä", "queues": 8})
    logging.getLogger("x.y").debug("not this")
    (line,) = stream.getvalue().splitlines()
    result = json.loads(line)
    assert result.pop("time").endswith("+00:00")
    expected = {"level": "INFO", "program": "broker", "logger": "x.y", "event": "topic made", "topic": "ä", "queues": 8}
    assert result == expected


def test_from_warnings_upwards_the_text_says_by_itself_what_it_is_about() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("broker"))
    log = logging.getLogger("tests.text")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    log.warning("topic not created", extra={"topic": "orders", "peer": "broker-b", "error": "gone"})
    log.info("rebalanced", extra={"topic": "orders"})
    log.warning("topic %s not created", "orders", extra={"topic": "orders", "peer": "order", "error": "gone"})
    warning, info, named = map(json.loads, stream.getvalue().splitlines())
    assert warning["event"] == "topic not created (topic=orders, peer=broker-b, error=gone)"
    assert (warning["topic"], warning["error"]) == ("orders", "gone")
    assert info["event"] == "rebalanced"
    assert named["event"] == "topic orders not created (peer=order, error=gone)", (
        "what the text names stands there once"
    )
    assert named["topic"] == "orders"


def test_a_traceback_stays_within_its_line() -> None:
    stream = io.StringIO()
    setup_logs("INFO", stream=stream)
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger().exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "KeyError: 'lost'" in json.loads(line)["traceback"]


def test_people_get_text() -> None:
    stream = Terminal()
    setup_logs("INFO", stream=stream)
    logging.getLogger().warning("broker lost", extra={"broker": "a"})
    assert "WARNING broker lost broker=a" in stream.getvalue()


HOSTILE = "x\n12:00:00 INFO    fake \x1b[2J\x9b"


def test_a_value_writes_no_line_of_its_own_and_no_control_characters() -> None:
    stream = Terminal()
    setup_logs("INFO", stream=stream)
    logging.getLogger().warning("refused %s", HOSTILE, extra={"user": HOSTILE})
    try:
        raise KeyError("k") from ValueError(HOSTILE)
    except KeyError:
        logging.getLogger().exception("failed")
    lines = stream.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("12:00:00 INFO    fake") for line in lines)


def test_json_lines_are_printable_and_exact() -> None:
    stream = io.StringIO()
    setup_logs("INFO", stream=stream)
    logging.getLogger().warning("refused", extra={"user": HOSTILE})
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert json.loads(line)["user"] == HOSTILE


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_line_is_bounded_whatever_a_client_sends(stream: io.StringIO) -> None:
    setup_logs("INFO", stream=stream)
    logging.getLogger().warning("refused %s", "x" * 100_000, extra={"user": "y" * 100_000, "method": "m"})
    (line,) = stream.getvalue().splitlines()
    assert len(line) < 12_000
    assert "(100000 characters)" in line


def test_a_place_that_writes_very_many_lines_is_cut_short_and_says_by_how_many() -> None:
    stream = io.StringIO()
    setup_logs("INFO", stream=stream)
    alike = logging.getLogger("tests.flood")
    for number in range(ALIKE_BURST + 500):
        alike.info("client %d", number)
    logging.getLogger("tests.other").info("another place writes")
    for number in range(ALIKE_BURST + 500):
        logging.getLogger(AUDIT).info("call allowed", extra={"number": number})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    written = sum(line["logger"] == "tests.flood" for line in lines)
    assert ALIKE_BURST <= written < ALIKE_BURST + 400
    assert sum(line["logger"] == "tests.other" for line in lines) == 1
    assert sum(line["logger"] == AUDIT for line in lines) == ALIKE_BURST + 500


def test_the_next_line_of_a_place_says_how_many_were_left_out() -> None:
    few = FewAlike()

    def written(second: float) -> logging.LogRecord | None:
        record = logging.makeLogRecord({"pathname": "p", "lineno": 1, "created": second, "levelno": logging.INFO})
        return record if few.filter(record) else None

    assert all(written(0.0) for _ in range(ALIKE_BURST))
    assert not any(written(0.0) for _ in range(7))
    record = written(1.0)
    assert record is not None
    assert record.__dict__["left_out"] == 7
