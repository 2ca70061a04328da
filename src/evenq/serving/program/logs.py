"""Logs of servers on stderr: one JSON object per line, or one readable line each on a terminal.

Fields given as `extra={...}` become keys of the object. From WARNING upwards, fields that the text does not contain are
appended to it, so that the text alone names the topic, group or broker, and the reason. Message bodies are never
logged; nothing above DEBUG is per message. Values come from clients: none is longer than `VALUE_MAX`, starts a line of
its own, or reaches a terminal as control characters.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from evenq.runtime.printable import json_line, printable

VALUE_MAX = 1_000  # characters of one field
TEXT_MAX = 8_000  # characters of the event, which may contain several fields
ALIKE_BURST, ALIKE_PER_S = 1_000, 10
"""Lines of one place of the program, in one burst and per second on average."""
AUDIT = "evenq.audit"  # logger of allowed changes by users: none of its lines is omitted

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def setup_logs(level: str = "INFO", *, program: str = "", stream: TextIO | None = None) -> None:
    """Sends all logs of this process to `stream` (stderr) from `level` upwards. Replaces previous settings."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.addFilter(FewAlike())
    handler.setFormatter(HumanFormatter() if target.isatty() else JsonFormatter(program))
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.root.level))
    logging.getLogger("grpc").setLevel(max(logging.WARNING, logging.root.level))


@contextmanager
def errors_only(logger: str) -> Iterator[None]:
    """Hides warnings of `logger` and of those below it inside the block: they are expected there."""
    one = logging.getLogger(logger)
    before = one.level
    one.setLevel(logging.ERROR)
    try:
        yield
    finally:
        one.setLevel(before)


class FewAlike(logging.Filter):
    """Omits lines of a place that writes very many, and adds the number to its next one: clients cannot fill the disk
    with one line per call. Places are lines of our source, so they are few.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], list[float]] = {}  # lines left, time of that in s, lines omitted since

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the record may be written."""
        if record.name == AUDIT:
            return True
        place = self._places.setdefault((record.pathname, record.lineno), [ALIKE_BURST, record.created, 0])
        left, since, left_out = place
        left = min(ALIKE_BURST, left + max(0.0, record.created - since) * ALIKE_PER_S)
        if left < 1:
            place[:] = left, record.created, left_out + 1
            return False
        place[:] = left - 1, record.created, 0
        if left_out:
            record.left_out = int(left_out)
        return True


class JsonFormatter(logging.Formatter):
    """One line per record, keys: time (UTC), level, program, logger, event, then the extra fields."""

    def __init__(self, program: str = "") -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
        }
        if self._program:
            line["program"] = self._program
        extra = _extra(record)
        line |= {"logger": record.name, "event": _text(record, extra)}
        line |= extra
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json_line(line, default=str)


class HumanFormatter(logging.Formatter):
    """Time of day, level, event, then `key=value` of the fields that the event does not name."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        text = _cut(record.getMessage(), TEXT_MAX)
        fields = "".join(f" {key}={value}" for key, value in _unnamed(text, _extra(record)).items())
        line = printable(f"{time} {record.levelname:<7} {text}{fields}")
        if record.exc_info and record.exc_info[0] is not None:
            # An error's text may contain newlines. Indented, its lines do not look like lines of the log.
            lines = self.formatException(record.exc_info).splitlines()
            line += "".join(f"\n    {printable(one)}" for one in lines)
        return line


def _text(record: logging.LogRecord, extra: dict[str, Any]) -> str:
    text = _cut(record.getMessage(), TEXT_MAX)
    unnamed = _unnamed(text, extra) if record.levelno >= logging.WARNING else {}
    if not unnamed:
        return text
    return f"{text} ({', '.join(f'{key}={value}' for key, value in unnamed.items())})"


def _unnamed(text: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields whose value is not in the text."""
    return {key: value for key, value in extra.items() if not re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", text)}


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: _cut(value, VALUE_MAX) if isinstance(value, str) else value
        for key, value in record.__dict__.items()
        if key not in _OWN
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
